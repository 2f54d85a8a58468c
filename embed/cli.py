"""The `embed` command: finds the command's module, imports it late, and turns errors into a sentence and an exit code.

Imports nothing but the standard library, so that `embed --version` and shell completion stay quick.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from embed.console import check_stdout, drop_output, leave, put, say
from embed.errors import AddressError, DeviceError, EmbedError, GuessWarning, ModelError, OptionError, TruncationWarning
from embed.version import __version__

COMMANDS = {
    "serve": "answer over HTTP with the vectors of texts",
    "text": "turn texts into vectors",
    "info": "say what a model folder holds and what this machine can do",
    "executor": "compute for another program: JSON lines on standard input and output",
    "download": "fetch a model of the hub, or the demo model, into its cache folder",
}

FAILED, REFUSED, NO_MODEL, NO_ADDRESS, INTERRUPTED, READER_GONE = 1, 2, 3, 4, 130, 141

EXIT_CODES = """\
exit codes:
  0    done; of embed serve: ended by SIGTERM or SIGINT, every request answered
  1    a text, or reading or writing, failed; of embed serve: ended otherwise
  2    an option, an argument or the device that was asked for is refused
  3    the model cannot be loaded
  4    the address cannot be listened on
  130  interrupted (Ctrl-C)
  141  whatever read the output went away (as after | head)

An error is one line on standard error; --debug adds the Python traceback.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `OptionError`s, so that they look like every other error."""

    def __init__(self, prog: str, **settings: str) -> None:
        super().__init__(
            prog=prog,
            allow_abbrev=False,  # or a new option would change what an old script means
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            **settings,  # type: ignore[arg-type]
        )
        self.add_argument("--help", action="help", help="show this and exit (also: -h)")
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: object = None) -> None:
        """Print --help or --version; argparse's own method keeps quiet about a full disk."""
        check_stdout()
        put(message.encode())

    def parse_mixed(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return options and operands, which may come in any order; everything after `--` is an operand.

        argparse's own positionals can't do that below a command: `text demo --pool cls Hello` would lose "Hello".
        """
        split = arguments.index("--") if "--" in arguments else len(arguments)
        options, operands = self.parse_known_args(_with_long_help(arguments[:split]))
        for operand in operands:
            if re.match(r"--?[A-Za-z][\w-]*(=|$)", operand):
                self.error(f"unknown option {operand.split('=')[0]} (a text that looks like an option goes after --)")
        return options, operands + list(arguments[split + 1 :])


def command() -> NoReturn:
    """Be the `embed` command: run it and end the process with its exit code."""
    leave(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; raises nothing."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        for kind in (GuessWarning, TruncationWarning):  # nothing silent, and no error, whatever PYTHONWARNINGS says
            warnings.simplefilter("always", kind)
        try:
            return _run(arguments)
        except BaseException as ex:  # the program's outermost frame: whatever it is becomes one line and a code
            code, message = _verdict(ex)
            if message is not None and _wants_debug(arguments):
                import traceback

                traceback.print_exc()
            if message is not None:
                say(f"error: {message}")
            drop_output()
            return code


def _run(arguments: list[str]) -> int:
    first = next((i for i, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
    try:
        _parser().parse_args(_with_long_help(arguments[:first]))
        if first == len(arguments):
            raise OptionError(f"no command given; choose one of {', '.join(COMMANDS)} (see embed --help)")
        command = _command(arguments[first])
        parser = Parser(f"embed {arguments[first]}", usage=command.USAGE, description=command.__doc__)
        command.add_options(parser)
        options, operands = parser.parse_mixed(arguments[first + 1 :])
    except SystemExit:  # argparse leaves this way after --help and --version
        return 0
    code: int = command.run(options, operands)
    return code


def _with_long_help(arguments: Sequence[str]) -> list[str]:
    """Spell -h as --help. As an option of its own, argparse would see it in "-hello" and complain about "ello"."""
    return ["--help" if argument == "-h" else argument for argument in arguments]


def _command(name: str) -> Any:
    if name not in COMMANDS:
        raise OptionError(f"{name!r} is not a command; choose one of {', '.join(COMMANDS)} (see embed --help)")
    return importlib.import_module(f"embed.commands.{name}")


def _parser() -> Parser:
    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    parser = Parser(
        "embed",
        usage="embed COMMAND ... | embed --version | embed COMMAND --help",
        description=f"Turn text into vectors with XLM-RoBERTa-family encoders.\n\ncommands:\n{commands}",
    )
    parser.add_argument("--version", action="version", version=f"embed {__version__}")
    return parser


def _verdict(ex: BaseException) -> tuple[int, str | None]:
    """Return the exit code and the message, None where nothing is to be said."""
    if isinstance(ex, KeyboardInterrupt):
        return INTERRUPTED, None
    if isinstance(ex, BrokenPipeError):
        return READER_GONE, None
    if isinstance(ex, EmbedError):
        codes = {ModelError: NO_MODEL, OptionError: REFUSED, DeviceError: REFUSED, AddressError: NO_ADDRESS}
        return next((code for kind, code in codes.items() if isinstance(ex, kind)), FAILED), str(ex)
    if isinstance(ex, OSError) and ex.strerror:
        return FAILED, f"{ex.filename}: {ex.strerror}" if ex.filename else ex.strerror
    if isinstance(ex, MemoryError):
        return FAILED, "out of memory; a smaller model, shorter texts or a smaller --maxseq need less"
    return FAILED, f"a fault in embed itself: {type(ex).__name__}: {ex} (--debug shows where)"


def _wants_debug(arguments: list[str]) -> bool:
    return "--debug" in arguments[: arguments.index("--") if "--" in arguments else None]


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    say(f"warning: {' '.join(str(message).split())}")
