"""Processes of this machine as an executor. They end when this process ends, however it ends.

Each thread of a pool has one process and talks to it over pipes, whose other ends close when this
process ends, even killed. Nothing else is shared: no semaphores, which a killed process would leave
behind, and no memory, in which another thread might hold a lock. This module only imports what is
needed until the first task arrives.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from perfmodel.base.errors import InputError, whole_number

P = ParamSpec("P")
R = TypeVar("R")

MOST_PROCESSES = 1024
"""Largest number of processes; catches typing errors."""

_START = """
import pickle, sys
try:
    sys.path[:] = pickle.load(sys.stdin.buffer)
except (EOFError, pickle.UnpicklingError):
    sys.exit(1)
from perfmodel.sweeping.processes import serve
serve()
"""
"""The program of a process; it gets the import path of the process that starts it first."""

_LOST = (EOFError, OSError, pickle.UnpicklingError)
"""Raised by reading from, or writing to, a process that has ended."""


class InLine(Executor):
    """Runs work immediately in the thread that submits it."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run the work and return a finished future."""
        done: Future[R] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Processes(Executor):
    """Processes of this machine, started on demand, which end when this process ends.

    For the first ``alone_s`` seconds, work runs in this process instead, as with :class:`InLine`.
    If the context is left by an exception, such as a keyboard interrupt, the processes are killed
    without waiting for their work. Functions must be importable: those of ``__main__`` are not.

    Raises
    ------
    InputError : ``count`` is not a valid number of processes; from a future, a process cannot be
        started.
    """

    def __init__(self, count: int, alone_s: float = 0.0) -> None:
        self._count = whole_number("processes", count, at_most=MOST_PROCESSES)
        self._alone_s = alone_s
        self._begin: float | None = None
        self._threads = ThreadPoolExecutor(self._count, initializer=_without_interrupts)
        self._of_thread = threading.local()
        self._workers: list[Worker] = []
        self._killed = False
        self._lock = threading.Lock()

    @property
    def here(self) -> bool:
        """Whether work submitted now runs in this process."""
        if self._begin is None:
            self._begin = time.monotonic()
        return self._count == 1 or time.monotonic() - self._begin < self._alone_s

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit work to one of the processes, or run it here."""
        if self.here:
            return InLine().submit(fn, *args, **kwargs)
        task = pickle.dumps((fn, args, kwargs))
        warned: list[Warned] = []
        future = cast("Future[R]", self._threads.submit(self._call, task, warned))
        _warned[future] = warned
        return future

    def _call(self, task: bytes, warned: list[Warned]) -> object:
        """Run a task in the process of this thread."""
        worker: Worker | None = getattr(self._of_thread, "worker", None)
        if worker is None:
            with self._lock:
                if self._killed:
                    raise BrokenExecutor("the processes were killed")
                worker = self._of_thread.worker = Worker()
                self._workers.append(worker)
        return worker.call(task, warned)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after their work, or immediately with ``cancel_futures``; wait for
        their end in any case."""
        if cancel_futures:
            with self._lock:
                self._killed = True
            for worker in self._workers:
                worker.kill()
        self._threads.shutdown(cancel_futures=cancel_futures)
        for worker in self._workers:
            worker.end()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)


Warned = tuple[str, type[Warning]]

_warned: WeakKeyDictionary[object, list[Warned]] = WeakKeyDictionary()
"""The warnings of tasks that ran in other processes."""


def warn_again(future: object) -> None:
    """Issue the warnings of a task that ran in another process here: filters, and the flags of a
    command, apply to those of all processes alike."""
    for text, category in _warned.pop(future, ()):
        warnings.warn(text, category, stacklevel=1)


def _without_interrupts() -> None:
    """Let processes that this thread starts ignore keyboard interrupts from their first moment.

    They reach all processes of a terminal; only the first one handles them.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class Worker:
    """A process that runs tasks one after the other.

    Raises
    ------
    InputError : it cannot be started.
    """

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _START]
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        except OSError as error:
            raise InputError(f"cannot start a process: {error.strerror or error}") from None
        self._to = cast(IO[bytes], self._process.stdin)  # pipes, as asked for
        self._from = cast(IO[bytes], self._process.stdout)
        with suppress(*_LOST):  # the first task says that it has ended
            _send(self._to, sys.path)

    def call(self, task: bytes, warned: list[Warned]) -> object:
        """Run a pickled task, and add its warnings to a list.

        Raises
        ------
        BrokenExecutor : the process has ended.
        Exception : whatever the task raises.
        """
        try:
            _send(self._to, task)
            answer = pickle.load(self._from)
        except _LOST:
            raise BrokenExecutor("a process ended unexpectedly") from None
        value, error, trace, issued = pickle.loads(answer)
        warned += issued
        if error is not None:
            raise error from RemoteError(f"\n{trace}")
        return cast(object, value)

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    def end(self) -> None:
        """End the process, which has no work, and wait for its end."""
        with suppress(OSError):
            self._to.close()
        self._process.wait()
        self._from.close()


def _send(to: IO[bytes], value: object) -> None:
    pickle.dump(value, to)
    to.flush()


class RemoteError(Exception):
    """The cause of an error in another process: its traceback as text."""


def serve() -> None:
    """Run the tasks that arrive on standard input, and write answers to standard output.

    The process ends when standard input does, even in the middle of a task.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, tasks), daemon=True).start()
    with (
        os.fdopen(os.dup(1), "wb") as answers,
        Path(os.devnull).open("r+", encoding="utf-8") as nothing,
    ):
        # tasks must not read tasks, nor print between answers
        sys.stdin = nothing
        os.dup2(nothing.fileno() if sys.stderr is None else 2, 1)
        while True:
            answer = _answer(tasks.get())
            try:
                _send(answers, answer)
            except OSError:
                os._exit(1)


def _receive(source: IO[bytes], tasks: queue.SimpleQueue[bytes]) -> None:
    """Put tasks into a queue, and end this process when the other one has ended."""
    with suppress(*_LOST):
        while True:
            tasks.put(pickle.load(source))
    os._exit(0)


def _answer(task: bytes) -> bytes:
    """Run a task, and return its pickled result, error, traceback and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value, error, trace = None, None, ""
        try:
            function, args, kwargs = pickle.loads(task)
            value = function(*args, **kwargs)
        except Exception as raised:
            error, trace = raised, traceback.format_exc()
    issued: list[Warned] = [(str(warning.message), warning.category) for warning in caught]
    try:
        return pickle.dumps((value, error, trace, issued))
    except Exception as raised:
        known = RuntimeError(f"cannot pickle the result: {raised}")
        return pickle.dumps((None, known, trace or traceback.format_exc(), []))
