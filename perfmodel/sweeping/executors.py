"""Executors: run work in this process, in other processes of this machine, or on a Dask cluster.

Studies submit work to a :class:`concurrent.futures.Executor`, so callers can pass their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import platform
import queue
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from perfmodel.base.errors import InputError, PerfmodelWarning, exception_line
from perfmodel.predicting.installation import fingerprint
from perfmodel.sweeping.processes import InLine, Processes, warn_again

A = TypeVar("A")
R = TypeVar("R")

ALONE_S = 5.0
"""Seconds of work in this process before others are started, unless a number of processes is given.
Starting a process takes half a second to a second of CPU time on each core."""

CONNECT_S = 5
"""Timeout for connecting to a Dask scheduler, in seconds."""

POLL_S = 1.0
"""Time between two looks whether a Dask client still has its scheduler, in seconds."""

BROKEN = "a process ended unexpectedly; is there enough memory?"
CANCELLED = "work was cancelled: the scheduler stopped or dropped it"


def usable_cores() -> int:
    """Number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def opened(processes: int | None, dask: str | None) -> Iterator[Executor]:
    """Open the executor that the user asks for.

    Parameters
    ----------
    processes : number of processes on this machine; None for one per core, started once the work
        has taken :data:`ALONE_S` seconds.
    dask : address of the scheduler of a running Dask cluster, instead of processes.

    Raises
    ------
    InputError : both are given, the number of processes is invalid, no scheduler answers at the
        address, or Dask is not installed.
    """
    if dask is not None:
        if processes is not None:
            raise InputError("--jobs and --dask: give only one of them")
        with _dask(dask) as executor:
            yield executor
    else:
        count, alone_s = (usable_cores(), ALONE_S) if processes is None else (processes, 0.0)
        with Processes(count, alone_s) as executor:
            yield executor


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """Connect to a Dask cluster as an executor."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask: needs Dask: pip install 'perfmodel[dask]'") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # errors are also raised
    try:  # a Client that fails to connect prints a long traceback when the process exits
        kind = asyncio.run(asyncio.wait_for(_identity(address), CONNECT_S))
    except Exception as error:
        why = exception_line(error) if str(error) else f"no answer in {CONNECT_S} s"
        raise InputError(f"--dask: no Dask scheduler at {address!r}: {why}") from None
    if kind != "Scheduler":
        raise InputError(f"--dask: {address!r} is a Dask {kind.lower()}, not a scheduler")
    with (
        _silent("tornado.application"),  # logs what the closing connection interrupts
        Client(address, timeout=CONNECT_S, set_as_default=False) as client,
    ):
        # use a built-in function: a worker dies if it unpickles one from a package it lacks
        installed = client.run(eval, _FINGERPRINT, on_error="return")
        for worker, there in installed.items():
            missing = (
                f"no perfmodel ({exception_line(there)})" if isinstance(there, Exception) else ""
            )
            _check(f"--dask: worker {worker}", missing or there)
        if not installed:
            text = f"the Dask cluster at {address} has no workers yet; waiting for them"
            warnings.warn(text, PerfmodelWarning, stacklevel=1)
        yield client.get_executor(pure=False)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Show no errors of a logger."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


_FINGERPRINT = f"__import__({fingerprint.__module__!r}, fromlist=['*']).fingerprint()"


def _check(worker: str, installed: str, here: str = "this process", wanted: str = "") -> None:
    """Reject a worker whose installation of perfmodel is not the wanted one, that of ``here``."""
    wanted = wanted or fingerprint()
    if installed != wanted:
        text = f"{worker} has {installed}, {here} has {wanted}: install the same on both"
        raise InputError(text)


async def _identity(address: str) -> str:
    """The type of Dask server that answers, such as ``Scheduler``."""
    from distributed import Security
    from distributed.core import rpc

    security = Security().get_connection_args("client")
    async with rpc(address, timeout=CONNECT_S, connection_args=security) as server:
        return str((await server.identity())["type"])


def elsewhere(executor: Executor) -> bool:
    """Return whether an executor runs work concurrently with this thread."""
    if isinstance(executor, Processes):
        return not executor.here
    return not isinstance(executor, InLine)


class Task(Generic[A, R]):
    """A function and its argument, sent to other processes as :class:`Sent`."""

    def __init__(self, function: Callable[[A], R], argument: A) -> None:
        self.function, self.argument = function, argument

    def __reduce__(self) -> tuple[type[Sent], tuple[str, bytes]]:
        return Sent, (fingerprint(), pickle.dumps((self.function, self.argument)))

    def run(self) -> R:
        """Call the function."""
        return self.function(self.argument)


class Sent(NamedTuple):
    """A pickled task, which only the same perfmodel installation may unpickle."""

    client: str
    pickled: bytes

    def run(self) -> object:
        """Unpickle and call the function.

        Raises
        ------
        InputError : this process has a different installation.
        """
        _check(f"worker {platform.node()}", fingerprint(), "the client", self.client)
        function, argument = pickle.loads(self.pickled)
        return function(argument)


def _run(task: Task[A, R]) -> R:
    return task.run()  # in another process, that of Sent


def submitted(executor: Executor, function: Callable[[A], R], argument: A) -> Future[R]:
    """Submit a call of a module-level function; see :func:`result`."""
    return executor.submit(_run, Task(function, argument))


def completed(
    executor: Executor, function: Callable[[A], R], work: Iterable[A]
) -> Iterator[tuple[int, R]]:
    """Yield results of a function as they complete, each with its index in ``work``.

    Raises
    ------
    InputError : the executor broke down, or has a different installation.
    Exception : whatever the function raises.
    """
    done: queue.SimpleQueue[Future[R]] = queue.SimpleQueue()
    places: dict[Future[R], int] = {}
    try:
        for place, argument in enumerate(work):
            future = submitted(executor, function, argument)
            places[future] = place
            future.add_done_callback(done.put)
            while not done.empty():
                future = done.get()
                yield places.pop(future), result(future)
        while places:
            try:
                future = done.get(timeout=POLL_S)
            except queue.Empty:
                if _is_closed(executor):
                    raise InputError(CANCELLED) from None
                continue
            yield places.pop(future), result(future)
    except BrokenExecutor:  # by submit
        raise InputError(BROKEN) from None
    finally:
        for future in places:
            future.cancel()


def result(future: Future[R]) -> R:
    """Wait for the result of submitted work.

    Raises
    ------
    InputError : the executor broke down, or has a different installation.
    Exception : whatever the work raises.
    """
    try:
        return future.result()
    except BrokenExecutor:
        raise InputError(BROKEN) from None
    except CancelledError:
        raise InputError(CANCELLED) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "distributed":
            raise
        raise InputError(f"the Dask cluster failed: {exception_line(error)}") from None
    finally:
        warn_again(future)


def _is_closed(executor: Executor) -> bool:
    """Return whether a Dask client is closed; results that it was fetching then never arrive."""
    client = getattr(executor, "_client", None)  # distributed has no public name for it
    return getattr(client, "status", None) == "closed"
