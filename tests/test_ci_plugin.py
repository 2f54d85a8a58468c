"""The CI plugin lets skips for missing hardware pass and turns every other one into a failure."""

from __future__ import annotations

import pytest
from ci_plugin import is_hardware, skip_if

from embed.cpu import _native

SKIPS = """
    import pytest

    def test_hardware():
        pytest.skip("avx512: this CPU has no avx512f")

    def test_tool():
        pytest.skip("no compiler")

    @pytest.mark.xfail(reason="a stated limit")
    def test_limit():
        assert False
"""
MODULE_SKIP = """
    import pytest
    pytest.importorskip("a_package_that_nobody_has")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a test file with the plugin and gives the counts of its outcomes."""

    def outcomes(source: str, ci: str) -> dict[str, int]:
        monkeypatch.setenv("CI", ci)
        pytester.makepyfile(test_sample=source)
        return pytester.runpytest_inprocess("-p", "ci_plugin").parseoutcomes()

    return outcomes


def test_a_skip_for_anything_but_hardware_fails_in_ci(run):
    assert run(SKIPS, "true") == {"failed": 1, "skipped": 1, "xfailed": 1}


def test_a_skipped_module_fails_in_ci(run):
    assert run(MODULE_SKIP, "true") == {"errors": 1}


def test_outside_of_ci_skips_are_skips(run):
    assert run(SKIPS, "") == {"skipped": 2, "xfailed": 1}


@pytest.mark.parametrize(
    ("reason", "accepted"),
    [
        ("avx512_bf16: this CPU has no avx512_bf16", True),
        ("cuda: this machine has no CUDA device", True),
        ("neon: this build has no neon kernels", True),
        ("scalar: this CPU has no scalar", False),
        ("avx2: not today", False),
        ("no compiler", False),
        ("could not import 'numpy': No module named 'numpy'", False),
        ("the fixture could not be fetched", False),
    ],
)
def test_only_hardware_is_a_reason(reason, accepted):
    assert is_hardware(reason) == accepted


def test_what_this_machine_lacks_is_a_reason():
    """In the words of `instruction_sets`, as conftest.py marks a test that takes `isa`."""
    marks = {name: skip_if(name, missing) for name, missing in _native.instruction_sets().items()}
    assert any(marks.values()), "no machine has both AVX-512 and NEON"
    assert not all(marks.values()), "scalar runs everywhere"
    for (mark,) in filter(None, marks.values()):
        assert is_hardware(mark.kwargs["reason"])
