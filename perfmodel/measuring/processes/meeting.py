"""Coordination of the processes of a run: they share values, stop together and fail together.

One thread listens to each peer. So when one process fails or is lost, all others end at once with
the same reason, whatever they are waiting for.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError, PerfmodelError
from perfmodel.measuring.processes.group import Group
from perfmodel.measuring.processes.sockets import Connection, LostError

if TYPE_CHECKING:
    from typing import Self

PROBES = 16
"""Round trips for comparing clocks; the shortest is used."""

REASON_WITHIN_S = 10.0
"""How long a process that has lost another waits for the reason."""


class Meeting:
    """This process as a member of a run whose first ``workers`` ranks are workers.

    Attributes
    ----------
    place : rank of this process, and the rendezvous address.
    token : the shared secret.
    offset_s : ``time.monotonic()`` of rank 0 minus that of this process.
    local_host : address of this machine on the route to rank 0.
    rank_0_host : address at which this process reaches rank 0.
    stopped : set once all workers have done their iterations, or at the time limit.

    Raises
    ------
    LostError : a process has disconnected.
    """

    def __init__(self, group: Group, workers: int) -> None:
        self.place, self.token = group.place, group.token
        self.local_host, self.rank_0_host = group.local_host, group.rank_0_host
        self.offset_s = 0.0
        self.stopped = threading.Event()
        self._group = group
        self._peers = group.control
        self._inbox: dict[int, queue.SimpleQueue[Any]] = {
            r: queue.SimpleQueue() for r in group.control
        }
        self._failure = ""
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._on_failure: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._closing = False
        self._enough: set[int] = set()
        self._workers = workers
        self._compare_clocks()
        self._listeners = []
        for rank, peer in self._peers.items():
            peer.socket.settimeout(None)
            listener = threading.Thread(target=self._listen, args=(rank,), daemon=True)
            listener.start()
            self._listeners.append(listener)

    def _compare_clocks(self) -> None:
        for peer in self._peers.values():
            if self.place.rank == 0:
                _probe(peer)
            else:
                while "offset_s" not in (message := peer.receive_object(dict[str, Any])):
                    peer.send_object(time.monotonic())
                self.offset_s = message["offset_s"]

    # -- coordination --------------------------------------------------------------------------

    def share(self, value: Any) -> list[Any]:
        """All-gather JSON-like values, in rank order; all ranks must call it."""
        if self.place.rank != 0:
            self._send(0, {"value": value})
            return list(self._receive(0))
        values = [value, *(self._receive(rank) for rank in range(1, self.place.ranks))]
        for rank in self._peers:
            self._send(rank, {"value": values})
        return values

    def enough(self) -> None:
        """Report that this worker has done its iterations; it continues until ``stopped``."""
        if self.place.rank == 0:
            self._has_enough(0)
        else:
            self._send(0, {"enough": True})

    def stop(self) -> None:
        """Stop all processes; only rank 0 calls it."""
        if not self.stopped.is_set():
            self.stopped.set()
            for rank in self._peers:
                self._send(rank, {"stop": True})

    def on_failure(self, call: Callable[[], None]) -> None:
        """Register a callback for when the run fails, to end blocking waits."""
        with self._lock:
            failed = bool(self._failure)
            self._on_failure.append(call)
        if failed:
            call()

    def fail(self, text: str) -> None:
        """Record that the run has failed, and notify all others unless it has failed before."""
        with self._lock:
            if self._failure or self._closing:
                return
            self._failure = text
            self._failed.set()
            calls = list(self._on_failure)
        for rank in self._peers:
            self._send(rank, {"error": text})
        for inbox in self._inbox.values():
            inbox.put(_FAILED)
        for call in calls:
            call()

    def reason(self, error: PerfmodelError) -> PerfmodelError:
        """Return why the run has failed: the shared reason if ``error`` reports a lost process,
        else ``error`` itself."""
        if not isinstance(error, LostError):
            return error
        self._failed.wait(REASON_WITHIN_S)
        return InputError(self._failure or str(error))

    def at_end(self, call: Callable[[], None]) -> None:
        """Register a callback for when this process ends, after it has notified the others."""
        self._at_end.append(call)

    def check(self) -> None:
        """Raise InputError if the run has failed."""
        if self._failure:
            raise InputError(self._failure)

    def close(self) -> None:
        """Leave the run; rank 0 waits for the others to leave."""
        with self._lock:
            self._closing = True
        if self.place.rank == 0:
            for listener in self._listeners:
                listener.join(timeout=10.0)
        else:
            self._send(0, {"bye": True})
        self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        text = str(error) if isinstance(error, PerfmodelError) else repr(error)
        self.fail(text if text.startswith("rank ") else f"rank {self.place.rank}: {text}")
        self._hang_up()

    # -- messages ------------------------------------------------------------------------------

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        with contextlib.suppress(LostError, OSError), self._lock:
            self._peers[rank].send_object(message)

    def _receive(self, rank: int) -> Any:
        self.check()
        value = self._inbox[rank].get()
        if value is _FAILED:
            raise InputError(self._failure)
        return value

    def _listen(self, rank: int) -> None:
        peer = self._peers[rank]
        while True:
            try:
                message = peer.receive_object(dict[str, Any])
            except (LostError, OSError, ValueError):
                self.fail(f"rank {rank} disconnected before the end of the run")
                return
            if "value" in message:
                self._inbox[rank].put(message["value"])
            elif "enough" in message:
                self._has_enough(rank)
            elif "stop" in message:
                self.stopped.set()
            elif "error" in message:
                self.fail(message["error"])
                return
            else:
                return

    def _has_enough(self, rank: int) -> None:
        with self._lock:
            self._enough.add(rank)
            all_have = len(self._enough) == self._workers
        if all_have:
            self.stop()

    def _hang_up(self) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
        self._group.close()
        for call in self._at_end:
            call()


_FAILED = object()


def _probe(peer: Connection) -> None:
    """Measure the clock offset of a peer in the shortest of several round trips, and send it."""
    shortest_s, offset_s = math.inf, 0.0
    for _ in range(PROBES):
        begin_s = time.monotonic()
        peer.send_object({"probe": True})
        theirs_s = peer.receive_object(float)
        trip_s = time.monotonic() - begin_s
        if trip_s < shortest_s:
            shortest_s, offset_s = trip_s, begin_s + trip_s / 2 - theirs_s
    peer.send_object({"offset_s": offset_s})
