"""The `embed` command on a model of plain Python: `python stub_command.py ARGUMENT...` is `embed ARGUMENT...`.

A text has as many tokens as words, plus two. Its vector is its first eight code points. Some texts misbehave, by name.
"""

import os
import resource
import sys
import time
import types
import warnings
from dataclasses import dataclass

import numpy as np

from embed.cli import main
from embed.errors import GuessWarning, OptionError, TextError, VectorError

DIMENSION = 8


@dataclass
class StubText:
    text: str
    tokens: int


class StubEmbedder:
    dimension = DIMENSION

    def __init__(self, normalize, maxseq):
        self.scale = 1 if normalize else 2
        self.maxseq = maxseq or 5

    def __enter__(self):
        return self

    def __exit__(self, *ex):
        pass

    def tokenize(self, texts, *, prompt=None, prompt_name=None):
        if prompt_name not in (None, "query"):
            raise OptionError(f"prompt_name {prompt_name!r} is not one of this model's prompts (query)")
        prefix = "query: " if prompt_name else prompt or ""
        for i, text in enumerate(texts):
            if text == "untokenisable":
                raise TextError(f"text {i} holds something odd", i)
        return [StubText(prefix + text, len((prefix + text).split()) + 2) for text in texts]

    def encode_tokens(self, tokenized):
        return np.stack([self.vector(i, item.text) for i, item in enumerate(tokenized)])

    def vector(self, index, text):
        if text == "not finite":
            raise VectorError(f"text {index}: the model's vector is not finite", index)
        if text == "a fault":
            raise ZeroDivisionError("division by zero")
        if text == "sleep":
            time.sleep(60)
        if text == "nap":
            time.sleep(0.4)
        points = [ord(char) for char in text[:DIMENSION]]
        return np.array(points + [0] * (DIMENSION - len(points)), np.float32) * self.scale


def load(model, *, device, pool, normalize, maxseq, threads):
    if pool is None and "STUB_GUESS" in os.environ:
        warnings.warn("model: no file says how to pool;\ntaking cls", GuessWarning, stacklevel=2)
    if maxseq is not None and maxseq < 3:
        raise OptionError(f"maxseq {maxseq}: this model takes 3 to 512 tokens")
    return StubEmbedder(normalize, maxseq)


stub = types.ModuleType("embed.embedder")
stub.Embedder, stub.load = StubEmbedder, load
sys.modules["embed.embedder"] = stub
code = main()
if "STUB_MEMORY" in os.environ:
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} KiB", file=sys.stderr)
sys.exit(code)
