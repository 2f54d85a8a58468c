"""The team of threads: idle it uses no processor, without threads it says so, and a fork doesn't hang on it.

And subnormals count even in a thread that flushes them to zero, as a library linked with -ffast-math leaves threads.
That mode is a register of each thread, which new threads inherit; so it is set in a thread of the test's own.
"""

from __future__ import annotations

import ctypes
import json
import platform
import resource
import subprocess
import sys
import time
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


def test_an_idle_team_sleeps(tmp_path: Path) -> None:
    with embed.load(tiny.make("xlmr", tmp_path / "model"), threads=8) as model:
        model.encode(TEXTS)
        time.sleep(0.1)  # a thread looks and yields for less than a millisecond before it sleeps
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.1


def test_more_threads_than_cpus_compute_the_same(tmp_path: Path) -> None:
    directory = tiny.make("xlmr", tmp_path / "model")
    with embed.load(directory, threads=1) as one, embed.load(directory, threads=8) as eight:
        assert eight.encode(TEXTS * 20).tobytes() == one.encode(TEXTS * 20).tobytes()


def test_threads_that_cannot_be_had_are_an_error_and_not_the_end() -> None:
    """Nor do those that were started before live on."""
    program = """
import os, resource, numpy as np
from embed.cpu import _native
x, one = np.ones((4, 32), np.float32), np.ones(32, np.float32)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), -1))
try:
    _native.layer_norm("scalar", x, one, one, eps=1e-5, threads=200)
except RuntimeError as ex:
    print(ex)
print(len(os.listdir("/proc/self/task")))
"""
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    message, threads = done.stdout.splitlines()
    assert message.startswith("thread ")
    assert "unavailable" in message or "memory" in message, message
    assert int(threads) <= 2  # OpenBLAS may have its own


def test_a_forked_child_ends_though_the_team_stayed_behind(tmp_path: Path) -> None:
    program = """
import os, sys, embed
model = embed.load(sys.argv[1], threads=3)
model.encode("a")
if not (child := os.fork()):
    del model
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), model.encode("b").shape)
"""
    model = tiny.make("xlmr", tmp_path / "model")
    command = [sys.executable, "-W", "ignore", "-c", program, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "7 (32,)\n", done.stderr
