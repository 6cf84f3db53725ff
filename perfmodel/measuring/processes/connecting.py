"""Connections between the processes of a run: listening, connecting, rejecting strangers.

Both ends prove that they know the run's token (:mod:`.tokens`) before anything else is sent. Other
connections are closed with one logged line, and do not delay valid ones.
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
"""Time between attempts to reach a process that does not listen yet, and limit of one attempt."""

HANDSHAKE_S = 5.0
"""Time limit for a connecting process to prove that it knows the token."""

MOST_VISITORS = 64
"""Most unauthenticated connections at a time; beyond, the oldest is closed."""

MOST_LOGGED = 100
"""Most rejected connections that a listener logs; then it logs once that there are more."""

_QUOTED_BYTES = 40
"""Bytes quoted of what a rejected connection sent."""

_LOG = logging.getLogger("perfmodel.measuring")


class Visitor:
    """A connection to a :class:`Listener` that is not authenticated yet."""

    def __init__(self, accepted: socket.socket, address: str, token: Token) -> None:
        self.socket, self.address = accepted, address
        self.until = time.monotonic() + HANDSHAKE_S
        self._question = Question(token)
        self._said = bytearray()
        accepted.setblocking(False)
        accepted.send(self._question.frame)  # far smaller than any buffer

    def listen(self) -> bool:
        """Read available data; whether the visitor is now authenticated.

        Raises
        ------
        LostError : it is rejected; the text has the reason.
        """
        said = self.socket.recv(ANSWER_BYTES - len(self._said))
        if not said:
            raise LostError(f"has gone{self._quoted()}")
        self._said += said
        if not is_greeting(self._said):
            raise LostError(f"is no process of this version of perfmodel{self._quoted()}")
        if len(self._said) < ANSWER_BYTES:
            return False
        verdict = self._question.verdict(bytes(self._said))
        self.socket.send(verdict)
        if verdict == REFUSED:
            raise LostError("has another token")
        return True

    def late(self, when: str) -> LostError:
        """Error for a visitor that exceeds its time."""
        return LostError(f"did not prove {when} who it is{self._quoted()}")

    def _quoted(self) -> str:
        if not self._said:
            return "; said nothing"
        return f"; said {bytes(self._said[:_QUOTED_BYTES])!r}"


class Listener(Closing):
    """Accepts connections of processes that know the run's token; ``host`` is an address of this
    machine.

    Port 0 is a free one.

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
        """The port, also where 0 was asked for."""
        return int(self.socket.getsockname()[1])

    def accept(self, within_s: float, peer: str = "another process") -> Connection:
        """The next authenticated connection; it inherits the congestion control.

        All visitors are served concurrently, each for :data:`HANDSHAKE_S` at most.

        Raises
        ------
        LostError : none came within ``within_s`` seconds.
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
                raise LostError(f"{peer} did not come within {within_s:.3g} s")

    def turn_away(self, one: Connection, why: str) -> None:
        """Close a connection whose other end cannot take part, and log ``why``."""
        self._log(one.address, why)
        one.close()

    def close(self) -> None:
        """Stop accepting connections."""
        for one in list(self._visitors.values()):
            self._drop(one, one.late("before all were there"))
        self.socket.close()

    def _let_in(self, peer: str) -> None:
        """Accept one more visitor, and send it a challenge."""
        if len(self._visitors) >= MOST_VISITORS:
            first = next(iter(self._visitors.values()))
            self._drop(first, LostError("had to make room for others"))
        try:
            accepted, (host, number, *_) = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has disconnected already
        except OSError as error:
            raise LostError(f"{peer} did not come: {error.strerror or error}") from None
        address = f"{host}:{number}"
        try:
            self._visitors[accepted] = Visitor(accepted, address, self._token)
        except OSError:
            accepted.close()
            self._log(address, "has gone; said nothing")

    def _proves(self, one: Visitor) -> bool:
        """Whether a visitor is authenticated; invalid ones are closed."""
        try:
            return one.listen()
        except LostError as error:
            self._drop(one, error)
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(one, LostError(f"has gone ({error.strerror or error})"))
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
            _LOG.warning("dropped %d connections; further ones are not logged", self._dropped)


def connect(
    host: str,
    port: int,
    timeout_s: float,
    token: Token,
    congestion: str = "",
    peer: str = "another process",
) -> Connection:
    """Connect, as soon as a process that knows the token listens there.

    Raises
    ------
    LostError : none did within ``timeout_s``.
    InputError : the host is unknown, the listener has another token, or ``congestion`` cannot be
    set.
    """
    until = time.monotonic() + timeout_s
    attempts = 0
    while True:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise InputError(f"--address: {host}: {_said(error)}") from None
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
            reason = _said(error).lower()
        one.close()
        if time.monotonic() > until:
            raise LostError(f"{peer}: no answer at {host}:{port} within {timeout_s:g} s ({reason})")
        time.sleep(RETRY_S)


def _prove(one: socket.socket, token: Token, until: float, who: str) -> None:
    """Answer the listener's challenge, and check its proof.

    Raises
    ------
    InputError : it has another token, or is not a process of this kind.
    OSError : it has disconnected, or does not answer.
    """
    answer = Answer(token, _exactly(one, QUESTION_BYTES, until, who))
    one.sendall(answer.frame)
    verdict = _exactly(one, PROOF_BYTES, until, "")
    if verdict == REFUSED:
        raise InputError(
            f"{who} has another token than {token.source} here; give all ranks the same one, by "
            f"{VARIABLE} or --token-file"
        )
    if not answer.accepts(verdict):
        raise InputError(f"{who} does not know the token of {token.source}")


def _exactly(one: socket.socket, count: int, until: float, greeted_by: str) -> bytes:
    """Receive ``count`` bytes in time, and check that they begin with a greeting where one is
    expected."""
    said = bytearray()
    while len(said) < count:
        if not ready([one], within_s=until - time.monotonic())[0]:
            raise TimeoutError("it says nothing")
        some = one.recv(count - len(said))
        if not some:
            raise ConnectionResetError("it hung up")
        said += some
        if greeted_by and not is_greeting(said):
            raise InputError(f"{greeted_by} is no process of this version of perfmodel")
    return bytes(said)


def _said(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _cannot_listen(host: str, port: int, error: Exception) -> InputError:
    return InputError(f"--address, --listen: cannot listen on {host}:{port}: {_said(error)}")
