"""No instruction set's object shares a function with another.

A function that is compiled into two objects under one name (an inline function, a template) is kept once by the linker:
perhaps the copy that needs AVX-512, which then runs on every machine. So an object may define its kernel table and
nothing else that the linker sees.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from embed.cpu import _native

HOME = Path(__file__).parent
NOT_CODE = {"DW.ref.__gxx_personality_v0"}  # the address of C++'s unwinder


def defined(symbols: Path) -> set[str]:
    """Return the names that the object gives the linker, weak and mergeable ones included."""
    command = ["nm", "--demangle", "--extern-only", "--defined-only", symbols]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split(maxsplit=2)[2] for line in listed.splitlines()} - NOT_CODE


def compiled(isa: str, optimisation: str, directory: Path) -> Path:
    for tool in ("g++", "nm"):
        if not shutil.which(tool):
            pytest.skip(f"there is no {tool} to look at the objects with")
    flags = ["-std=c++17", "-pthread", "-ffp-contract=off", optimisation, "-w"]
    source, made = HOME.parents[1] / "csrc" / "cpu" / "isa" / f"{isa}.cc", directory / f"{isa}.o"
    subprocess.run(["g++", *flags, "-c", source, "-o", made], check=True)
    return made


@pytest.mark.parametrize("optimisation", ["-O0", "-O3"])
def test_an_object_defines_its_table_alone(isa: str, optimisation: str, tmp_path: Path) -> None:
    assert defined(compiled(isa, optimisation, tmp_path)) == {f"embed::cpu::{isa}::kernels"}


def test_another_machine_s_file_leaves_an_empty_object(tmp_path: Path) -> None:
    """So that setup.py lists every file and needn't know the machine that the compiler builds for."""
    others = [name for name, reason in _native.instruction_sets().items() if str(reason).startswith("this build has")]
    assert [defined(compiled(isa, "-O0", tmp_path)) for isa in others] == [set()] * len(others)
    assert others
