"""sentence-transformers' answer: vectors and token ids of texts, written to an .npz file.

    python tests/oracle.py DIRECTORY TEXTS.json OUT.npz [--pooling MODE]

Runs in any interpreter that has sentence-transformers; `pytest --oracle` and `--regen` start it as a child, so that
torch's OpenMP and embed's never share a process. TEXTS.json is a list of strings. OUT.npz gets `vectors` (texts, width)
float32 as the model's modules give them, `ids` int32 of all texts end to end, `offsets` (texts + 1) into it, `digest`
of the texts, and `versions` as JSON. Texts are computed one by one: no padding, no neighbours.

The tokenizer is the directory's tokenizer.json as it stands. --pooling replaces what the directory says, and is needed
for one that says nothing: sentence-transformers would take the mean there and `embed` takes cls.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from texts import digest

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PACKAGES = ["sentence_transformers", "transformers", "torch", "tokenizers", "numpy"]


def versions() -> dict[str, str]:
    """Return the versions of everything that had a part in the numbers."""
    modules = {package: __import__(package) for package in PACKAGES}
    return {**{name: module.__version__ for name, module in modules.items()}, "machine": platform.machine()}


def model(directory: Path, pooling: str | None) -> SentenceTransformer:
    """Return the model on the CPU in f32, with tokenizer.json as its tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if pooling:
        body = Transformer(str(directory))
        built = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), pooling)], device="cpu")
    else:
        built = SentenceTransformer(str(directory), device="cpu")
    config = built[0].model.config
    bert = config.model_type == "bert"
    usable = config.max_position_embeddings - (0 if bert else config.pad_token_id + 1)
    words = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    built[0].processor = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        model_max_length=min(built.max_seq_length or usable, usable),
        pad_token="[PAD]" if bert and "[PAD]" in words else "<pad>",  # demanded by the library; nothing is padded
    )
    return built.float().eval()


def answer(built: SentenceTransformer, texts: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return `vectors`, `ids` and `offsets` of the texts."""
    ids = [built[0].processor(text, truncation=True)["input_ids"] for text in texts]
    vectors = [built.encode(text, batch_size=1, show_progress_bar=False) for text in texts]
    return {
        "vectors": np.stack(vectors).astype(np.float32),
        "ids": np.concatenate(ids).astype(np.int32),
        "offsets": np.cumsum([0, *map(len, ids)]).astype(np.int32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pooling")
    args = parser.parse_args()
    texts = json.loads(args.texts.read_text(encoding="utf-8"))
    arrays = answer(model(args.directory, args.pooling), texts)
    np.savez_compressed(args.out, digest=digest(texts), versions=json.dumps(versions()), **arrays)


if __name__ == "__main__":
    main()
