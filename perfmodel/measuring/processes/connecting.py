"""Connections between the processes of a run: listen, connect, reject strangers.

Both ends prove that they know the run's token (:mod:`.tokens`) before anything else is sent. Any
other connection is closed with one logged line, and does not delay valid ones.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING

from perfmodel.base.errors import InputError
from perfmodel.measuring.processes.sockets import (
    Closing,
    Connection,
    LostError,
    printable,
    ready,
    set_congestion,
)
from perfmodel.measuring.processes.tokens import (
    ANSWER_BYTES,
    PROOF_BYTES,
    QUESTION_BYTES,
    REFUSED,
    VARIABLE,
    Answer,
    Question,
    Token,
    is_greeting,
)

if TYPE_CHECKING:
    pass

RETRY_S, ATTEMPT_S = 0.05, 5.0
"""Time between attempts to reach a process that is not listening yet, and time limit of one
attempt."""

HANDSHAKE_S = 5.0
"""Time limit for a connecting process to prove that it knows the token."""

MOST_VISITORS = 64
"""Maximum number of unauthenticated connections; if there are more, the oldest is closed."""

MOST_LOGGED = 100
"""Maximum number of rejected connections that a listener logs; then it logs once that there are
more."""

_QUOTED_BYTES = 40
"""Maximum number of bytes quoted from a rejected connection."""

_LOG = logging.getLogger("perfmodel.measuring")


class Visitor:
    """A connection to a :class:`Listener` that is not authenticated yet."""

    def __init__(self, accepted: socket.socket, address: str, token: Token) -> None:
        self.socket, self.address = accepted, address
        self.until = time.monotonic() + HANDSHAKE_S
        self._question = Question(token)
        self._received = bytearray()
        accepted.setblocking(False)
        accepted.send(self._question.frame)  # far smaller than any buffer

    def listen(self) -> bool:
        """Read available data, and return whether the visitor is now authenticated.

        Raises
        ------
        LostError : it is rejected; the text gives the reason.
        """
        received = self.socket.recv(ANSWER_BYTES - len(self._received))
        if not received:
            raise LostError(f"disconnected{self._quoted()}")
        self._received += received
        if not is_greeting(self._received):
            raise LostError(f"is not a perfmodel process of this version{self._quoted()}")
        if len(self._received) < ANSWER_BYTES:
            return False
        verdict = self._question.verdict(bytes(self._received))
        self.socket.send(verdict)
        if verdict == REFUSED:
            raise LostError("has a different token")
        return True

    def late(self, when: str) -> LostError:
        """Return the error for a visitor that exceeds its time."""
        return LostError(f"did not authenticate {when}{self._quoted()}")

    def _quoted(self) -> str:
        if not self._received:
            return "; sent nothing"
        return f"; sent {bytes(self._received[:_QUOTED_BYTES])!r}"


class Listener(Closing):
    """Accepts connections from processes that know the run's token; ``host`` is an address of this
    machine.

    Port 0 selects a free port.

    Raises
    ------
    InputError : the address cannot be used, or ``congestion`` cannot be set.
    """

    def __init__(
        self, host: str, port: int, timeout_s: float, token: Token, congestion: str = ""
    ) -> None:
        self.timeout_s = timeout_s
        self._token = token
        self._visitors: dict[socket.socket, Visitor] = {}
        self._dropped = 0
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )[0]
            self.socket = socket.socket(family, kind, protocol)
        except (OSError, UnicodeError) as error:
            raise _cannot_listen(host, port, error) from None
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            set_congestion(self.socket, congestion)
            self.socket.bind(address)
            self.socket.listen(128)
            self.socket.setblocking(False)
        except OSError as error:
            self.socket.close()
            raise _cannot_listen(host, port, error) from None
        except InputError:
            self.socket.close()
            raise

    @property
    def host(self) -> str:
        """The address."""
        return str(self.socket.getsockname()[0])

    @property
    def port(self) -> int:
        """The actual port, even if 0 was requested."""
        return int(self.socket.getsockname()[1])

    def accept(self, within_s: float, peer: str = "another process") -> Connection:
        """Return the next authenticated connection; it inherits the congestion control.

        All visitors are served concurrently, each for at most :data:`HANDSHAKE_S`.

        Raises
        ------
        LostError : none connected within ``within_s`` seconds.
        """
        until = time.monotonic() + within_s
        while True:
            ends_s = min([until, *(one.until for one in self._visitors.values())])
            readable, _ = ready(
                [self.socket, *self._visitors], within_s=max(ends_s - time.monotonic(), 1e-3)
            )
            for one in [self._visitors[key] for key in readable if key in self._visitors]:
                if self._proves(one):
                    del self._visitors[one.socket]
                    return Connection(one.socket, self.timeout_s, peer, one.address)
            if self.socket in readable:
                self._let_in(peer)
            now = time.monotonic()
            for one in [one for one in self._visitors.values() if one.until <= now]:
                self._drop(one, one.late(f"within {HANDSHAKE_S:g} s"))
            if now >= until:
                raise LostError(f"{peer} did not connect within {within_s:.3g} s")

    def reject(self, one: Connection, why: str) -> None:
        """Close a connection whose other end cannot take part, and log the reason ``why``."""
        self._log(one.address, why)
        one.close()

    def close(self) -> None:
        """Stop accepting connections."""
        for one in list(self._visitors.values()):
            self._drop(one, one.late("before the listener closed"))
        self.socket.close()

    def _let_in(self, peer: str) -> None:
        """Accept another visitor, and send it a challenge."""
        if len(self._visitors) >= MOST_VISITORS:
            first = next(iter(self._visitors.values()))
            self._drop(first, LostError("too many connections were waiting to authenticate"))
        try:
            accepted, (host, number, *_) = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has already disconnected
        except OSError as error:
            raise LostError(f"{peer} could not connect: {error.strerror or error}") from None
        address = f"{host}:{number}"
        try:
            self._visitors[accepted] = Visitor(accepted, address, self._token)
        except OSError:
            accepted.close()
            self._log(address, "disconnected; sent nothing")

    def _proves(self, one: Visitor) -> bool:
        """Return whether a visitor is authenticated; close it if it is invalid."""
        try:
            return one.listen()
        except LostError as error:
            self._drop(one, error)
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(one, LostError(f"disconnected ({error.strerror or error})"))
        return False

    def _drop(self, one: Visitor, why: LostError) -> None:
        del self._visitors[one.socket]
        one.socket.close()
        self._log(one.address, str(why))

    def _log(self, address: str, why: str) -> None:
        self._dropped += 1
        if self._dropped <= MOST_LOGGED:
            _LOG.warning("dropped %s: %s", address, printable(why))
        elif self._dropped == MOST_LOGGED + 1:
            _LOG.warning("dropped %d connections; no more will be logged", self._dropped)


def connect(
    host: str,
    port: int,
    timeout_s: float,
    token: Token,
    congestion: str = "",
    peer: str = "another process",
) -> Connection:
    """Connect as soon as a process that knows the token listens at this address.

    Raises
    ------
    LostError : none listened within ``timeout_s``.
    InputError : the host is unknown, the listener has a different token, or ``congestion`` cannot
    be set.
    """
    until = time.monotonic() + timeout_s
    attempts = 0
    while True:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise InputError(f"--address: {host}: {_reason(error)}") from None
        family, kind, protocol, _, address = found[attempts % len(found)]  # each in turn
        attempts += 1
        one = socket.socket(family, kind, protocol)
        try:
            set_congestion(one, congestion)
            one.settimeout(min(max(until - time.monotonic(), 1e-3), ATTEMPT_S))
            one.connect(address)
            # connecting to a local port without a listener can connect the socket to itself
            if one.getsockname() != one.getpeername():
                _prove(one, token, until, f"{peer} at {host}:{port}")
                return Connection(one, timeout_s, peer)
            reason = "connection refused"
        except InputError:
            one.close()
            raise
        except OSError as error:
            reason = _reason(error).lower()
        one.close()
        if time.monotonic() > until:
            raise LostError(f"{peer}: no answer at {host}:{port} within {timeout_s:g} s ({reason})")
        time.sleep(RETRY_S)


def _prove(one: socket.socket, token: Token, until: float, peer: str) -> None:
    """Answer the listener's challenge, and check its proof.

    Raises
    ------
    InputError : it has a different token, or is not a perfmodel process of this version.
    OSError : it has disconnected, or does not answer.
    """
    answer = Answer(token, _exactly(one, QUESTION_BYTES, until, peer))
    one.sendall(answer.frame)
    verdict = _exactly(one, PROOF_BYTES, until, "")
    if verdict == REFUSED:
        raise InputError(
            f"{peer} has a different token from this rank's ({token.source}); give all ranks the "
            f"same one, with {VARIABLE} or --token-file"
        )
    if not answer.accepts(verdict):
        raise InputError(f"{peer} does not know this rank's token ({token.source})")


def _exactly(one: socket.socket, count: int, until: float, greeted_by: str) -> bytes:
    """Receive ``count`` bytes before ``until``; if ``greeted_by`` is given, they must begin with a
    greeting."""
    received = bytearray()
    while len(received) < count:
        if not ready([one], within_s=until - time.monotonic())[0]:
            raise TimeoutError("it sent nothing")
        some = one.recv(count - len(received))
        if not some:
            raise ConnectionResetError("it closed the connection")
        received += some
        if greeted_by and not is_greeting(received):
            raise InputError(f"{greeted_by} is not a perfmodel process of this version")
    return bytes(received)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _cannot_listen(host: str, port: int, error: Exception) -> InputError:
    return InputError(f"--address, --listen: cannot listen on {host}:{port}: {_reason(error)}")
