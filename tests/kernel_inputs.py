"""Random arrays for the kernels' tests, and the instruction sets to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embed.cpu import _native

F32 = NDArray[np.float32]


def runnable() -> list[str]:
    """Return the instruction sets that this machine runs, scalar first."""
    return [name for name, missing in _native.instruction_sets().items() if missing is None][::-1]


def normal(rng: np.random.Generator, *shape: int, scale: float = 1, mean: float = 0) -> F32:
    return rng.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(mean)


def narrow(tensor: F32, dtype: str) -> NDArray[Any]:
    """Return `tensor` as a checkpoint of `dtype` holds it: F32, F16, or BF16 as its bits in uint16 (cut off)."""
    if dtype == "BF16":
        return (tensor.view(np.uint32) >> 16).astype(np.uint16)
    return tensor.astype({"F32": np.float32, "F16": np.float16}[dtype])


def packed(lengths: Sequence[int]) -> NDArray[np.int32]:
    """Return the offsets (texts + 1) of texts of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def ulps(got: F32, want: ArrayLike) -> NDArray[np.float64]:
    """Return the error of each element in units of the last place of the true answer."""
    want = np.asarray(want, np.float64)
    size = np.maximum(np.abs(want), 2.0**-126).astype(np.float32)  # all subnormals have the same spacing
    return np.abs(got - want) / np.spacing(size)
