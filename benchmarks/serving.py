"""How does `embed serve` do under load, beside FastAPI with sentence-transformers?

    python benchmarks/serving.py MODEL_DIR --peer PYTHON [--rounds 7] [--seconds 3] [--scenario clients …]
    python benchmarks/serving.py MODEL_DIR [--service COMMAND] [--against COMMAND]

PYTHON is an interpreter that has what fastapi_service.py imports. Without --peer and --against the service is measured
alone. COMMAND starts another one, e.g. '/other/bin/embed serve {model} --addr 127.0.0.1:{port}'. Both run all the
time, and take turns, cell after cell, round after round, so that a machine that drifts hits both alike; one program,
load_generator.py, asks both. Scenarios:

  clients     1 to 32 clients (--clients) that post a short text each, over and over
  batches     one client that posts 16 short texts, or 64
  long        one client that posts a text of 2,000 words
  fairness    a short text, over and over, beside a client that keeps posting 500 texts, and /health every 50 ms

Printed are Markdown rows of medians over the rounds (p99/p50 is the median of each round's), and how many times the
other's answers a second ours are: median, and 10th and 90th percentile of the rounds' ratios. In fairness, latencies
are of all rounds together. Texts are normal words of several languages, drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from forward import WORDS, cpu_name
from numpy.typing import NDArray
from services import EMBED, Service, embed_version, get, peer_command, peer_version, post

SCENARIOS = ("clients", "batches", "long", "fairness")
CLIENTS = (1, 2, 4, 8, 16, 32)
SHORT_WORDS = 8
FAIRNESS_TIMES = 3  # as long as another cell: the answers of interest are few


@dataclass(frozen=True)
class Cell:
    """A load, as the load generator takes it; of its groups the first is the one that is reported."""

    name: str
    groups: dict[str, dict[str, Any]]
    times: float = 1.0  # as long as others


@dataclass(frozen=True)
class Run:
    """What came of a cell in one round; `chunk_s` is the mean time of the service's chunks, where it tells."""

    groups: dict[str, dict[str, Any]]
    chunk_s: float | None

    @property
    def first(self) -> dict[str, Any]:
        return next(iter(self.groups.values()))


Results = dict[str, list[Run]]  # of a service: cell -> its rounds


def cells(scenarios: list[str], clients: list[int]) -> list[Cell]:
    random = np.random.default_rng(11)

    def text(words: int = SHORT_WORDS) -> str:
        return " ".join(random.choice(WORDS, words))

    def asking(count: int, *requests: str, pause_s: float = 0.0) -> dict[str, Any]:
        return {"clients": count, "requests": requests, "pause_s": pause_s}

    short = [post([text()]) for _ in range(97)]
    many = {count: [post([text() for _ in range(count)]) for _ in range(5)] for count in (16, 64, 500)}
    long = [post([text(2000)]) for _ in range(5)]
    fairness = {
        "short": asking(1, *short),
        "500": asking(1, *many[500]),
        "health": asking(1, get("/health"), pause_s=0.05),
    }
    built = {
        "clients": [Cell(f"{n} client{'s' * (n > 1)}", {"short": asking(n, *short)}) for n in clients],
        "batches": [Cell(f"{n} texts", {"batch": asking(1, *many[n])}) for n in (16, 64)],
        "long": [Cell("2,000 words", {"long": asking(1, *long)})],
        "fairness": [Cell("fairness", fairness, FAIRNESS_TIMES)],
    }
    return [cell for scenario in scenarios for cell in built[scenario]]


class Generator:
    """load_generator.py, waiting for loads."""

    def __init__(self) -> None:
        program = str(Path(__file__).with_name("load_generator.py"))
        self.process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, cell: Cell, service: Service, seconds: float) -> Run:
        """Load `service` with `cell`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before = service.chunks()
        load = {"port": service.port, "seconds": seconds * cell.times, "groups": cell.groups}
        self.process.stdin.write(json.dumps(load) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{service.name}, {cell.name}: the load generator ended")
        after, chunk_s = service.chunks(), None
        if before and after and after[1] > before[1]:
            chunk_s = (after[0] - before[0]) / (after[1] - before[1])
        return Run(json.loads(line), chunk_s)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(services: list[Service], planned: list[Cell], rounds: int, seconds: float) -> list[Results]:
    """Run all cells on all services, `rounds` times; who goes first changes from round to round."""
    results: list[Results] = [defaultdict(list) for _ in services]
    with contextlib.closing(Generator()) as generator:
        for turn in range(rounds):
            order = list(range(len(services)))[:: 1 if turn % 2 == 0 else -1]
            for cell in planned:
                for index in order:
                    results[index][cell.name].append(generator.run(cell, services[index], seconds))
            print(f"round {turn + 1} of {rounds} done", file=sys.stderr)
    return results


# --- what is printed


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3 if seconds else (np.nan, np.nan)
    return float(p50), float(p99)


def summary(runs: list[Run]) -> tuple[NDArray[np.float64], list[str]]:
    """Return each round's answers a second, and what a table says of the rounds."""
    rates = np.array([run.first["rate"] for run in runs])
    each = np.array([percentiles(run.first["seconds"]) for run in runs])
    p50, p99 = np.median(each, axis=0)
    spread = np.median(each[:, 1] / each[:, 0])
    return rates, [number(float(np.median(rates))), number(p50), number(p99), f"{spread:.2f}"]


def number(value: float) -> str:
    """Return three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def print_table(services: list[Service], results: list[Results], planned: list[Cell]) -> None:
    planned = [cell for cell in planned if cell.name != "fairness"]
    if not planned:
        return
    columns = [f"{service.name}, answers/s | p50 ms | p99 ms | p99/p50" for service in services]
    ratio = ["times"] if len(services) == 2 else []
    print(f"\n| load | {' | '.join(columns + ratio)} |\n|{' --- |' * (1 + 4 * len(services) + len(ratio))}")
    for cell in planned:
        summaries = [summary(result[cell.name]) for result in results]
        row = [cell.name, *(word for _, words in summaries for word in words)]
        if len(services) == 2:
            low, middle, high = np.percentile(summaries[0][0] / summaries[1][0], [10, 50, 90])
            row.append(f"{middle:.2f} ({low:.2f}\N{EN DASH}{high:.2f})")
        print(f"| {' | '.join(row)} |")


def print_monotonicity(services: list[Service], results: list[Results], planned: list[Cell]) -> None:
    """Print throughput at each number of clients over the best at fewer; 0.9 is what we promise."""
    names = [cell.name for cell in planned if "short" in cell.groups and cell.name != "fairness"]
    if len(names) < 2:
        return
    print()
    for service, result in zip(services, results, strict=True):
        rates = [float(np.median([run.first["rate"] for run in result[name]])) for name in names]
        ratios = [rate / max(rates[:index]) for index, rate in enumerate(rates) if index]
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(names[1:], ratios, strict=True))
        print(f"{service.name}: throughput over the best with fewer clients: {told}; least {min(ratios):.2f}")


def print_fairness(services: list[Service], results: list[Results]) -> None:
    if not any("fairness" in result for result in results):
        return
    print("\n| beside a client that posts 500 texts | short text: p50 ms | p99 ms | one chunk ms | p99 / chunk", end="")
    print(" | 500 texts: p50 ms | /health: p50 ms | p99 ms |\n|" + " --- |" * 8)
    for service, result in zip(services, results, strict=True):
        runs = result["fairness"]
        times = {name: percentiles([s for run in runs for s in run.groups[name]["seconds"]]) for name in runs[0].groups}
        chunks = [run.chunk_s * 1e3 for run in runs if run.chunk_s is not None]
        chunk = float(np.median(chunks)) if chunks else None
        chunk_words = ["-", "-"] if chunk is None else [number(chunk), f"{times['short'][1] / chunk:.2f}"]
        row = [service.name, *map(number, times["short"]), *chunk_words, number(times["500"][0])]
        print(f"| {' | '.join([*row, *map(number, times['health'])])} |")
        count = sum(len(run.first["seconds"]) for run in runs)
        print(f"{service.name}: {count} short texts answered", file=sys.stderr)


def check_equal(services: list[Service]) -> int:
    """Refuse services whose vectors differ, since then it isn't the same model; return their dimension."""
    ours, theirs = (np.array(service.vectors([" ".join(WORDS)])[0]) for service in (services[0], services[-1]))
    apart = 1 - float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))
    if apart > 1e-5:
        raise SystemExit(f"the services' vectors differ (1 - cosine is {apart:.1e}); is it the same model?")
    return len(ours)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", metavar="PYTHON", help="compare with fastapi_service.py run by this interpreter")
    parser.add_argument("--service", metavar="COMMAND", default=EMBED, help="measure this instead of embed serve")
    parser.add_argument("--against", metavar="COMMAND", help="compare with this instead of a peer")
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a cell")
    options = parser.parse_args()
    if options.peer and options.against:
        parser.error("give --peer or --against, not both")
    return options


def main() -> None:
    options = arguments()
    planned = cells(options.scenario, options.clients)
    commands = [("embed", options.service)]
    if options.peer or options.against:
        commands.append(("FastAPI", peer_command(options.peer)) if options.peer else ("the other", options.against))
    print(f"{cpu_name()}; {platform.platform()}, Python {platform.python_version()}; {datetime.date.today()}")
    print(
        f"{embed_version()}; {peer_version(options.peer) if options.peer else options.against or 'alone'}", flush=True
    )
    with contextlib.ExitStack() as stack:
        services = [stack.enter_context(Service.start(name, command, options.model)) for name, command in commands]
        model = f"{Path(options.model).resolve().name} ({check_equal(services)} dimensions)"
        print(f"{model}; {options.rounds} rounds, {options.seconds:g} s a cell", flush=True)
        results = measure(services, planned, options.rounds, options.seconds)
    print_table(services, results, planned)
    print_monotonicity(services, results, planned)
    print_fairness(services, results)


if __name__ == "__main__":
    main()
