"""A pytest plugin: under CI=true a skipped test is a failure, unless the machine itself can't run it.

Skips hide a missing fixture or tool for months. The one reason that is accepted is a machine without the instruction
set or the device, worded as `instruction_sets` words it: "avx512: this CPU has no avx512f". pyproject.toml wires this
module with `-p ci_plugin`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

HARDWARE = re.compile(
    r"(avx2|avx512|avx512_bf16|neon): (this CPU has no \w+|this build has no \w+ kernels)"
    r"|cuda: this machine has no CUDA device"
)


def skip_if(name: str, missing: str | None) -> list[pytest.MarkDecorator]:
    """Return the marks of a test on the instruction set `name`: a skip that CI accepts, where `missing` says why."""
    return [pytest.mark.skip(reason=f"{name}: {missing}")] if missing else []


def is_hardware(reason: str) -> bool:
    """Tell whether `reason` says that the machine can't run the test."""
    return HARDWARE.fullmatch(reason) is not None


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return why `report` was skipped, or None if it was not (an expected failure is no skip)."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class SkipsFail:
    """Turns a skip report into a failed one, where it is made, so that counts and exit code follow."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        return refuse_skip(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report = yield
        return refuse_skip(report)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    reason = skip_reason(report)
    if reason is not None and not is_hardware(reason):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and in CI nothing may be but for hardware: {reason}"
    return report


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(SkipsFail(), "skips-fail")
