"""A group of connected processes that agree on their arguments and end together.

Rank 0 listens. The others connect, prove that they know the run's token, send their rank and
arguments, and are told whether all agree. Then each has a *control* connection to rank 0 (rank 0 to
each), over which rank 0 sends orders, and a *link* for measurements to rank 0 and to its two
neighbours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perfmodel import __version__
from perfmodel.base.errors import InputError, PerfmodelError
from perfmodel.measuring.processes import torchrun
from perfmodel.measuring.processes.connecting import HANDSHAKE_S, Listener, connect
from perfmodel.measuring.processes.interfaces import address_of
from perfmodel.measuring.processes.ranks import EVERYWHERE, Place
from perfmodel.measuring.processes.sockets import Closing, Connection, LostError, printable, ready
from perfmodel.measuring.processes.tokens import Token, given_token, own_token

if TYPE_CHECKING:
    from typing import Self

GREETING = "perfmodel"

_LOG = logging.getLogger("perfmodel.measuring")

GRACE_S = 5.0
"""How much longer the others wait for rank 0's answer than it waits for them."""

LAST_WORD_S = 2.0
"""How long a process that lost another waits for the reason from the others."""


class Hello(msgspec.Struct):
    """First message of a rank; ``port`` is where its neighbour connects, 0 if it has none."""

    greeting: str
    version: str
    rank: int
    ranks: int
    arguments: dict[str, str]
    node: int | None
    host: str
    port: int


class LinkHello(msgspec.Struct):
    """First message of a rank on a link: its number."""

    link: int


class Welcome(msgspec.Struct):
    """Answer of rank 0: an ``error``, or the addresses and nodes of all ranks."""

    error: str
    addresses: list[tuple[str, int]]
    nodes: list[int]


class Group(Closing):
    """This process as a member of a group (:func:`meet`).

    Attributes
    ----------
    control : connections for orders, by rank: to all on rank 0, to rank 0 elsewhere.
    links : connections for measurements, by rank.
    nodes : node of each rank, by number from 0, (ranks,).
    token : the shared secret.
    local_host : address of this process, as the others see it.
    rank_0_host : address of rank 0, as this process reaches it.
    patience_s : how long to wait for a message, which may come only after others have done work.
    """

    def __init__(self, place: Place, token: Token, timeout_s: float) -> None:
        self.place, self.token = place, token
        self.patience_s = timeout_s
        self.control: dict[int, Connection] = {}
        self.links: dict[int, Connection] = {}
        self.nodes: tuple[int, ...] = ()
        self.local_host = self.rank_0_host = place.host

    def tell(self, rank: int, value: Any) -> None:
        """Send ``rank`` an order, or an answer."""
        self.control[rank].send_object({"value": value})

    def hear(self, rank: int) -> Any:
        """The next message of ``rank``, within ``patience_s``.

        Raises
        ------
        LostError : it has disconnected, or sends nothing.
        PerfmodelError : it sends the reason for which all end.
        """
        one = self.control[rank]
        one.timeout_s = self.patience_s
        word = one.receive_object(dict[str, Any])
        if "error" in word:
            raise PerfmodelError(word["error"])
        if "value" not in word:
            raise one.no_message()
        return word["value"]

    @contextlib.contextmanager
    def together(self) -> Iterator[Self]:
        """An error inside, in one process, ends all of them with the same message."""
        try:
            yield self
        except PerfmodelError as error:
            reason = self._reason(error)
            for one in self.control.values():
                with contextlib.suppress(LostError):
                    one.send_object({"error": reason})
            raise type(error)(reason) from None
        finally:
            self.close()

    def _reason(self, error: PerfmodelError) -> str:
        """The reason that another rank sends for ``error``, or which one was lost; else its own
        text."""
        if not isinstance(error, LostError):
            return str(error)
        sockets = {one.socket: one for one in self.control.values()}
        until = time.monotonic() + LAST_WORD_S
        while (left := until - time.monotonic()) > 0:
            for key in ready(sockets, within_s=left)[0]:
                try:
                    word = sockets[key].receive_object(dict[str, Any])
                except LostError as found:
                    return str(found)
                if "error" in word:
                    return str(word["error"])
        return str(error)

    def close(self) -> None:
        """End all connections."""
        for one in (*self.control.values(), *self.links.values()):
            one.close()


def meet(
    place: Place,
    arguments: Mapping[str, str],
    *,
    timeout_s: float,
    congestion: str = "",
    node: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Group:
    """Meet the other ranks, whose version and ``arguments`` (by flag) must be the same.

    Parameters
    ----------
    place : ``token`` None means that of the environment (``PERFMODEL_TOKEN``), else under torchrun
    one generated by rank 0, else this user's (:func:`.tokens.own_token`).
    timeout_s : how long to wait for them, and later for any connection without progress.
    congestion : congestion control of all connections; "" for the system's.
    node : number of this rank's node. Either all ranks give one or none; then ranks with the same
    address share a node.

    Raises
    ------
    InputError : they do not agree, have other tokens, or the address cannot be used.
    LostError : one did not connect, or has disconnected.
    """
    hello = Hello(
        GREETING, __version__, place.rank, place.ranks, dict(arguments), node, place.host, 0
    )
    store = torchrun.store_of(place, timeout_s, environment)
    token = place.token or given_token(None, environment)
    if token is None and store is None:
        token = own_token(environment)
    if place.rank == 0:
        return _receive_all(place, hello, store, token, timeout_s, congestion)
    return _come(place, hello, store, token, timeout_s, congestion)


def _receive_all(
    place: Place,
    own: Hello,
    store: torchrun.Store | None,
    given: Token | None,
    timeout_s: float,
    congestion: str,
) -> Group:
    """Rank 0: wait for the others, check their messages, let them connect to each other."""
    until = time.monotonic() + timeout_s
    token = given or torchrun.made_up()
    host, port = _listens_on(place), place.port
    if store is not None:
        host, port = host or store.address(), 0
    with (
        Listener(host or place.host, port, timeout_s, token, congestion) as listener,
        _closed_on_error(Group(place, token, timeout_s)) as group,
    ):
        _LOG.info(
            "rank 0 listens on %s, port %d; token: %s",
            listener.host,
            listener.port,
            printable(token.source),
        )
        if store is not None:
            there = place.host if listener.host in EVERYWHERE else listener.host
            store.tell(there, listener.port, None if given else token)
        said = {0: own}
        error = ""
        while len(said) < place.ranks and not error:
            try:
                one, hello = _visitor(listener, until, Hello)
            except LostError:
                missing = [f"{rank}" for rank in range(place.ranks) if rank not in said]
                error = f"rank {', '.join(missing)} did not come within {timeout_s:g} s"
                continue
            error = _refusal(own, hello, said)
            if hello.rank in group.control or not 0 < hello.rank < place.ranks:
                _answer(one, Welcome(error, [], []))
                one.close()
                continue
            said[hello.rank] = hello
            one.peer = f"rank {hello.rank}"
            group.control[hello.rank] = one
            group.local_host = group.rank_0_host = own.host = one.local_host
        if not error:
            error = _disagreement(said)
        addresses, nodes = [], []
        if not error:
            addresses = [(said[rank].host, said[rank].port) for rank in range(place.ranks)]
            nodes = _nodes([said[rank] for rank in range(place.ranks)])
        for one in group.control.values():
            _answer(one, Welcome(error, addresses, nodes))
        if error:
            raise InputError(error)
        group.nodes = tuple(nodes)
        _let_in(group, listener, set(range(1, place.ranks)))
    return group


def _come(
    place: Place,
    own: Hello,
    store: torchrun.Store | None,
    given: Token | None,
    timeout_s: float,
    congestion: str,
) -> Group:
    """Any other rank: connect to rank 0, then open links to it and to the neighbours."""
    host, port, token = place.host, place.port, given
    if store is not None:
        store.tell_route()
        host, port, made_up = store.told()
        token = given or made_up
    if token is None:
        raise InputError("rank 0 was given a token and this rank none; give all the same")
    with _closed_on_error(Group(place, token, timeout_s)) as group:
        control = connect(host, port, timeout_s, token, congestion, "rank 0")
        group.control[0] = control
        group.rank_0_host = control.remote_host
        listen = _listens_on(place) or control.local_host
        own.host = control.local_host if listen in EVERYWHERE else listen
        group.local_host = own.host
        with contextlib.ExitStack() as stack:
            listener = None
            if place.rank + 1 < place.ranks:
                listener = Listener(listen, 0, timeout_s, token, congestion)
                own.port = stack.enter_context(listener).port
            control.send_object(msgspec.to_builtins(own))
            control.timeout_s = timeout_s + GRACE_S
            welcome = control.receive_object(Welcome)
            control.timeout_s = timeout_s
            if welcome.error:
                raise InputError(welcome.error)
            group.nodes = tuple(welcome.nodes)
            meeting = [(0, (host, port))]
            if place.rank > 1:
                meeting.append((place.rank - 1, welcome.addresses[place.rank - 1]))
            for rank, (there, door) in meeting:
                link = connect(there, door, timeout_s, token, congestion, f"rank {rank}")
                group.links[rank] = link
                link.send_object(msgspec.to_builtins(LinkHello(place.rank)))
            if listener is not None:
                _let_in(group, listener, {place.rank + 1})
    return group


@contextlib.contextmanager
def _closed_on_error(group: Group) -> Iterator[Group]:
    try:
        yield group
    except BaseException:
        group.close()
        raise


def _listens_on(place: Place) -> str:
    """The address to listen on, resolved if an interface was given; or ""."""
    return address_of(place.listen) or place.listen


def _let_in(group: Group, listener: Listener, awaited: set[int]) -> None:
    """Accept the links of other ranks."""
    until = time.monotonic() + listener.timeout_s
    while awaited:
        names = ", ".join(map(str, sorted(awaited)))
        link, found = _visitor(listener, until, LinkHello, f"rank {names}")
        if found.link not in awaited:
            listener.turn_away(link, f"says that it is rank {found.link}, which is not awaited")
            continue
        awaited.remove(found.link)
        link.peer = f"rank {found.link}"
        group.links[found.link] = link


def _visitor(
    listener: Listener, until: float, kind: Any, peer: str = "another process"
) -> tuple[Connection, Any]:
    """The next connection with the expected first message; others are closed."""
    timeout_s = listener.timeout_s
    while True:
        one = listener.accept(until - time.monotonic(), peer)
        try:
            one.timeout_s = min(HANDSHAKE_S, timeout_s)
            found = one.receive_object(kind)
        except LostError as error:
            listener.turn_away(one, str(error))
            continue
        one.timeout_s = timeout_s
        return one, found


def _answer(one: Connection, welcome: Welcome) -> None:
    with contextlib.suppress(LostError):
        one.send_object(msgspec.to_builtins(welcome))


def _refusal(own: Hello, hello: Hello, said: Mapping[int, Hello]) -> str:
    """Why a rank cannot take part, regardless of the others; "" if it can."""
    if hello.greeting != GREETING or hello.version != own.version:
        version = printable(hello.version)
        return f"rank {hello.rank} runs perfmodel {version}, rank 0 runs {own.version}"
    if hello.ranks != own.ranks:
        return f"rank {hello.rank} was given --ranks {hello.ranks}, rank 0 --ranks {own.ranks}"
    if hello.rank in said or not 0 < hello.rank < own.ranks:
        return f"two processes were given --rank {hello.rank}"
    return ""


def _disagreement(said: Mapping[int, Hello]) -> str:
    """The first difference between the ranks' arguments; "" if there is none."""
    own = said[0]
    for rank in range(1, own.ranks):
        other = said[rank]
        for flag in {**own.arguments, **other.arguments}:
            here, there = own.arguments.get(flag, ""), other.arguments.get(flag, "")
            if here != there:
                flag = printable(flag)
                return f"rank {rank} was given {flag} {there!r}, rank 0 {here!r}"
        if (own.node is None) != (other.node is None):
            return f"--node: give it to all ranks or to none; rank 0 and rank {rank} differ"
    return ""


def _nodes(said: Sequence[Hello]) -> list[int]:
    """Node of each rank: as given, or one for each address."""
    hosts = list(dict.fromkeys(one.host for one in said))
    return [hosts.index(one.host) if one.node is None else one.node for one in said]
