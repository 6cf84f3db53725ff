"""Exchange of addresses through torchrun's store, before the processes connect.

torchrun's store already listens at the address that torchrun gives for rank 0. It has no
authentication, so this exchange is only as secure as torchrun itself.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from perfmodel.base import files
from perfmodel.measuring.processes.ranks import Place
from perfmodel.measuring.processes.sockets import LostError
from perfmodel.measuring.processes.tokens import Token, random_token

T = TypeVar("T")

SOURCE = "torchrun's store"
"""Origin of a token that rank 0 generates."""

LOOPBACK = "127.0.0.1"
"""Address of rank 0 if all processes are on its machine."""


class Route(msgspec.Struct, frozen=True):
    """Address at which a rank reaches the node of rank 0, and whether it is on that node."""

    host: str
    same_node: bool


class Rendezvous(msgspec.Struct, frozen=True):
    """Address of rank 0; ``secret`` is the run's token, if the ranks were not given one."""

    host: str
    port: int
    secret: str


class Store:
    """torchrun's store.

    Raises
    ------
    LostError : it does not answer, or a rank does not write to it in time.
    """

    def __init__(self, place: Place, timeout_s: float, environment: Mapping[str, str]) -> None:
        import torch.distributed  # torchrun set the variables, so torch is installed

        dist: Any = torch.distributed
        self._place, self._timeout_s = place, timeout_s
        self._key = f"perfmodel/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        try:
            self._store = dist.TCPStore(
                place.host, place.port, is_master=False, timeout=timedelta(seconds=timeout_s)
            )
        except RuntimeError as error:
            raise LostError(f"torchrun: {str(error).splitlines()[0]}") from None

    def publish_route(self) -> None:
        """Publish how this rank reaches the node of rank 0: the way it reaches the store."""
        place = self._place
        try:
            with socket.create_connection((place.host, place.port), self._timeout_s) as one:
                there, here = one.getpeername()[0], one.getsockname()[0]
        except OSError as error:
            raise LostError(f"torchrun: {place.host}: {error.strerror or error}") from None
        # a node's own name often resolves to 127.0.1.1, which is reached from 127.0.0.1
        same_node = there == here or ipaddress.ip_address(there).is_loopback
        self._set(f"route/{place.rank}", Route(there, same_node))

    def address(self) -> str:
        """Return the address at which the others see rank 0.

        A node's name often resolves differently on the node itself, so addresses seen from other
        nodes take precedence.
        """
        others = range(1, self._place.ranks)
        routes = [self._get(f"route/{rank}", Route, f"rank {rank}") for rank in others]
        return next((route.host for route in routes if not route.same_node), LOOPBACK)

    def publish(self, host: str, port: int, token: Token | None) -> None:
        """Publish rank 0's address and generated token."""
        self._set("point", Rendezvous(host, port, "" if token is None else token.text))

    def published(self) -> tuple[str, int, Token | None]:
        """Return rank 0's address and generated token, if any."""
        point = self._get("point", Rendezvous, "rank 0")
        token = Token(point.secret.encode(), SOURCE) if point.secret else None
        return point.host, point.port, token

    def _set(self, name: str, value: Any) -> None:
        self._store.set(f"{self._key}/{name}", msgspec.json.encode(value).decode())

    def _get(self, name: str, kind: type[T], writer: str) -> T:
        try:
            stored = self._store.get(f"{self._key}/{name}")
            return msgspec.json.decode(stored, type=files.ready(kind))
        except (msgspec.DecodeError, RecursionError):
            raise LostError(f"torchrun: the entry {name} of its store is invalid") from None
        except RuntimeError:
            raise LostError(f"{writer} did not connect within {self._timeout_s:g} s") from None


def generated_token() -> Token:
    """Generate a token for a run that was given none."""
    return random_token(SOURCE)


def store_of(
    place: Place, timeout_s: float, environment: Mapping[str, str] = os.environ
) -> Store | None:
    """Return torchrun's store if it listens at the address of rank 0, else None."""
    there = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or there != (
        place.host,
        str(place.port),
    ):
        return None
    return Store(place, timeout_s, environment)
