"""Rank of this process and rendezvous address, from flags or from torchrun's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.measuring.processes.tokens import Token, given_token

DEFAULT_ADDRESS = "127.0.0.1:29500"

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each process."""


EVERYWHERE = ("0.0.0.0", "::")
"""Wildcard addresses: valid to listen on, not to connect to."""


class Place(msgspec.Struct, frozen=True):
    """Rank of a process among ``ranks`` processes; rank 0 listens at ``host``, ``port``.

    Attributes
    ----------
    listen : address or network interface to listen on; empty for the address at which the others
    reach this process.
    token : the shared secret; for None see :func:`perfmodel.measuring.processes.group.meet`.
    """

    rank: int
    ranks: int
    host: str
    port: int
    listen: str = ""
    token: Token | None = None


def place(
    rank: int | None,
    ranks: int | None,
    address: str | None,
    listen: str | None = None,
    token_file: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Place:
    """Return the place given by flags, completed from torchrun's variables.

    ``address`` is HOST:PORT of rank 0.

    Raises
    ------
    InputError : a value is given by neither or out of range, or the token cannot be read.
    """
    rank = _number(rank, "--rank", "RANK", environment)
    ranks = _number(ranks, "--ranks", "WORLD_SIZE", environment)
    if address is None and "MASTER_ADDR" in environment:
        address = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '')}"
    host, _, port = (address or DEFAULT_ADDRESS).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--address: expected HOST:PORT, got {address!r}")
    host = host.strip("[]")
    if host in EVERYWHERE:
        raise InputError(
            f"--address: {host} is not an address that other ranks can reach; to listen on all "
            f"addresses, give --listen {host}"
        )
    if listen is not None and not listen.strip("[]"):
        raise InputError("--listen: expected an address or a network interface, got nothing")
    whole_number("--ranks", ranks, at_least=2)
    whole_number("--rank", rank, at_least=0)
    number("--rank", rank, at_most=ranks - 1)
    token = given_token(token_file, environment)
    return Place(rank, ranks, host, int(port), (listen or "").strip("[]"), token)


def _number(given: int | None, flag: str, name: str, environment: Mapping[str, str]) -> int:
    if given is not None:
        return given
    text = environment.get(name)
    if text is None:
        raise InputError(f"{flag}: needed, since torchrun did not start this process (no {name})")
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name}: expected a whole number, got {text!r}") from None
