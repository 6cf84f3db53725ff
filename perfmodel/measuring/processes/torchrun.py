"""What processes that torchrun has started tell each other before they meet, through its store.

torchrun's store listens already at the address that it calls that of rank 0. It takes anybody, so
what is told here is as safe as torchrun itself is.
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
"""Where a token is from that rank 0 has made up."""

LOOPBACK = "127.0.0.1"
"""Where rank 0 listens if all processes are on its machine."""


class Route(msgspec.Struct, frozen=True):
    """How a rank reaches the node of rank 0: by which address, and whether it is on it itself."""

    host: str
    same_node: bool


class MeetingPoint(msgspec.Struct, frozen=True):
    """Where rank 0 listens; ``secret`` is the run's token, where the ranks were not given one."""

    host: str
    port: int
    secret: str


class Store:
    """torchrun's store.

    Raises
    ------
    LostError : it does not answer, or a rank says nothing there in time.
    """

    def __init__(self, place: Place, timeout_s: float, environment: Mapping[str, str]) -> None:
        import torch.distributed  # torchrun set the variables, so torch is there

        dist: Any = torch.distributed
        self._place, self._timeout_s = place, timeout_s
        self._key = f"perfmodel/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        try:
            self._store = dist.TCPStore(
                place.host, place.port, is_master=False, timeout=timedelta(seconds=timeout_s)
            )
        except RuntimeError as error:
            raise LostError(f"torchrun: {str(error).splitlines()[0]}") from None

    def tell_route(self) -> None:
        """Any other rank tells how it reaches the node of rank 0: as it does the store."""
        place = self._place
        try:
            with socket.create_connection((place.host, place.port), self._timeout_s) as one:
                there, here = one.getpeername()[0], one.getsockname()[0]
        except OSError as error:
            raise LostError(f"torchrun: {place.host}: {error.strerror or error}") from None
        # what comes from 127.0.0.1 to 127.0.1.1, as a node's own name often is, stays there, too
        same_node = there == here or ipaddress.ip_address(there).is_loopback
        self._set(f"route/{place.rank}", Route(there, same_node))

    def address(self) -> str:
        """Rank 0's address on the way from the others.

        torchrun often knows a node by a name that leads elsewhere on the node itself, so that
        those on other nodes are believed first.
        """
        others = range(1, self._place.ranks)
        routes = [self._get(f"route/{rank}", Route, f"rank {rank}") for rank in others]
        return next((route.host for route in routes if not route.same_node), LOOPBACK)

    def tell(self, host: str, port: int, token: Token | None) -> None:
        """Rank 0 tells where it listens, and the token that it has made up."""
        self._set("point", MeetingPoint(host, port, "" if token is None else token.text))

    def told(self) -> tuple[str, int, Token | None]:
        """What rank 0 tells."""
        point = self._get("point", MeetingPoint, "rank 0")
        token = Token(point.secret.encode(), SOURCE) if point.secret else None
        return point.host, point.port, token

    def _set(self, name: str, value: Any) -> None:
        self._store.set(f"{self._key}/{name}", msgspec.json.encode(value).decode())

    def _get(self, name: str, kind: type[T], who: str) -> T:
        try:
            said = self._store.get(f"{self._key}/{name}")
            return msgspec.json.decode(said, type=files.ready(kind))
        except (msgspec.DecodeError, RecursionError):
            raise LostError(f"torchrun: its store has something else in {name}") from None
        except RuntimeError:
            raise LostError(f"{who} did not come within {self._timeout_s:g} s") from None


def made_up() -> Token:
    """A token for a run of which nobody was given one."""
    return random_token(SOURCE)


def store_of(
    place: Place, timeout_s: float, environment: Mapping[str, str] = os.environ
) -> Store | None:
    """torchrun's store, where it listens at the address of rank 0; else None."""
    there = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or there != (
        place.host,
        str(place.port),
    ):
        return None
    return Store(place, timeout_s, environment)
