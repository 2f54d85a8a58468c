"""What does the service take: disk, memory, and time until its first answer?

    python benchmarks/footprint.py MODEL_DIR [--peer PYTHON] [--runs 5] [--no-install]

Beside it, with --peer, fastapi_service.py run by PYTHON, an interpreter in an environment made for that alone. Printed
are Markdown rows:

  installed    bytes of the files that `pip install .` puts into a fresh virtual environment (the peer's: what its
               environment has), pip and setuptools aside
  memory       PSS of all the service's processes, two seconds after their first answer: private pages, and of shared
               ones each process's share; a model file that is mapped counts as far as it was touched
  unloaded     the same where --unload-after has given the model's memory back
  first answer from the start of the process to the first vector over HTTP, median of the runs; files in the page cache
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forward import cpu_name
from services import EMBED, Service, embed_version, peer_command, peer_version

SOURCE = Path(__file__).resolve().parent.parent
IDLE_S = 2.0
UNLOAD_AFTER_S = 1.0
NOT_COUNTED = ("pip", "setuptools", "_distutils_hack")  # what a fresh environment may have
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def installed_mb(python: str) -> float:
    """Return the megabytes of the packages that `python` has installed in its environment."""
    said = subprocess.run([python, "-c", SITE], check=True, capture_output=True, text=True).stdout.strip()
    parts = [part for part in Path(said).iterdir() if part.name.split("-")[0].split(".")[0] not in NOT_COUNTED]
    files = [file for part in parts for file in (part, *part.rglob("*"))]
    return sum(file.lstat().st_size for file in files if not file.is_dir()) / 1e6


def fresh_mb() -> float:
    """Return the megabytes that installing the source beside this file adds to a fresh environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(SOURCE)], check=True)
        return installed_mb(python)


def resident_mb(service: Service) -> tuple[float, int]:
    """Return the PSS of the service's processes, and how many they are."""
    processes = service.processes()
    lines = [line for pid in processes for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6, len(processes)


def start(name: str, command: str, model: str, runs: int, idle_s: float) -> tuple[list[float], list[float], int]:
    """Return, of each run, the seconds to the first answer and the idle megabytes; and the number of processes."""
    with Service.start(name, command, model):
        pass  # so that all files are in the page cache
    seconds, megabytes, count = [], [], 0
    for _ in range(runs):
        with Service.start(name, command, model) as service:
            time.sleep(idle_s)
            memory, count = resident_mb(service)
            seconds.append(service.start_s)
            megabytes.append(memory)
    return seconds, megabytes, count


def row(name: str, command: str, model: str, runs: int, disk_mb: float | None = None, *, idle_s: float = IDLE_S) -> str:
    seconds, megabytes, count = start(name, command, model, runs, idle_s)
    disk = "-" if disk_mb is None else f"{disk_mb:,.0f} MB"
    memory = f"{statistics.median(megabytes):,.0f} MB ({count} process{'es' * (count > 1)})"
    middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return f"| {name} | {disk} | {memory} | {middle:.2f} s ({low:.2f}\N{EN DASH}{high:.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter of an environment for fastapi_service.py alone")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--service", metavar="COMMAND", default=EMBED, help="measure this instead of embed serve")
    parser.add_argument("--no-install", action="store_true", help="leave out embed's installed megabytes")
    options = parser.parse_args()
    versions = f"{embed_version()}; {peer_version(options.peer) if options.peer else 'alone'}"
    print(
        f"{cpu_name()}; {platform.platform()}, Python {platform.python_version()}; {datetime.date.today()}; {versions}"
    )
    print(f"{Path(options.model).resolve().name}, {options.runs} runs; memory is PSS\n")
    print("| service | installed | memory, loaded and idle | start to first answer |\n| --- | --- | --- | --- |")
    disk_mb = None if options.no_install else fresh_mb()
    print(row("embed serve", options.service, options.model, options.runs, disk_mb), flush=True)
    if options.service == EMBED:
        command, idle_s = f"{EMBED} --unload-after {UNLOAD_AFTER_S:g}", IDLE_S + 2 * UNLOAD_AFTER_S
        print(row("embed serve, unloaded", command, options.model, options.runs, idle_s=idle_s), flush=True)
    if options.peer:
        command, disk_mb = peer_command(options.peer), installed_mb(options.peer)
        print(row("FastAPI", command, options.model, options.runs, disk_mb))


if __name__ == "__main__":
    main()
