"""The engine: token ids in, vectors out, from any thread.

`Engine` is what an embedder needs of whatever computes: `LocalEngine` here runs the forward on a thread of this
process; a supervised child process can take its place.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embed import batching
from embed.backend import Backend
from embed.batching import I32
from embed.encoder import Progress, forward
from embed.errors import StateError


class Engine(Protocol):
    """What computes: it can give the weights' memory back, and load them again."""

    @property
    def is_loaded(self) -> bool:
        """Whether the weights are in memory, and what computes lives."""

    @property
    def description(self) -> str:
        """What computes, e.g. "cpu avx512"; before the first load "none"."""

    @property
    def pid(self) -> int | None:
        """The process that computes; None while there is none."""

    @property
    def last_failure(self) -> str | None:
        """How what computes died the last time, in a sentence."""

    @property
    def patience_s(self) -> float | None:
        """After so long without progress what computes is replaced; None where nothing watches over it."""

    def watch(self, died: Callable[[], None]) -> None:
        """Have `died` called, on some other thread, when what computes ends though nobody told it to."""

    def load(self) -> None:
        """Load the weights, unless they are there. Raises `ModelError`, `DeviceError` or another `EmbedError`."""

    def encode(self, texts: Sequence[I32], *, normalize: bool, progress: Progress | None = None) -> NDArray[np.float32]:
        """Return one vector a text, (texts, dimension) float32; a text is its ids, (length) int32.

        `progress` is called with the steps done and those there are, by the thread that computes or the one that
        waits for it, and may raise to give up. Raises `StateError` where no weights are loaded, and `ExecutorError`
        when what computes dies.
        """

    def unload(self) -> None:
        """Give the weights' memory back, until `load`."""

    def close(self) -> None:
        """Free everything; later calls raise `StateError`."""


class _Abandoned(Exception):
    """The caller of a forward or a load went away (Ctrl-C): stop at the next layer."""


class _Job:
    """A call for the model thread; `done` is a lock that the model thread opens when result or error is there."""

    def __init__(self, call: Callable[[_Job], Any]) -> None:
        self.call = call
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.abandoned = False

    def progress(self, done: int, layers: int) -> None:
        if self.abandoned:
            raise _Abandoned


def _serve(jobs: queue.SimpleQueue[_Job | None], ended: threading.Event) -> None:
    while (job := jobs.get()) is not None:
        try:
            job.result = job.call(job)
        except BaseException as ex:  # not swallowed: raised again in the thread that waits for this job
            job.error = ex
        job.done.release()
        del job  # or the last job's batch and closures would live until the next one
    ended.set()  # before the queue is emptied: who finds it unset after his put is found by this loop
    while not jobs.empty():
        if (job := jobs.get()) is not None:
            job.error = _closed()
            job.done.release()


def _closed() -> StateError:
    return StateError("this embedder is closed; load the model again")


class ModelThread:
    """One permanent thread that runs calls in turn.

    An encoder and its team serve one thread at a time, so all native work of a model happens on one. There is
    no lock to hold: a signal handler may call `run` or `close` while its own thread is inside of either.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._worker = threading.Thread(target=_serve, args=(self._jobs, self._ended), name=name, daemon=True)
        self._worker.start()
        # Also runs at interpreter exit: native code must not run on while the process is torn down.
        self._finalizer = weakref.finalize(self, _stop, self._jobs, self._worker, self._pid)

    def run(self, call: Callable[[_Job], Any]) -> Any:
        """Run `call(job)` on the thread and return its result, or raise its error. Ctrl-C abandons it."""
        if os.getpid() != self._pid:
            raise StateError(
                "this embedder was loaded before a fork, and its threads did not come along; "
                "load the model again in the child process"
            )
        job = _Job(call)
        self._jobs.put(job)
        try:
            if not job.done.acquire(blocking=not self._ended.is_set()):
                raise _closed()
        except BaseException:  # KeyboardInterrupt, or what a signal handler raised
            job.abandoned = True
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def close(self) -> None:
        """Let the calls that are queued finish and end the thread; returns when it has ended, whoever closed it."""
        self._finalizer()
        if os.getpid() == self._pid:
            self._worker.join()


def _stop(jobs: queue.SimpleQueue[_Job | None], thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:  # a forked child has the objects, not the thread
        return
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join()


class _InThisProcess:
    """What an engine that lives and dies with its process has to say of that."""

    last_failure = None
    patience_s = None

    def __init__(self) -> None:
        self.pid = os.getpid()

    def watch(self, died: Callable[[], None]) -> None:
        """Do nothing: it can't die alone."""


class DirectEngine(_InThisProcess):
    """A backend and its forward, on whatever thread asks: always the same one."""

    def __init__(
        self, make_backend: Callable[[Progress], Backend], *, layers: int, pooling: str, pad_id: int | None
    ) -> None:
        """Call `make_backend` at each load; it calls the progress that it's given before every layer.

        `pad_id` is that of `batching.pack`.
        """
        super().__init__()
        self.description = "none"
        self._make_backend = make_backend
        self._layers = layers
        self._pooling = pooling
        self._pad_id = pad_id
        self._backend: Backend | None = None

    @property
    def is_loaded(self) -> bool:
        return self._backend is not None

    def load(self, progress: Progress | None = None) -> None:
        if self._backend is None:
            self._backend = self._make_backend(progress or _ignore)
            self.description = self._backend.description

    def encode(self, texts: Sequence[I32], *, normalize: bool, progress: Progress | None = None) -> NDArray[np.float32]:
        if self._backend is None:
            raise StateError("the model is not loaded; load it before something is computed")
        return forward(
            self._backend,
            self._layers,
            batching.pack(texts, self._pad_id),
            pooling=self._pooling,
            normalize=normalize,
            progress=progress or _ignore,
        )

    def unload(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    close = unload


def _ignore(done: int, steps: int) -> None:
    pass


class LocalEngine(_InThisProcess):
    """An engine on a `ModelThread` of its own. Safe from several threads, which take turns; Ctrl-C abandons."""

    def __init__(self, engine: DirectEngine) -> None:
        super().__init__()
        self._engine = engine
        self._thread = ModelThread("embed-model")

    @property
    def is_loaded(self) -> bool:
        return self._engine.is_loaded

    @property
    def description(self) -> str:
        return self._engine.description

    def load(self) -> None:
        self._thread.run(lambda job: self._engine.load(job.progress))

    def encode(self, texts: Sequence[I32], *, normalize: bool, progress: Progress | None = None) -> NDArray[np.float32]:
        def run(job: _Job) -> NDArray[np.float32]:
            def report(done: int, steps: int) -> None:
                job.progress(done, steps)
                if progress is not None:
                    progress(done, steps)

            return self._engine.encode(texts, normalize=normalize, progress=report)

        vectors: NDArray[np.float32] = self._thread.run(run)
        return vectors

    def unload(self) -> None:
        self._thread.run(lambda job: self._engine.unload())

    def close(self) -> None:
        self._thread.close()
        self._engine.close()
