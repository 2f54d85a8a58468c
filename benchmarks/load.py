"""What does it take to get the first vector: seconds and memory?

    python benchmarks/load.py MODEL_DIR [--runs 5]

Each run is a fresh interpreter; the file is read once before, so that the page cache is warm. Printed: seconds in the
tokenizer and in all of `embed.load`, the first vector, and resident memory (VmRSS) beyond the tokenizer's, with the
process's peak (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path


def status_mb(key: str) -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def measure(model: str) -> dict[str, float]:
    """Load `model` in this process; return seconds and megabytes."""
    import embed.embedder
    from embed.config import read_config
    from embed.tokenizer import Tokenizer

    start = time.perf_counter()
    tokenizer = Tokenizer.from_directory(Path(model), read_config(Path(model)))
    tokenizer_s = time.perf_counter() - start
    before_mb = status_mb("VmRSS")
    del tokenizer
    start = time.perf_counter()
    embedder = embed.load(model)
    load_s = time.perf_counter() - start
    loaded_mb = status_mb("VmRSS")
    start = time.perf_counter()
    embedder.encode("Hello, world!")
    return {
        "tokenizer_s": tokenizer_s,
        "load_s": load_s,
        "first_vector_s": time.perf_counter() - start,
        "resident_mb": loaded_mb,
        "beyond_tokenizer_mb": loaded_mb - before_mb,
        "peak_mb": status_mb("VmHWM"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.model)))
        return
    for file in Path(options.model).glob("*.safetensors"):
        with file.open("rb") as weights:
            while weights.read(1 << 24):
                pass
    command = [sys.executable, __file__, options.model, "--measure"]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(options.runs)]
    for key in runs[0]:
        values = sorted(run[key] for run in runs)
        print(f"{key:20} {statistics.median(values):9.2f}  ({values[0]:.2f}-{values[-1]:.2f})")


if __name__ == "__main__":
    main()
