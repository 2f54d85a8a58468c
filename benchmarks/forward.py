"""How long do texts take, beside sentence-transformers?

    python benchmarks/forward.py MODEL_DIR --peer PYTHON [--rounds 7] [--threads N]

PYTHON is an interpreter that has sentence-transformers. Each engine lives in a process of its own and they take turns,
round after round, so that a machine that drifts hits both alike. Printed per workload: median milliseconds of each, and
the median ratio with its 10th and 90th percentile over the rounds. Texts are normal words of several languages, drawn
with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

VOCABULARY = """ship harbour bread winter letter market bridge copper garden stone Brücke Fenster Wasser Straße lumière
    rivière fenêtre camino piedra ventana город река письмо мост зима 天気 手紙 橋 市場 窗户 冬天 面包"""
WORDS = VOCABULARY.split()
REPEAT_S = 1.0  # how long an engine runs a workload in one round


def workloads() -> dict[str, list[str]]:
    random = np.random.default_rng(11)

    def text(words: int) -> str:
        return " ".join(random.choice(WORDS, words))

    lengths = np.clip(random.lognormal(3.6, 0.9, 64), 3, 380)
    return {
        "1 short text": [text(8)],
        "1 x 120 words": [text(120)],
        "16 short texts": [text(8) for _ in range(16)],
        "16 x 120 words": [text(120) for _ in range(16)],
        "64 mixed": [text(int(n)) for n in lengths],
    }


def load_embed(model: str, threads: int) -> tuple[str, Callable[[list[str]], object]]:
    import embed

    embedder = embed.load(model, threads=threads)
    return f"embed {embed.__version__} ({embedder.device})", embedder.encode


def load_sentence_transformers(model: str, threads: int) -> tuple[str, Callable[[list[str]], object]]:
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    loaded = sentence_transformers.SentenceTransformer(model, device="cpu")
    name = f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}"
    return name, lambda texts: loaded.encode(texts, normalize_embeddings=True, show_progress_bar=False)


ENGINES = {"embed": load_embed, "sentence-transformers": load_sentence_transformers}


def serve(engine: str, model: str, threads: int) -> None:
    """Answer each line of texts on stdin with the seconds that one `encode` took, the median over REPEAT_S."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    name, encode = ENGINES[engine](model, threads)
    print(json.dumps(name), file=answers, flush=True)
    for line in sys.stdin:
        texts, times = json.loads(line), []
        encode(texts)
        while sum(times) < REPEAT_S:
            start = time.perf_counter()
            encode(texts)
            times.append(time.perf_counter() - start)
        print(json.dumps(statistics.median(times)), file=answers, flush=True)


class Child:
    def __init__(self, python: str, engine: str, model: str, threads: int) -> None:
        command = [python, __file__, model, "--serve", engine, "--threads", str(threads)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        environment |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.name = self.answer()

    def answer(self) -> object:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended with exit code {self.process.wait()}")
        return json.loads(line)

    def seconds(self, texts: list[str]) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(texts) + "\n")
        self.process.stdin.flush()
        return float(str(self.answer()))


def compare(ours: Child, peer: Child, rounds: int) -> None:
    print(f"{'workload':16} {'embed ms':>9} {'peer ms':>9}   peer / embed (10th-90th percentile)")
    for workload, texts in workloads().items():
        pairs = [(ours.seconds(texts), peer.seconds(texts)) for _ in range(rounds)]
        ratios = np.array([theirs / mine for mine, theirs in pairs])
        mine, theirs = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        low, middle, high = np.percentile(ratios, [10, 50, 90])
        print(f"{workload:16} {mine:9.2f} {theirs:9.2f}   {middle:.2f} ({low:.2f}-{high:.2f})", flush=True)


def cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--serve", choices=list(ENGINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.threads)
        return
    ours = Child(sys.executable, "embed", options.model, options.threads)
    peer = Child(options.peer, "sentence-transformers", options.model, options.threads)
    print(f"{cpu_name()}, {options.threads} threads; {ours.name}; {peer.name}; {options.rounds} rounds")
    compare(ours, peer, options.rounds)


if __name__ == "__main__":
    main()
