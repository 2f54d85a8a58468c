"""The C++ driver: its own checks, here and as NEON under qemu; whole forwards compared by their bytes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from encoder_weights import encoder, forward, random_batch, read_weights
from kernel_inputs import runnable
from native.dump import dump

HOME = Path(__file__).parent
SHAPES = [
    tiny.shape(32, 4, 64, 2),
    tiny.shape(312, 12, 600, 2, hidden_act="gelu_new"),
    tiny.shape(128, 1, 96, 1, hidden_act="silu"),
]
Driver = list[str]  # the command


def built(variant: str, *needs: str) -> Driver:
    """Build the driver as its Makefile says and return how to run it; without a tool the test is skipped by name."""
    for tool in ("make", *needs):
        if not shutil.which(tool):
            pytest.skip(f"there is no {tool} to build and run the {variant} driver with")
    target = f"build/{variant}/driver"
    made = subprocess.run(["make", "-j2", "-s", "-C", HOME, target], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return [str(HOME / target)]


@pytest.fixture(scope="module")
def native() -> Driver:
    return built("native", "g++")


@pytest.fixture(scope="module")
def aarch64() -> Driver:
    return ["qemu-aarch64", *built("aarch64", "aarch64-linux-gnu-g++", "qemu-aarch64")]


def run(driver: Driver, *arguments: str | Path) -> bytes:
    done = subprocess.run([*driver, *map(str, arguments)], capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


def test_the_machine_s_own_checks(native: Driver) -> None:
    last = run(native).decode().splitlines()[-1]
    assert last.endswith(" passed, 0 failed")
    assert int(last.split()[0]) >= 250 * len(runnable())


def test_the_driver_runs_what_the_package_runs(native: Driver) -> None:
    assert run(native, "isas").decode().split() == runnable()


def test_neon_passes_its_checks(aarch64: Driver) -> None:
    assert run(aarch64, "isas").decode().split() == ["scalar", "neon"]
    assert run(aarch64).decode().splitlines()[-1].endswith(" passed, 0 failed")


def dumped(model: Path, path: Path) -> bytes:
    """Write a forward of the model to `path`; return the bytes of its vectors by the package itself."""
    weights = read_weights(model)
    batch = random_batch(weights.config, [3, 70, 1, 17])
    dump(path, weights, batch)
    return forward(encoder(runnable()[-1], weights), weights, batch).tobytes()


@pytest.fixture(params=SHAPES, ids=lambda shape: f"width {shape['hidden_size']}")
def random_forward(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "forward.bin"
    return path, dumped(tiny.make("xlmr", tmp_path / "model", config=request.param), path)


def test_forwards_have_the_package_s_bytes(native: Driver, random_forward: tuple[Path, bytes]) -> None:
    path, want = random_forward
    assert {isa: run(native, "forward", path, isa) == want for isa in runnable()} == dict.fromkeys(runnable(), True)


def test_neon_has_the_same_bytes(aarch64: Driver, random_forward: tuple[Path, bytes]) -> None:
    path, want = random_forward
    assert run(aarch64, "forward", path, "neon") == want
    assert run(aarch64, "forward", path, "scalar") == want


@pytest.mark.parametrize("name", ["e5-small", "minilm"])
def test_neon_has_the_same_bytes_on_real_models(
    aarch64: Driver, name: str, real_model: Callable[[str], Path], tmp_path: Path
) -> None:
    want = dumped(real_model(name), tmp_path / "forward.bin")
    assert run(aarch64, "forward", tmp_path / "forward.bin", "neon") == want


def test_a_short_file_is_refused(native: Driver, random_forward: tuple[Path, bytes]) -> None:
    path, _ = random_forward
    path.write_bytes(path.read_bytes()[:-4])
    done = subprocess.run([*native, "forward", path, "scalar"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "too short" in done.stderr
