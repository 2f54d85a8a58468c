"""csrc/cpu/dispatch.cc says of this processor what the kernel of the operating system says of it."""

from __future__ import annotations

import platform
from pathlib import Path

from embed.cpu import _native

AVX2 = ["avx2", "fma", "f16c", "bmi2"]
NEEDED = {
    "x86_64": {"avx2": AVX2, "avx512": [*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq"]},
    "aarch64": {"neon": ["asimd"]},
}


def test_what_the_processor_lacks() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    has = next(line for line in lines if line.startswith(("flags", "Features"))).split()
    sets = _native.instruction_sets()
    for name, features in NEEDED[platform.machine()].items():
        missing = [feature for feature in features if feature not in has]
        assert sets[name] == (f"this CPU has no {missing[0]}" if missing else None)
