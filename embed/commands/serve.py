"""Serve vectors over HTTP: POST and GET /create_embedding, GET /health, /metrics and /openapi.json.

MODEL is the path of a model folder, a name on the Hugging Face hub such as BAAI/bge-m3, or `demo`; what isn't there
yet is fetched. /health answers at once; a line on standard error says when the model is loaded. Every option has a
variable: that of --max-texts is EMBED_MAX_TEXTS.

The forward runs in a child process (see embed executor), which is replaced when it dies or hangs.

SIGTERM and SIGINT (Ctrl-C) end it when the requests that are running have their answers, a second one at once. SIGHUP
loads the model and the token file again; the socket stays open meanwhile, and only one model is ever in memory.
"""

from __future__ import annotations

import argparse
import dataclasses

from embed import models
from embed.config import POOLINGS
from embed.console import hold_standard_streams, say
from embed.errors import OptionError
from embed.executor.budgets import Budgets
from embed.machine import DEVICES
from embed.server import address
from embed.server.address import Listener
from embed.server.limits import Limits
from embed.server.settings import DEFAULT_ADDRESS, LOG_LEVELS, Settings

USAGE = "embed serve [OPTION...] [MODEL]     e.g. embed serve demo"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options. Those not given are None, so that their variables count."""
    defaults = {setting.name: setting.default for setting in dataclasses.fields(Settings)}
    add = parser.add_argument
    add("--addr", metavar="ADDRESS", help=f"HOST:PORT, [IPV6]:PORT or unix:PATH (default: {DEFAULT_ADDRESS})")
    add("--token", metavar="TOKEN", help="ask for this token; ps shows it: EMBED_TOKEN and --token-file keep it secret")
    add("--token-file", metavar="FILE", help="ask for the token that FILE holds")
    add("--maxseq", type=int, metavar="N", help="cut texts to N tokens (default: what the model folder says)")
    add("--pool", choices=POOLINGS, help="how token states become a vector (default: what the model folder says)")
    add("--no-normalize", action="store_true", default=None, help="don't scale vectors to length 1 unless asked to")
    add("--device", choices=DEVICES, help=f"where to compute (default: {defaults['device']})")
    add("--threads", type=int, metavar="N", help="threads to compute on (default: every CPU this process may use)")
    add("--max-texts", type=int, metavar="N", help=f"texts in one request (default: {defaults['max_texts']})")
    add("--model-name", metavar="NAME", help="what answers call the model (default: its folder's name)")
    add("--log-level", choices=LOG_LEVELS, help=f"what is logged on stderr (default: {defaults['log_level']})")
    add("--access-log", action="store_true", default=None, help="log each request on stdout, without its query")
    never = "give the model's memory back after S seconds without a request (default: 0, never)"
    add("--unload-after", type=float, metavar="S", help=never)
    warm = "load the model at the start (default), or with the first request"
    add("--warmup", action=argparse.BooleanOptionalAction, default=None, help=warm)
    add("--in-process", action="store_true", default=None, help="compute in the service's own process")
    seconds = f"seconds that running requests get at the end (default: {defaults['graceful']})"
    add("--graceful", type=int, metavar="S", help=seconds)


def run(options: argparse.Namespace, operands: list[str]) -> int:
    if len(operands) > 1:
        raise OptionError(f"embed serve takes one model, not {len(operands)}: {' '.join(operands[:3])}")
    hold_standard_streams()
    settings = _settings(options, operands)
    listener = address.inherited() or address.bind(address.parse(settings.addr))
    try:
        _warn(settings, listener)
        if settings.model != models.DEMO and models.hub_name(settings.model) is None:
            models.resolve(settings.model)  # what may take a download is the worker's, while /health is answered
        from embed.server.serve import serve  # once the address is ours: gunicorn takes 0.1 s to import

        return serve(settings, listener)
    finally:
        listener.close()


def _settings(options: argparse.Namespace, operands: list[str]) -> Settings:
    names = {setting.name for setting in dataclasses.fields(Settings)}
    given = {name: value for name, value in vars(options).items() if name in names}
    settings = Settings.from_environment({**given, "model": operands[0] if operands else None})
    settings.check()
    Limits.from_environment()
    Budgets.from_environment()
    return settings


def _warn(settings: Settings, listener: Listener) -> None:
    if settings.secret() is None and not listener.is_local:
        say(
            f"warning: {listener.url} is open to everybody who can reach it; "
            "ask for a token with --token-file or EMBED_TOKEN, or listen on 127.0.0.1"
        )
