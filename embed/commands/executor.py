"""Compute vectors for another program: JSON lines in on standard input, JSON lines out on standard output.

A request is {"type":"embed","id":1,"texts":["Hello"]}; its answer carries the vectors as base64 of little-endian
float32 numbers. docs/executor.md has all messages. It ends with the end of its input. `embed serve` runs its model so.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from embed import models
from embed.config import POOLINGS
from embed.console import hold_standard_streams
from embed.errors import EmbedError, OptionError
from embed.executor.channel import Channel, end_with
from embed.machine import DEVICES

if TYPE_CHECKING:
    from embed.executor.child import Child

USAGE = "embed executor [OPTION...] [MODEL]     e.g. embed executor demo"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--maxseq", type=int, metavar="N", help="cut texts to N tokens (default: what the model folder says)")
    add("--pool", choices=POOLINGS, help="how token states become a vector (default: what the model folder says)")
    add("--device", choices=DEVICES, default="auto", help="where to compute (default: auto)")
    add("--threads", type=int, metavar="N", help="threads to compute on (default: every CPU this process may use)")
    add("--parent", type=int, metavar="PID", help="end when PID does, the process that starts this one")


def run(options: argparse.Namespace, operands: list[str]) -> int:
    hold_standard_streams()
    channel = Channel()
    if options.parent is not None:
        end_with(options.parent)
    from embed.executor import child, protocol  # late: NumPy takes 0.1 s

    try:
        _child(channel, options, operands).run()
    except (EmbedError, MemoryError) as ex:
        channel.send(protocol.encode(child.failure_of(ex)))
        raise
    return 0


def _child(channel: Channel, options: argparse.Namespace, operands: list[str]) -> Child:
    from embed.executor.budgets import Budgets
    from embed.executor.child import Child
    from embed.machine import thread_count
    from embed.model_folder import ModelFolder, check_device

    if len(operands) > 1:
        raise OptionError(f"embed executor takes one model, not {len(operands)}: {' '.join(operands[:3])}")
    model = operands[0] if operands else models.named(None)
    if model is None:
        raise OptionError("no model given; name a model folder, or demo (embed executor demo), or set EMBED_MODEL")
    check_device(options.device)
    threads = thread_count(options.threads)
    folder = ModelFolder.open(model, pool=options.pool, maxseq=options.maxseq)
    return Child(channel, folder, name=model, threads=threads, report_s=Budgets.from_environment().report_s)
