"""What the service can be told: each setting is a flag of `embed serve`, an `EMBED_…` variable, and an argument."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embed.config import POOLINGS
from embed.errors import OptionError
from embed.machine import DEVICES, thread_count

DEFAULT_ADDRESS = "127.0.0.1:8000"
MAX_GRACEFUL_S = 86_400
MAX_UNLOAD_AFTER_S = 86_400 * 365
MAX_TEXTS = 1_000_000
SECRET = ("token", "token_file")  # two ways of saying one thing
OLD_VARIABLES = {"warmup": "EMBEDDING_WARMUP"}  # read where the new one is not set
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Settings:
    """The service's settings; `from_environment` fills in what the caller leaves out."""

    model: str
    addr: str = DEFAULT_ADDRESS
    token: str | None = field(default=None, repr=False)  # in no log
    token_file: str | None = None
    model_name: str | None = None
    maxseq: int | None = None
    pool: str | None = None
    no_normalize: bool = False
    device: str = "auto"
    threads: int | None = None
    max_texts: int = 4096
    log_level: str = "warning"
    access_log: bool = False
    graceful: int = 30  # seconds
    warmup: bool = True
    unload_after: float = 0.0  # seconds; 0 is never
    in_process: bool = False

    @classmethod
    def from_environment(cls, given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
        """Return settings of what is `given` and not None, else of `EMBED_…`, else the defaults.

        Raises `OptionError` naming the variable whose value is refused, or that no model is named.
        """
        values = {name: value for name, value in given.items() if value is not None}
        settled = set(values)
        if not settled.isdisjoint(SECRET):  # either takes the place of both variables
            settled.update(SECRET)
        for name in (name for name in _KINDS if name not in settled):
            variable = variable_of(name)
            if name in OLD_VARIABLES and not environ.get(variable, "").strip():
                variable = OLD_VARIABLES[name]
            text = environ.get(variable, "")
            # A blank variable counts as unset; but not where it would open a service that is meant to be closed.
            if text.strip() or (name in SECRET and variable in environ):
                values[name] = _KINDS[name](variable, text)
        if not str(values.get("model", "")).strip():
            raise OptionError("no model given; name a model folder, or demo (embed serve demo), or set EMBED_MODEL")
        return cls(**values)

    def check(self) -> None:
        """Raise `OptionError` for a value that no model and no machine could take."""
        for name, value, choices in (
            ("pool", self.pool, POOLINGS),
            ("device", self.device, DEVICES),
            ("log-level", self.log_level, LOG_LEVELS),
        ):
            if value is not None and value not in choices:
                raise OptionError(f"{name} {value!r} is not one of {', '.join(choices)}")
        thread_count(self.threads)
        if not 1 <= self.max_texts <= MAX_TEXTS:
            raise OptionError(f"max-texts {self.max_texts}: 1 to {MAX_TEXTS:,} can be taken")
        if not 0 <= self.graceful <= MAX_GRACEFUL_S:
            raise OptionError(f"graceful {self.graceful}: 0 to {MAX_GRACEFUL_S} seconds can be waited")
        if self.unload_after != 0 and not 0.1 <= self.unload_after <= MAX_UNLOAD_AFTER_S:  # NaN isn't, either
            raise OptionError(f"unload-after {self.unload_after:g}: 0 (never), or 0.1 seconds to a year can be waited")
        self.secret()

    def secret(self) -> str | None:
        """Return the token that requests must carry, or None for a service that is open.

        Raises `OptionError` for one that can't be sent in a header, and for a token file that can't be read.
        """
        if self.token is not None and self.token_file is not None:
            raise OptionError("give a token or a token file, not both")
        if self.token is not None:
            return _checked_token(self.token, "the token (--token, EMBED_TOKEN)")
        if self.token_file is not None and not self.token_file.strip():
            raise OptionError("the token file (--token-file, EMBED_TOKEN_FILE) is empty; leave it out, or name a file")
        return None if self.token_file is None else _token_of(Path(self.token_file))


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"EMBED_{name.upper()}"


def _token_of(path: Path) -> str:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as ex:
        raise OptionError(
            f"the token file {path} can't be read ({getattr(ex, 'strerror', None) or 'not UTF-8'})"
        ) from ex
    return _checked_token(text.strip("\r\n"), f"the token in {path}")


def _checked_token(token: str, name: str) -> str:
    if not token:
        raise OptionError(f"{name} is empty; leave it out for a service without one, or give at least one character")
    if not all("!" <= char <= "~" for char in token):
        raise OptionError(f"{name} has a character that a header can't carry; use ASCII without spaces")
    return token


def _text(_: str, text: str) -> str:
    return text


def _whole_number(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{variable} is {text!r}; a whole number is expected") from None


def _number(variable: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{variable} is {text!r}; a number is expected") from None


def _yes_or_no(variable: str, text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.strip().lower() not in words:
        raise OptionError(f"{variable} is {text!r}; 1 or 0 is expected")
    return words[text.strip().lower()]


_READERS = {
    "str": _text,
    "str | None": _text,
    "int": _whole_number,
    "int | None": _whole_number,
    "float": _number,
    "bool": _yes_or_no,
}
_KINDS = {setting.name: _READERS[str(setting.type)] for setting in dataclasses.fields(Settings)}
