"""Who may import whom, and what importing must not do.

The first half reads the sources: arrows point down, and each outside package has one door. The second half imports in
a fresh interpreter: nothing heavy, no thread, no child, and subnormals stay alive after native code has run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "embed"

# Lowest first. A module or subpackage imports from lower levels only, never from its own.
LEVELS: tuple[set[str], ...] = (
    {"errors", "version"},
    # Leaves: know files, texts and numbers, but no device.
    {"batching", "console", "files", "lines", "machine", "progress"},
    {"charsmap", "checkpoint", "config", "head", "lock", "output"},
    {"demo", "metadata", "tokenizer", "weights"},
    # From a model's name to its folder.
    {"hub"},
    {"store"},
    {"remote"},
    {"download"},
    {"models"},
    # The forward and its devices.
    {"backend"},
    {"encoder", "cpu", "cuda"},
    {"engine", "model_folder"},
    # What people call.
    {"embedder"},
    {"executor"},
    {"server"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}

# Packages from outside that only these parts of embed may import, wherever in a file.
DOORS: dict[str, set[str]] = {
    "cupy": {"cuda"},
    "falcon": {"server"},
    "gevent": {"server"},
    "gunicorn": {"server"},
    "huggingface_hub": {"remote"},
    "orjson": {"executor", "output", "server"},
    "prometheus_client": {"server"},
    "safetensors": {"checkpoint"},
    "tokenizers": {"head", "tokenizer"},
}
EVERYWHERE = {"numpy", "cython", "libc", "libcpp", "cpython"} | set(sys.stdlib_module_names)


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi"))


def part_of(path: Path) -> str:
    """Return the part of `embed` that `path` belongs to: "cpu" for embed/cpu/backend.py, "" for the package itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.split(".")[0]


def python_imports(text: str) -> Iterator[str]:
    """Yield the full names imported anywhere in Python source; `from embed import x` gives "embed.x"."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full, so that this test can read them"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def cython_imports(text: str) -> Iterator[str]:
    """The same for Cython source, where an import stands alone on its line."""
    for line in re.finditer(r"^\s*(?:from\s+(\S+)\s+)?c?import\s+(.+)$", text, re.MULTILINE):
        for name in line[2].strip("()").split(","):
            yield f"{line[1]}.{name.split()[0]}" if line[1] else name.split()[0]


def imports(path: Path) -> list[str]:
    read = cython_imports if path.suffix in (".pyx", ".pxd", ".pxi") else python_imports
    return sorted(set(read(path.read_text())))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down_and_use_their_doors(path):
    here = part_of(path)
    assert here == "" or here in LEVEL_OF, f"give {here} a place in LEVELS"
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "embed":
            target = rest.split(".")[0]
            inside = here == "" or target == here
            assert inside or LEVEL_OF[target] < LEVEL_OF[here], f"{here} imports {name}, which is not below it"
        elif package in DOORS:
            assert here in DOORS[package], f"{name} is imported by {here}; only {DOORS[package]} may"
        else:
            assert package in EVERYWHERE, f"{name} is not a dependency that the base install brings"


def test_the_readers_see_every_form_of_import():
    python = "import a.b as c\nfrom d import e, f\nif x:\n    from g.h import (\n        i,\n    )\n"
    assert list(python_imports(python)) == ["a.b", "d.e", "d.f", "g.h.i"]
    cython = "cimport numpy as np\nfrom libc.stdint cimport int32_t\nfrom embed.cpu import x, y\n    import z\n"
    assert list(cython_imports(cython)) == ["numpy", "libc.stdint.int32_t", "embed.cpu.x", "embed.cpu.y", "z"]


def fresh(program: str) -> str:
    """Run `program` in a new interpreter, warnings as errors, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WATCHED_IMPORT = """
    import os, sys
    events = []
    watched = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "ctypes.dlopen", "os.putenv",
               "socket.__new__", "os.mkdir")
    sys.addaudithook(lambda event, _: events.append(event) if event in watched else None)
    before = dict(os.environ)
    import {module}
    assert not events, events
    assert dict(os.environ) == before
    assert len(os.listdir("/proc/self/task")) == 1, "a thread was started"
    heavy = ("numpy", "tokenizers", "safetensors", "huggingface_hub", "cupy", "ctypes", "embed.cpu._native",
             "multiprocessing", "asyncio", "gunicorn")
    found = [name for name in heavy if name in sys.modules]
    assert not found, found
    print(*sorted(name for name in sys.modules if name.split(".")[0] == "embed"))
"""


def test_importing_embed_imports_nothing_heavy_and_changes_nothing():
    assert fresh(WATCHED_IMPORT.format(module="embed")) == "embed embed.errors embed.version"


def test_importing_the_command_imports_no_command():
    """So that `embed --version` and a wrong option answer at once."""
    light = "embed embed.cli embed.console embed.errors embed.version"
    assert fresh(WATCHED_IMPORT.format(module="embed.cli")) == light


def test_the_public_names_arrive_when_they_are_used():
    fresh("""
        import sys, embed
        assert callable(embed.load) and embed.Embedder.__name__ == "Embedder"
        assert "numpy" in sys.modules
        for name in embed.__all__:
            assert getattr(embed, name) is not None and name in dir(embed)
    """)


SUBNORMALS = """
    import threading
    import numpy as np

    def check():
        tiny, small = np.array([1e-310, 4e-320]), np.array([5e-45, 1e-40], np.float32)
        assert (tiny / 2 > 0).all() and (tiny * 2 == tiny + tiny).all(), tiny / 2
        assert (small / 2 > 0).all() and (small + small == small * 2).all(), small / 2
        assert np.float64(2.2250738585072014e-308) / 4 * 4 == 2.2250738585072014e-308
        assert 5e-324 > 0 and 1e-310 / 2 > 0

    def everywhere():
        check()
        thread = threading.Thread(target=check)
        failures = []
        threading.excepthook = failures.append
        thread.start()
        thread.join()
        assert not failures, failures
"""


def test_loading_native_code_leaves_subnormals_alive():
    fresh(f"{SUBNORMALS}\n    everywhere()\n    import embed.cpu._native\n    everywhere()")


def test_computing_leaves_subnormals_alive():
    """On the calling thread and on new ones, after a team of two has run."""
    fresh(f"""{SUBNORMALS}
    from embed.cpu import _native
    x = np.full((4, 32), 1e-3, np.float32)
    for isa, missing in _native.instruction_sets().items():
        if missing is None:
            _native.layer_norm(isa, x, np.ones(32, np.float32), np.zeros(32, np.float32), eps=1e-5, threads=2)
    everywhere()
    """)
