"""The engine of a service: the forward runs in a child process, which is replaced when it hangs or dies.

Nothing here retries: which requests share the blame for a child's death is for the caller to find out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embed.batching import I32
from embed.encoder import Progress
from embed.errors import EmbedError, ExecutorError, StateError, TextError
from embed.executor import process, protocol
from embed.executor.budgets import STARTUP_VARIABLE, WATCHDOG_VARIABLE, Budgets
from embed.executor.process import ChildEnded, ChildProcess
from embed.executor.protocol import KINDS, Failure, ProtocolError, Ready, Request, Result
from embed.model_folder import ModelFolder

SHOWN_WORDS = 200  # characters of a child's last words in an error
MAX_STRAYS = 20  # foreign lines of one child that are logged


class Supervisor:
    """An `Engine`. Only one thread may use it, and it must live for as long as this does: its end ends the child."""

    def __init__(self, command: Sequence[str], *, dimension: int, budgets: Budgets, log: Callable[[str], None]) -> None:
        """Run `command` at each load; `log` is told of what goes wrong with it."""
        self.description = "none"
        self.last_failure: str | None = None
        self._command = command
        self._dimension = dimension
        self._budgets = budgets
        self._log = log
        self._child: ChildProcess | None = None
        self._is_ready = False  # whether the child has said so
        self._number = 0  # of the last request
        self._strays = 0
        self._died: Callable[[], None] = lambda: None

    @property
    def is_loaded(self) -> bool:
        return self._child is not None and not self._child.has_ended

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        child = self._child
        return None if child is None else child.pid

    @property
    def patience_s(self) -> float:
        return self._budgets.watchdog_s

    def watch(self, died: Callable[[], None]) -> None:
        self._died = died

    def load(self) -> None:
        """Start the child and wait until it has loaded the model.

        Raises `ModelError`, `OptionError` or `DeviceError` if it says so, and otherwise `ExecutorError`.
        """
        self._bury()
        if self._child is None:
            self._start()

    def encode(self, texts: Sequence[I32], *, normalize: bool, progress: Progress | None = None) -> NDArray[np.float32]:
        """Return one vector a text, (texts, dimension) float32.

        Raises `ExecutorError` when the child dies or hangs, after which none is there; and what the child reports.
        """
        if self._child is None:
            raise StateError("the model is not loaded; load it before something is computed")
        self._number += 1
        request = Request(self._number, np.concatenate(texts), [len(ids) for ids in texts], normalize=normalize)
        with self._losing(ended="while it computed", broken="after it broke the protocol"):
            return self._ask(self._child, request, progress)

    def unload(self) -> None:
        """End the child, which gives every byte back."""
        self._bury()
        self._end(at_once=False)

    close = unload

    def _start(self) -> None:
        began = time.monotonic()
        self._strays = 0
        try:
            self._child = ChildProcess(self._command, on_stray=self._log_stray, on_end=self._ended)
            with self._losing(ended="before it was ready", broken="before it was ready"):
                message = self._await_ready(self._child, began + self._budgets.startup_s)
        except OSError as ex:
            self._end(at_once=True)
            raise self._failed(f"the model process can't be started ({ex.strerror or ex})") from ex
        except BaseException:  # Ctrl-C, or no memory
            self._end(at_once=True)
            raise
        if isinstance(message, Failure):
            self._end(at_once=False)
            raise _error_of(message)
        self.description = message.device
        self._is_ready = True

    def _await_ready(self, child: ChildProcess, until: float) -> Ready | Failure:
        while (message := child.read(until)) is not None:
            if isinstance(message, Failure):
                return message
            if isinstance(message, Ready):
                if message.dimension != self._dimension:
                    raise ProtocolError(f"its vectors have {message.dimension} dimensions, not {self._dimension}")
                return message
        raise _Silence(f"since it wasn't ready after {self._budgets.startup_s:g} s ({STARTUP_VARIABLE})")

    def _ask(self, child: ChildProcess, request: Request, progress: Progress | None) -> NDArray[np.float32]:
        child.send(protocol.encode_request(request))
        until = time.monotonic() + self._budgets.watchdog_s
        while (message := child.read(until)) is not None:
            if isinstance(message, Ready) or message.id not in (request.id, None):
                continue  # an answer that comes too late for its request
            if isinstance(message, Result):
                return self._checked(message.vectors, len(request.lengths))
            if isinstance(message, Failure):
                if message.index is not None and not 0 <= message.index < len(request.lengths):
                    raise ProtocolError(f"it blames text {message.index} of {len(request.lengths)}")
                raise _error_of(message)
            until = time.monotonic() + self._budgets.watchdog_s
            self._report(progress, message)
        raise _Silence(f"after it had made no progress for {self._budgets.watchdog_s:g} s ({WATCHDOG_VARIABLE})")

    def _report(self, progress: Progress | None, message: protocol.Progress) -> None:
        try:
            if progress is not None:
                progress(message.done, message.of)
        except BaseException:  # nobody wants the answer any more, and the child can't be told
            self._end(at_once=True)
            raise

    def _checked(self, vectors: NDArray[np.float32], texts: int) -> NDArray[np.float32]:
        if vectors.shape != (texts, self._dimension):
            raise ProtocolError(f"{texts} texts gave vectors of shape {vectors.shape}, not {self._dimension} each")
        return vectors

    @contextlib.contextmanager
    def _losing(self, *, ended: str, broken: str) -> Iterator[None]:
        """Turn what may be wrong with the child into the error that says so, after it is gone."""
        try:
            yield
        except ChildEnded:
            raise self._lose(ended) from None
        except ProtocolError as ex:
            raise self._lose(f"{broken} ({ex})", at_once=True) from ex
        except _Silence as ex:
            raise self._lose(str(ex), at_once=True) from None

    def _bury(self) -> None:
        """Note the end of a child that nobody waited for."""
        if self._child is not None and self._child.has_ended:
            self._lose("while it was idle")

    def _end(self, *, at_once: bool) -> str:
        child, self._child, self._is_ready = self._child, None, False
        return "" if child is None else child.end(at_once=at_once)

    def _lose(self, when: str, *, at_once: bool = False) -> ExecutorError:
        """End the child, and return the error that says how it ended, when, and what it said."""
        child = self._child
        assert child is not None
        pid, how, words = child.pid, self._end(at_once=at_once), child.last_words
        if words:
            self._log(f"the model process {pid} wrote last:\n{words}")
        said = f"; it said last: {' '.join(words.split())[-SHOWN_WORDS:]}" if words else ""
        return self._failed(f"the model process {how} {when}{said}")

    def _failed(self, message: str) -> ExecutorError:
        self.last_failure = message
        self._log(message)
        return ExecutorError(message)

    def _ended(self, child: ChildProcess) -> None:
        """Tell, from the child's own thread, of an end that was not asked for."""
        if child is self._child and self._is_ready:
            self._died()

    def _log_stray(self, line: bytes) -> None:
        self._strays += 1
        if self._strays <= MAX_STRAYS:
            self._log(f"the model process printed what is no message: {line[:SHOWN_WORDS]!r}")


class _Silence(Exception):
    """The child has said nothing for as long as it may; the message says when, as `Supervisor._lose` takes it."""


def supervised(folder: ModelFolder, *, device: str, threads: int, log: Callable[[str], None]) -> Supervisor:
    """Return a supervisor of `embed executor` on the model in `folder`, which has started nothing yet."""
    options = {"pool": folder.pooling, "maxseq": folder.maxseq, "device": device, "threads": threads}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = process.command("executor", *words, "--parent", str(os.getpid()), "--", os.path.abspath(folder.path))
    return Supervisor(command, dimension=folder.config.width, budgets=Budgets.from_environment(), log=log)


def _error_of(failure: Failure) -> Exception:
    """Return the error that a child's message stands for, as if it had been raised in this process."""
    error = KINDS.get(failure.kind, EmbedError)
    if not issubclass(error, TextError):
        return error(failure.message)
    return EmbedError(failure.message) if failure.index is None else error(failure.message, failure.index)
