"""Connections between processes over TCP that end with one clear line, never without end.

A wait in which no byte moves for ``timeout_s`` ends with :class:`LostError`, and so does one for a
process that closes its end. Delays of small messages (Nagle) are off.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from perfmodel.errors import InputError, PerfmodelError, unknown_name

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

LARGEST_MESSAGE_BYTES = 2**30
"""More is taken for something else than a message of ours."""

LARGEST_OBJECT_BYTES = 2**24
"""The same for what JSON says."""

RETRY_S, ATTEMPT_S = 0.05, 5.0
"""Between attempts to reach a process that is not there yet, and of one attempt."""

_LENGTH = struct.Struct("!Q")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


class LostError(PerfmodelError, ConnectionError):
    """Another process has gone, says nothing, or was never there."""


class Connection:
    """One end of a TCP connection; ``peer`` is what errors call the other.

    ``send`` and ``receive_into`` move plain bytes. A message is its length (8 bytes, big-endian)
    and its bytes, an object a message of JSON.
    """

    def __init__(self, connected: socket.socket, timeout_s: float, peer: str) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = connected
        self.timeout_s = timeout_s
        self.peer = peer

    @property
    def timeout_s(self) -> float:
        """How long to wait for a byte to move."""
        return self.socket.gettimeout() or 0.0

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self.socket.settimeout(value)

    @property
    def local_host(self) -> str:
        """Address of this end, without its port."""
        return str(self.socket.getsockname()[0])

    @property
    def congestion(self) -> str:
        """Congestion control of what this end sends; "" where the system does not say."""
        return congestion_of(self.socket)

    def send(self, data: Buffer) -> None:
        """Send the bytes of ``data``, which needs to be contiguous."""
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
            self.send(header + bytes(view))  # one packet, where it fits
        else:
            self.send(header)
            self.send(view)

    def receive_message(self, *, at_most: int = LARGEST_MESSAGE_BYTES) -> bytearray:
        """The next message."""
        header = bytearray(_LENGTH.size)
        self.receive_into(header)
        (length,) = _LENGTH.unpack(header)
        if length > at_most:
            raise LostError(f"{self.peer}: sent something that is no message")
        message = bytearray(length)
        self.receive_into(message)
        return message

    def send_object(self, value: Any) -> None:
        """Send what JSON can say."""
        self.send_message(msgspec.json.encode(value))

    def receive_object(self, kind: Any = Any) -> Any:
        """The next message, as ``kind``."""
        try:
            message = self.receive_message(at_most=LARGEST_OBJECT_BYTES)
            return msgspec.json.decode(message, type=kind)
        except msgspec.DecodeError:
            raise LostError(f"{self.peer}: sent something that is no message") from None

    def close(self) -> None:
        """End it; the other end sees that."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def _some(self, count: int) -> int:
        if not count:
            raise LostError(f"{self.peer} has gone")
        return count

    def _lost(self, error: OSError) -> LostError:
        if isinstance(error, LostError):
            return error
        if isinstance(error, TimeoutError):
            return LostError(f"{self.peer}: nothing moved for {self.timeout_s:g} s")
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return LostError(f"{self.peer} has gone")
        return LostError(f"{self.peer} has gone ({error.strerror or error})")


def _bytes(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def transfer(
    outgoing: Sequence[tuple[Connection, Buffer]], incoming: Sequence[tuple[Connection, Buffer]]
) -> None:
    """Send and fill all buffers at once; each connection at most once in each list.

    Raises
    ------
    LostError : a process has gone, or nothing moved for the first connection's ``timeout_s``.
    """
    out = {one.socket: (one, _bytes(data)) for one, data in outgoing}
    into = {one.socket: (one, _bytes(data)) for one, data in incoming}
    # an empty buffer is done before it begins
    out = {key: value for key, value in out.items() if value[1]}
    into = {key: value for key, value in into.items() if value[1]}
    while out or into:
        first = next(iter((out or into).values()))[0]
        readable, writable, _ = select.select(list(into), list(out), [], first.timeout_s)
        if not readable and not writable:
            names = ", ".join(sorted({one.peer for one, _ in (*out.values(), *into.values())}))
            raise LostError(f"{names}: nothing moved for {first.timeout_s:g} s")
        for key in readable:
            _step(into, key, receive=True)
        for key in writable:
            _step(out, key, receive=False)


def _step(
    left: dict[socket.socket, tuple[Connection, memoryview]], key: socket.socket, *, receive: bool
) -> None:
    """Move what can be moved on one socket, and forget it when all is done."""
    one, rest = left[key]
    try:
        moved = one._some(key.recv_into(rest)) if receive else key.send(rest)
    except OSError as error:
        raise one._lost(error) from None
    if moved == len(rest):
        del left[key]
    else:
        left[key] = one, rest[moved:]


class Listener:
    """Where connections come in: port 0 is a free one, host "" every IPv4 address of this machine.

    Raises
    ------
    InputError : the address cannot be used, or ``congestion`` cannot be set.
    """

    def __init__(self, host: str, port: int, timeout_s: float, congestion: str = "") -> None:
        self.timeout_s = timeout_s
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host or "0.0.0.0", port, type=socket.SOCK_STREAM
            )[0]
            self.socket = socket.socket(family, kind, protocol)
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            set_congestion(self.socket, congestion)
            self.socket.bind(address)
            self.socket.listen(128)
        except OSError as error:
            self.socket.close()
            raise _cannot_listen(host, port, error) from None
        except InputError:
            self.socket.close()
            raise

    @property
    def port(self) -> int:
        """The port, also where 0 was asked for."""
        return int(self.socket.getsockname()[1])

    def accept(self, within_s: float, peer: str = "another process") -> Connection:
        """The next connection, which inherits the congestion control.

        Raises
        ------
        LostError : none came within ``within_s`` seconds.
        """
        self.socket.settimeout(max(within_s, 1e-3))
        try:
            return Connection(self.socket.accept()[0], self.timeout_s, peer)
        except TimeoutError:
            raise LostError(f"{peer} did not come within {within_s:.3g} s") from None
        except OSError as error:
            raise LostError(f"{peer} did not come: {error.strerror or error}") from None

    def close(self) -> None:
        """Let no more in."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()


def connect(
    host: str,
    port: int,
    timeout_s: float,
    congestion: str = "",
    peer: str = "another process",
) -> Connection:
    """Connect, as soon as somebody listens there.

    Raises
    ------
    LostError : nobody did within ``timeout_s``.
    InputError : the host is unknown, or ``congestion`` cannot be set.
    """
    until = time.monotonic() + timeout_s
    attempts = 0
    while True:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise InputError(f"--address: {host}: {error.strerror or error}") from None
        family, kind, protocol, _, address = found[attempts % len(found)]  # each in turn
        attempts += 1
        one = socket.socket(family, kind, protocol)
        try:
            set_congestion(one, congestion)
            one.settimeout(min(max(until - time.monotonic(), 1e-3), ATTEMPT_S))
            one.connect(address)
            # a port of this machine that nobody listens on can be given to the caller itself
            if one.getsockname() != one.getpeername():
                return Connection(one, timeout_s, peer)
            reason = "connection refused"
        except InputError:
            one.close()
            raise
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        one.close()
        if time.monotonic() > until:
            raise LostError(f"{peer}: no answer at {host}:{port} within {timeout_s:g} s ({reason})")
        time.sleep(RETRY_S)


def congestion_of(one: socket.socket) -> str:
    """The congestion control a socket uses, such as *cubic*; "" where the system does not say."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return ""
    return one.getsockopt(socket.IPPROTO_TCP, option, 16).partition(b"\0")[0].decode()


def set_congestion(one: socket.socket, name: str) -> None:
    """Make a socket use congestion control ``name``; "" leaves the system's.

    Raises
    ------
    InputError : the system does not have it, or does not allow it.
    """
    if not name:
        return
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        raise InputError("--congestion: this system cannot choose it")
    try:
        one.setsockopt(socket.IPPROTO_TCP, option, name.encode())
    except OSError as error:
        names = _AVAILABLE.read_text().split() if _AVAILABLE.exists() else []
        if names and name not in names:
            raise unknown_name("congestion control", name, names) from None
        raise InputError(f"--congestion: cannot use {name!r}: {error.strerror or error}") from None


def _cannot_listen(host: str, port: int, error: OSError) -> InputError:
    return InputError(f"--address: cannot listen on {host}:{port}: {error.strerror or error}")
