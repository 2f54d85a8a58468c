"""The engine: token ids in, vectors out, from any thread.

`Engine` is what an embedder needs of whatever computes: `LocalEngine` here runs the forward on a thread of this
process; a supervised child process can take its place.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embed.backend import Backend
from embed.batching import Batch
from embed.encoder import Progress, forward
from embed.errors import StateError


class Engine(Protocol):
    dimension: int
    description: str

    def encode(self, batch: Batch, *, normalize: bool) -> NDArray[np.float32]:
        """Return one vector a text, (texts, dimension) float32; safe from several threads, which take turns."""

    def close(self) -> None:
        """Free the model; later calls raise `StateError`."""


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


class LocalEngine:
    """A backend and its forward on a `ModelThread` of this process."""

    def __init__(
        self, make_backend: Callable[[Progress], Backend], *, layers: int, dimension: int, pooling: str
    ) -> None:
        """Call `make_backend` on the model thread, the one that computes.

        It calls the progress that it's given before every layer, so that Ctrl-C ends a load too.
        """
        self.dimension = dimension
        self._layers = layers
        self._pooling = pooling
        self._thread = ModelThread("embed-model")
        try:
            self._backend: Backend = self._thread.run(lambda job: make_backend(job.progress))
        except BaseException:
            self._thread.close()
            raise
        self.description = self._backend.description

    def encode(self, batch: Batch, *, normalize: bool) -> NDArray[np.float32]:
        def run(job: _Job) -> NDArray[np.float32]:
            return forward(
                self._backend,
                self._layers,
                batch,
                pooling=self._pooling,
                normalize=normalize,
                progress=job.progress,
            )

        vectors: NDArray[np.float32] = self._thread.run(run)
        return vectors

    def close(self) -> None:
        self._thread.close()
        self._backend.close()
