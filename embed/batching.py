"""Packed batches: token ids of several texts, one after the other, never padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """`ids`, `positions` (tokens) and `offsets` (texts + 1) int32; text t has rows `offsets[t]` to `offsets[t + 1]`."""

    ids: I32
    positions: I32
    offsets: I32

    @property
    def texts(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        return len(self.ids)


def position_ids(ids: I32, pad_id: int | None) -> I32:
    """Return the (length) int32 positions of one text's tokens.

    `pad_id` None is BERT's rule: 0, 1, 2 … Otherwise RoBERTa's (fairseq's make_positions, transformers'
    create_position_ids_from_input_ids): pad_id plus the number of ids so far that aren't `pad_id`; a token whose
    id is `pad_id` itself takes position `pad_id`.
    """
    if pad_id is None:
        return np.arange(len(ids), dtype=np.int32)
    real = ids != pad_id
    return np.where(real, np.cumsum(real) + pad_id, pad_id).astype(np.int32)


def pack(texts: Sequence[I32], pad_id: int | None) -> Batch:
    """Concatenate the ids of `texts`, each (length) int32, into one batch."""
    lengths = [len(ids) for ids in texts]
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return Batch(
        ids=np.concatenate(texts).astype(np.int32, copy=False),
        positions=np.concatenate([position_ids(ids, pad_id) for ids in texts]),
        offsets=offsets,
    )


def chunks(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Yield the indices of texts to compute together: longest first, at most `token_budget` tokens, at least one text.

    The order is that of `lengths` among equals, so that a chunking is reproducible.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    chunk: list[int] = []
    tokens = 0
    for i in order:
        if chunk and tokens + lengths[i] > token_budget:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(i)
        tokens += lengths[i]
    if chunk:
        yield chunk
