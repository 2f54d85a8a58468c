"""The master process: it holds the socket and a worker, and knows how both end. gunicorn's arbiter, with one worker.

What is different from gunicorn's: SIGINT drains as SIGTERM does; SIGHUP never has two models in memory; a worker that
can't start ends the service with its own reason; one that keeps dying is started ever more slowly. It stays small and
quick to start, since gevent, NumPy and the application are only imported in the worker.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from gunicorn import sock
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.workers import base

from embed.console import leave, say
from embed.errors import DeviceError, EmbedError, ModelError, OptionError

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# One Ctrl-C can come twice: from the terminal, and from a wrapper such as `uv run`. It is still the first.
TWICE_S = 0.5
SLACK_S = 2.0  # after the grace period, for the worker to end by itself before it is killed
DEAD_S = 2.0  # for a killed process to be gone
CUT_OFF = 5  # the exit code of a worker whose grace period was over before all requests were answered
QUICK_DEATH_S, MAX_DELAY_S, MAX_DOUBLINGS = 10.0, 30.0, 5
HANGUP_S = 5.0  # after its terminal was last seen, SIGHUP means that this was closed; we look once a second


class Report:
    """What workers tell the master, in memory that both share: a model was loaded, or why the first one can't be."""

    KINDS = (EmbedError, ModelError, OptionError, DeviceError)

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def loaded(self) -> bool:
        """Whether any worker so far has loaded the model."""
        return self._memory[0] == 1

    def set_loaded(self) -> None:
        self._memory[0] = 1

    def fail(self, error: Exception) -> None:
        """Leave the error for the master to raise."""
        kind = next((i for i, kind in enumerate(self.KINDS) if type(error) is kind), 0)
        message = str(error) if isinstance(error, EmbedError) else f"a fault in embed itself: {error!r}"
        data = message.encode(errors="backslashreplace")[: len(self._memory) - 4]
        self._memory[3 : 4 + len(data)] = data + b"\0"
        self._memory[1] = kind + 1  # last, since it makes the rest valid

    @property
    def reloading(self) -> bool:
        """Whether the worker that is told to end has a successor, for which new connections can wait."""
        return self._memory[2] == 1

    @reloading.setter
    def reloading(self, value: bool) -> None:
        self._memory[2] = value

    @property
    def error(self) -> EmbedError | None:
        if not self._memory[1]:
            return None
        data = self._memory[3:]
        return self.KINDS[self._memory[1] - 1](data[: data.index(b"\0")].decode(errors="replace"))


class Stand(base.Worker):  # type: ignore[misc]  # gunicorn has no types
    """Stands for the worker in the master, and becomes it after the fork."""

    dismissed = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.started = time.monotonic()
        self._arguments = arguments

    def init_process(self) -> None:
        _leave_the_master()
        from embed.server.served import ServedWorker

        worker = ServedWorker(*self._arguments)
        worker.tmp.close()
        worker.tmp = self.tmp  # whose times the master watches
        worker.pid = self.pid
        try:
            worker.init_process()
        finally:
            self.booted = worker.booted


class Master(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """Runs one worker after another until it is told to end.

    `run()` leaves with `SystemExit`: 0 if every request was answered, 1 if some were cut off. It raises what kept the
    first worker from loading a model.
    """

    def __init__(self, app: Any, report: Report, renew: Callable[[], None], graceful_s: float) -> None:
        super().__init__(app)
        self._report = report
        self._renew = renew
        self._grace_s = graceful_s + SLACK_S
        self._cut_off = False  # requests of the last worker
        self._quick_deaths = 0
        self._not_before = 0.0
        self._terminal = Terminal()
        self._outlives_it = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup

    # --- signals

    def handle_hup(self) -> None:
        """Let the old worker finish and go; the main loop then starts the next. The socket queues who comes between."""
        if self._terminal.was_closed():  # nobody asks for a reload
            if self._outlives_it:
                return
            raise StopIteration
        self._report.reloading = True
        self._dismiss()
        if self._wait(time.monotonic() + self._grace_s) is not None:
            raise StopIteration
        self._kill()
        self._report.reloading = self._cut_off = False
        self._quick_deaths, self._not_before = 0, 0.0
        self._renew()

    def handle_int(self) -> None:
        raise StopIteration

    def handle_quit(self) -> None:
        self._kill()
        raise StopIteration

    def handle_ttin(self) -> None:
        """Do nothing: a second worker would be a second model, a second gunicorn no use, and no log file is open."""

    handle_ttou = handle_usr1 = handle_usr2 = handle_winch = handle_ttin

    # --- the end

    def halt(self, reason: str | None = None, exit_status: int = 0) -> NoReturn:
        self.stop()
        if reason is not None:
            raise self._report.error or EmbedError(reason)
        raise SystemExit(exit_status or int(self._cut_off))

    def stop(self, graceful: bool = True) -> None:
        """End the worker when it has answered, when the grace period is over, or at the second signal."""
        sock.close_sockets(self.LISTENERS, unlink=False)
        self.LISTENERS: list[Any] = []
        began = time.monotonic()
        self._report.reloading = False
        self._dismiss()
        while self._wait(began + self._grace_s) is not None and time.monotonic() - began < TWICE_S:
            pass
        self._kill()

    def _dismiss(self) -> None:
        for worker in self.WORKERS.values():
            worker.dismissed = True
        self.kill_workers(signal.SIGTERM)

    def _wait(self, until: float) -> int | None:
        """Wait for the workers to end. Return the signal that comes meanwhile and asks the service to end, if any."""
        self.reap_workers()
        while self.WORKERS and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                number: int = self.SIG_QUEUE.get(timeout=left)
                if number in ENDING:
                    return number
            self.reap_workers()
        return None

    def _kill(self) -> None:
        if not self.WORKERS:
            return
        for worker in self.WORKERS.values():
            worker.dismissed = True
        self.kill_workers(signal.SIGKILL)
        self._wait_for_the_dead()
        self._cut_off = True

    def _wait_for_the_dead(self) -> None:
        until = time.monotonic() + DEAD_S
        while self.WORKERS and time.monotonic() < until:
            time.sleep(0.01)
            self.reap_workers()

    # --- workers

    def manage_workers(self) -> None:
        self._terminal.look()
        if self.WORKERS or time.monotonic() >= self._not_before:
            super().manage_workers()

    def spawn_worker(self) -> None:
        """Fork. Signals wait until the worker has handlers of its own: the master's would only queue them."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        try:
            super().spawn_worker()
        except BaseException as ex:
            if os.getpid() == self.pid:
                raise
            _leave_worker(ex.code if isinstance(ex, SystemExit) and isinstance(ex.code, int) else 1)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.SIGNALS)

    def reap_workers(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            worker = self.WORKERS.pop(pid, None)  # as a container's process 1 we inherit strangers, too
            if worker is not None:
                worker.tmp.close()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # children of a worker that could not end them itself
                code = os.waitstatus_to_exitcode(status)
                self._cut_off = code == CUT_OFF
                if not worker.dismissed:
                    self._judge(worker, code)

    def _judge(self, worker: Stand, code: int) -> None:
        """Decide what the death of a worker means that nobody asked to go."""
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        if not self._report.loaded:
            memory = "; is there enough memory?" if code == -signal.SIGKILL else ""
            raise HaltServer(f"the worker process {how} before the model was loaded{memory}", 1)
        lived_s = time.monotonic() - worker.started
        self._quick_deaths = self._quick_deaths + 1 if lived_s < QUICK_DEATH_S else 0
        delay_s = min(2.0 ** min(max(self._quick_deaths - 1, 0), MAX_DOUBLINGS) - 1, MAX_DELAY_S)
        self._not_before = time.monotonic() + delay_s
        say(f"warning: the worker process {how}; starting another" + (f" in {delay_s:.0f} s" if delay_s else ""))


class Terminal:
    """The terminal that the service was started in, if any, and whether that was closed just now.

    One that has been gone for long (after logging out, with the service in the background) sends no more hang-ups.
    """

    def __init__(self) -> None:
        self._seen: float | None = time.monotonic() if _has_terminal() else None

    def look(self) -> None:
        if self._seen is not None and _has_terminal():
            self._seen = time.monotonic()

    def was_closed(self) -> bool:
        self.look()
        return self._seen is not None and time.monotonic() - self._seen < HANGUP_S and not _has_terminal()


def _leave_the_master() -> None:
    """Undo in a new worker what it has from the master, and lead a process group of its own.

    Ctrl-C and a closed window then reach the master alone, and whatever the worker starts (pip, for the demo model)
    can be ended with it.
    """
    os.setpgid(0, 0)
    for number in Arbiter.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or `stty tostop` would stop it at its first message
    signal.pthread_sigmask(signal.SIG_UNBLOCK, Arbiter.SIGNALS)


def _leave_worker(code: int) -> NoReturn:
    """End a worker and its children, without waiting for its threads."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    leave(code)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
