"""The installed package: one version in every place, its files, its dependencies; and what a wheel must not bring."""

from __future__ import annotations

import ast
import re
import subprocess
import sysconfig
from importlib import import_module, metadata, resources
from pathlib import Path

import pytest

import embed

DISTRIBUTION = "embed-server"
ROOT = Path(__file__).resolve().parent.parent
README_TEST_COMMAND = 'pip install -e ".[test]" && pytest'


def test_the_version_is_the_same_everywhere():
    command = Path(sysconfig.get_path("scripts")) / "embed"
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert embed.__version__ == metadata.version(DISTRIBUTION)
    assert said.split()[-1] == embed.__version__


def test_the_changelog_has_a_section_for_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert embed.__version__ in headings or headings[0] == "Unreleased"


def test_base_dependencies_are_seven_and_models_are_none():
    required = metadata.requires(DISTRIBUTION)
    base = {re.match(r"[\w-]+", line)[0] for line in required if "extra ==" not in line}
    computing, serving = {"numpy", "safetensors", "tokenizers"}, {"falcon", "gunicorn", "orjson", "prometheus_client"}
    assert base == computing | serving
    everything = " ".join(required)
    assert not re.search(r"torch|transformers|onnx|openvino|minilm|e5", everything)


def test_the_extras_are_those_that_the_readme_names():
    assert set(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra")) == {"hub", "cuda12", "cuda13", "test"}


def test_the_license_and_the_oldest_python_are_stated():
    about = metadata.metadata(DISTRIBUTION)
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.10"


@pytest.mark.parametrize("name", ["py.typed", "cpu/_native.pyi"])
def test_type_information_is_installed(name):
    assert resources.files(embed).joinpath(name).is_file()


def stub_names(body: list[ast.stmt]) -> set[str]:
    """Return what a stub declares, type aliases and imports aside."""
    defined = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return defined | {node.target.id for node in body if isinstance(node, ast.AnnAssign)}


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_stub_names_what_the_extension_has():
    """Imports aside, nothing is in one and not in the other; nor in any of its classes."""
    native = import_module("embed.cpu._native")
    stub = ast.parse(resources.files(embed).joinpath("cpu/_native.pyi").read_text())
    values = {name: getattr(native, name) for name in public(dir(native))}
    own = {name for name, value in values.items() if getattr(value, "__module__", None) == native.__name__}
    constants = {name for name, value in values.items() if isinstance(value, int)}
    assert stub_names(stub.body) == own | constants
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            declared = {name for name in stub_names(node.body) if not name.startswith("_")}
            assert declared == public(dir(getattr(native, node.name))), node.name


def test_the_extension_is_the_compiled_one():
    """A pure-Python stand-in would pass every other test, slowly."""
    file = Path(import_module("embed.cpu._native").__file__)
    assert file.suffix == ".so"
    assert file.read_bytes()[:4] == b"\x7fELF"


def test_the_readme_has_no_blanks_to_fill_in():
    assert re.findall(r".*@@.*", (ROOT / "README.md").read_text()) == []


def test_the_readme_holds_the_test_command_that_ci_runs():
    lines = [line.strip() for line in (ROOT / "README.md").read_text().splitlines()]
    assert lines.count(README_TEST_COMMAND) == 1
    assert README_TEST_COMMAND in (ROOT / ".ci" / "run").read_text()
