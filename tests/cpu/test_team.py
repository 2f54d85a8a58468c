"""Subnormals count even in a thread that flushes them to zero, as a library linked with -ffast-math leaves threads.

The mode is a register of each thread, which new threads inherit; so it is set in a thread of the test's own.
"""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import tiny
from kernel_inputs import F32

import embed
from embed.cpu import _native

Result = TypeVar("Result")
TEXTS = ["hello world", "the quick fox", "a"]


def flush_subnormals() -> None:
    """Do to this thread what GCC's crtfastmath.o does; the bits' places are those of glibc's fenv_t."""
    word, bits = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}[platform.machine()]  # of MXCSR, of FPCR
    libc, state = ctypes.CDLL(None), (ctypes.c_uint32 * 16)()
    assert libc.fegetenv(state) == 0
    state[word] |= bits
    assert libc.fesetenv(state) == 0


def subnormals_are_zero() -> bool:
    return bool((np.array([1e-40], np.float32) * np.float32(1))[0] == 0)


def flushing(call: Callable[[], Result]) -> Result:
    """Return what `call()` gives in a thread that flushes subnormals, having seen that it does, before and after."""

    def run() -> Result:
        flush_subnormals()
        assert subnormals_are_zero()
        result = call()
        assert subnormals_are_zero(), "the thread did not get its mode back"
        return result

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_kernels(isa: str) -> None:
    tiny_numbers = np.arange(-1e-38, 1e-38, 7e-42, dtype=np.float32)
    one = np.ones((1, 1), np.float32)
    halves = np.arange(1, 0x400, dtype=np.uint16).view(np.float16)  # all of F16's positive subnormals

    def results() -> list[F32]:
        return [
            _native.exp2(isa, np.linspace(-151, -126, 1000, dtype=np.float32)),
            _native.activation(isa, tiny_numbers, name="relu"),
            _native.gemm(isa, one, halves[:, None], np.zeros(len(halves), np.float32), threads=3),
            _native.gemm(isa, one, np.zeros((len(tiny_numbers), 1), np.float32), tiny_numbers, threads=3),
        ]

    assert [got.tobytes() for got in flushing(results)] == [want.tobytes() for want in results()]


def test_vectors(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F16's subnormals, in biases and in tables, come out of embed.load alike."""
    directory = tiny.make("xlmr", tmp_path / "model")
    tensors = tiny.random_tensors(json.loads((directory / "config.json").read_text()))
    for name, tensor in tensors.items():
        if name.endswith("bias") or (name.startswith("embeddings.") and "LayerNorm" not in name):
            tensor *= np.float32(1e-5)
    tiny.write_weights(directory, tensors, dtype="F16")
    monkeypatch.setenv("EMBED_ISA", isa)

    def vectors() -> bytes:
        with embed.load(directory, threads=2) as model:
            return model.encode(TEXTS).tobytes()

    assert flushing(vectors) == vectors()
