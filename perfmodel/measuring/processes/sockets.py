"""TCP connections between the processes of a run, with timeouts and clear errors.

A wait raises :class:`LostError` if there is no progress for ``timeout_s``, or if the other process
closes its end. Nagle's algorithm is off. :mod:`.connecting` establishes the connections.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, PerfmodelError, unknown_name

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

LARGEST_MESSAGE_BYTES = 2**24
"""Largest message of this protocol; a larger length is invalid."""

_LENGTH = struct.Struct("!Q")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


class LostError(PerfmodelError, ConnectionError):
    """Another process has disconnected, does not answer, or never connected."""


class Closing:
    """A context manager that calls its ``close`` on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release its resources."""
        raise NotImplementedError


class Connection(Closing):
    """One end of a TCP connection; errors call the other end ``peer``. Its address is ``address``.

    ``send`` and ``receive_into`` move plain bytes. A message is its length (8 bytes, big-endian)
    followed by its bytes. An object is a message of JSON.
    """

    def __init__(
        self, connected: socket.socket, timeout_s: float, peer: str, address: str = ""
    ) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = connected
        self.timeout_s = timeout_s
        self.peer, self.address = peer, address

    @property
    def timeout_s(self) -> float:
        """How long to wait for progress."""
        return self.socket.gettimeout() or 0.0

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self.socket.settimeout(value)

    @property
    def local_host(self) -> str:
        """Address of this end, without its port."""
        return str(self.socket.getsockname()[0])

    @property
    def remote_host(self) -> str:
        """Address of the other end, without its port."""
        return str(self.socket.getpeername()[0])

    @property
    def congestion(self) -> str:
        """Congestion control of this end; "" if unknown."""
        return congestion_of(self.socket)

    def send(self, data: Buffer) -> None:
        """Send the bytes of ``data``, which must be contiguous."""
        rest = _bytes(data)
        try:
            while rest:
                rest = rest[self.socket.send(rest) :]
        except OSError as error:
            raise self._lost(error) from None

    def receive_into(self, buffer: Buffer) -> None:
        """Fill ``buffer`` with the next bytes."""
        rest = _bytes(buffer)
        try:
            while rest:
                rest = rest[self._some(self.socket.recv_into(rest)) :]
        except OSError as error:
            raise self._lost(error) from None

    def send_message(self, data: Buffer) -> None:
        """Send a message."""
        view = _bytes(data)
        header = _LENGTH.pack(len(view))
        if len(view) < 65536:
            self.send(header + bytes(view))  # one packet, if it fits
        else:
            self.send(header)
            self.send(view)

    def receive_message(self) -> bytearray:
        """Return the next message."""
        header = bytearray(_LENGTH.size)
        self.receive_into(header)
        (length,) = _LENGTH.unpack(header)
        if length > LARGEST_MESSAGE_BYTES:
            raise self.no_message()
        message = bytearray(length)
        self.receive_into(message)
        return message

    def send_object(self, value: Any) -> None:
        """Send a JSON-like value."""
        self.send_message(msgspec.json.encode(value))

    def receive_object(self, kind: Any = Any) -> Any:
        """Return the next message, decoded as ``kind``."""
        message = self.receive_message()
        try:
            return msgspec.json.decode(message, type=files.ready(kind))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self.no_message() from None

    def no_message(self) -> LostError:
        """Return the error for an invalid message."""
        return LostError(f"{self.peer} sent an invalid message")

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _some(self, count: int) -> int:
        if not count:
            raise LostError(f"{self.peer} disconnected")
        return count

    def _lost(self, error: OSError) -> LostError:
        if isinstance(error, LostError):
            return error
        if isinstance(error, TimeoutError):
            return LostError(f"{self.peer}: no data transferred for {self.timeout_s:g} s")
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return LostError(f"{self.peer} disconnected")
        return LostError(f"{self.peer} disconnected ({error.strerror or error})")


def _bytes(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def transfer(
    outgoing: Sequence[tuple[Connection, Buffer]], incoming: Sequence[tuple[Connection, Buffer]]
) -> None:
    """Send and fill all buffers concurrently; a connection appears at most once in each list.

    Raises
    ------
    LostError : a process has disconnected, or there was no progress for the ``timeout_s`` of the
    first connection.
    """
    out = {one.socket: (one, _bytes(data)) for one, data in outgoing}
    into = {one.socket: (one, _bytes(data)) for one, data in incoming}
    # empty buffers need no transfer
    out = {key: value for key, value in out.items() if value[1]}
    into = {key: value for key, value in into.items() if value[1]}
    while out or into:
        first = next(iter((out or into).values()))[0]
        readable, writable = ready(into, out, within_s=first.timeout_s)
        if not readable and not writable:
            names = ", ".join(sorted({one.peer for one, _ in (*out.values(), *into.values())}))
            raise LostError(f"{names}: no data transferred for {first.timeout_s:g} s")
        for key in readable:
            _step(into, key, receive=True)
        for key in writable:
            _step(out, key, receive=False)


def ready(
    reading: Iterable[socket.socket], writing: Iterable[socket.socket] = (), *, within_s: float
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the sockets that can be read and written, as soon as there is one; none after the
    timeout."""
    readable, writable, _ = select.select(list(reading), list(writing), [], max(within_s, 0.0))
    return readable, writable


def _step(
    left: dict[socket.socket, tuple[Connection, memoryview]], key: socket.socket, *, receive: bool
) -> None:
    """Move available data on one socket, and remove the socket when it is done."""
    one, rest = left[key]
    try:
        moved = one._some(key.recv_into(rest)) if receive else key.send(rest)
    except OSError as error:
        raise one._lost(error) from None
    if moved == len(rest):
        del left[key]
    else:
        left[key] = one, rest[moved:]


def congestion_of(one: socket.socket) -> str:
    """Return the congestion control of a socket, such as *cubic*; "" if unknown."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return ""
    return one.getsockopt(socket.IPPROTO_TCP, option, 16).partition(b"\0")[0].decode()


def set_congestion(one: socket.socket, name: str) -> None:
    """Make a socket use congestion control ``name``; "" keeps the system's default.

    Raises
    ------
    InputError : the system does not support it, or does not permit it.
    """
    if not name:
        return
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        raise InputError("--congestion: this system does not let a program choose it")
    try:
        one.setsockopt(socket.IPPROTO_TCP, option, name.encode())
    except OSError as error:
        names = _AVAILABLE.read_text().split() if _AVAILABLE.exists() else []
        if names and name not in names:
            raise unknown_name("congestion control", name, names) from None
        raise InputError(f"--congestion: cannot use {name!r}: {error.strerror or error}") from None


def printable(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
