"""Hostile clients: what a stranger can do to a listening process, locally and for a short time."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from perfmodel import __version__
from perfmodel.measuring.processes.connecting import Listener
from perfmodel.measuring.processes.group import Hello, LinkHello
from perfmodel.measuring.processes.tokens import (
    ANSWER_BYTES,
    GREETING,
    PROOF_BYTES,
    QUESTION_BYTES,
    Answer,
    Token,
)
from perfmodel.measuring.training.server import HEADER, HELLO, PUSH

HOST = "127.0.0.1"
LASTS_S = 60.0
"""Longest time (s) that a hostile client waits."""

WRONG = Token(b"what a stranger would guess", "a guess")

Attack = Callable[[socket.socket], None]


def message(data: bytes, length: int | None = None) -> bytes:
    """A message of the measuring processes."""
    return struct.pack("!Q", len(data) if length is None else length) + data


def hello(rank: int, ranks: int = 3) -> bytes:
    """The first message of a rank to rank 0."""
    said = Hello("perfmodel", __version__, rank, ranks, {}, None, HOST, 1)
    return message(msgspec.json.encode(said))


def link(rank: int) -> bytes:
    """The first message of a rank on a connection for measurements."""
    return message(msgspec.json.encode(LinkHello(rank)))


def says(data: bytes) -> Attack:
    """Sends something immediately and waits for the reaction."""

    def attack(one: socket.socket) -> None:
        one.sendall(data)
        until_closed(one)

    return attack


def proving(data: bytes, done: Callable[[], None] = lambda: None) -> Attack:
    """Answers with a wrong token, then sends something; ``done`` is called at the end."""

    def attack(one: socket.socket) -> None:
        one.sendall(Answer(WRONG, received(one, QUESTION_BYTES)).frame)
        received(one, PROOF_BYTES)
        one.sendall(data)
        done()
        until_closed(one)

    return attack


def echoes(one: socket.socket) -> None:
    """Answers with the challenge itself."""
    question = received(one, QUESTION_BYTES)
    one.sendall((question + question)[:ANSWER_BYTES])
    until_closed(one)


def leaves(one: socket.socket) -> None:
    """Connects and closes."""


def resets(one: socket.socket) -> None:
    """Resets the connection."""
    one.sendall(GREETING)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half(one: socket.socket) -> None:
    """Begins correctly, then stays silent."""
    one.sendall(GREETING + b"half of a")
    until_closed(one)


NESTED = message(b'{"unknown": ' + b"[" * 1_000_000)
ATTACKS: dict[str, Attack] = {
    "wrong token": proving(b""),
    "wrong token, then rank 1": proving(hello(1)),
    "the question as answer": echoes,
    "no proof at all": says(GREETING + bytes(ANSWER_BYTES - len(GREETING))),
    "nested a million deep": says(NESTED),
    "10 GB and garbage": says(message(b"\xff garbage" * 1000, length=10 * 10**9)),
    "rank 1 again": says(hello(1)),
    "a wrong rank": says(hello(99)),
    "rank 0": says(hello(0)),
    "a wrong link": says(link(99)),
    "worker 0 again": says(HEADER.pack(HELLO, 0, 0)),
    "a wrong worker": says(HEADER.pack(HELLO, 99, 0)),
    "a piece that is none": says(HEADER.pack(PUSH, 2**32 - 1, 2**64 - 1)),
    "another protocol": says(b"GET / HTTP/1.1\r\n\r\n"),
    "control characters": says(b"\x1b[2J\x07\r\nperfmodel: error: all is lost\n"),
    "silence": says(b""),
    "half a greeting": half,
    "gone at once": leaves,
    "reset": resets,
}


def received(one: socket.socket, count: int) -> bytes:
    """The next bytes."""
    said = b""
    while len(said) < count and (some := one.recv(count - len(said))):
        said += some
    return said


def until_closed(one: socket.socket) -> None:
    """Wait until the other end closes the connection."""
    while one.recv(4096):
        pass


class Strangers:
    """Hostile clients, each with its own thread; ``addresses`` are their addresses."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def come(self, port: int, attack: Attack) -> None:
        """Connect before returning, then attack."""
        one = socket.create_connection((HOST, port), LASTS_S)
        self.addresses.append("{}:{}".format(*one.getsockname()))
        self._open.append(one)
        thread = threading.Thread(target=self._attack, args=(one, attack), daemon=True)
        thread.start()
        self._threads.append(thread)

    def __enter__(self) -> Strangers:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LASTS_S)
        for one in self._open:
            one.close()

    @staticmethod
    def _attack(one: socket.socket, attack: Attack) -> None:
        with contextlib.suppress(OSError):
            attack(one)
        one.close()


def attacked(strangers: Strangers, *attacks: Attack) -> Any:
    """A listener that strangers reach before any other client."""

    class Attacked(Listener):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            for attack in attacks:
                strangers.come(self.port, attack)

    return Attacked
