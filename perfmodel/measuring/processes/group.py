"""A group of connected processes that agree on their arguments and end together.

Rank 0 listens. The others connect, prove that they know the run's token, and send their rank and
arguments; rank 0 answers whether all agree. Each rank then has a *control* connection to rank 0,
over which rank 0 sends orders, and *links* for measurements to rank 0 and to its two neighbours.
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
"""How much longer the other ranks wait for rank 0's answer than rank 0 waits for them."""

REASON_WITHIN_S = 2.0
"""How long a process that has lost another waits for the others to send the reason."""


class Hello(msgspec.Struct):
    """First message of a rank; its neighbour connects to ``port``, which is 0 if it has none."""

    greeting: str
    version: str
    rank: int
    ranks: int
    arguments: dict[str, str]
    node: int | None
    host: str
    port: int


class LinkHello(msgspec.Struct):
    """First message of a rank on a link: its rank."""

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
    control : connections for orders, by rank: on rank 0 to all others, elsewhere to rank 0.
    links : connections for measurements, by rank.
    nodes : node of each rank, numbered from 0, (ranks,).
    token : the shared secret.
    local_host : address at which the others see this process.
    rank_0_host : address at which this process reaches rank 0.
    patience_s : how long to wait for a message, including the work that its sender does first.
    """

    def __init__(self, place: Place, token: Token, timeout_s: float) -> None:
        self.place, self.token = place, token
        self.patience_s = timeout_s
        self.control: dict[int, Connection] = {}
        self.links: dict[int, Connection] = {}
        self.nodes: tuple[int, ...] = ()
        self.local_host = self.rank_0_host = place.host

    def send(self, rank: int, value: Any) -> None:
        """Send an order or an answer to ``rank``."""
        self.control[rank].send_object({"value": value})

    def receive(self, rank: int) -> Any:
        """Return the next message from ``rank``, received within ``patience_s``.

        Raises
        ------
        LostError : it has disconnected, or sends nothing.
        PerfmodelError : it sends the reason why all processes end.
        """
        one = self.control[rank]
        one.timeout_s = self.patience_s
        message = one.receive_object(dict[str, Any])
        if "error" in message:
            raise PerfmodelError(message["error"])
        if "value" not in message:
            raise one.no_message()
        return message["value"]

    @contextlib.contextmanager
    def together(self) -> Iterator[Self]:
        """End all processes with the same message if one of them raises an error inside."""
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
        """Return the text of ``error``; if it is a LostError, prefer the reason that another rank
        sends, or the rank found lost."""
        if not isinstance(error, LostError):
            return str(error)
        sockets = {one.socket: one for one in self.control.values()}
        until = time.monotonic() + REASON_WITHIN_S
        while (left := until - time.monotonic()) > 0:
            for key in ready(sockets, within_s=left)[0]:
                try:
                    message = sockets[key].receive_object(dict[str, Any])
                except LostError as found:
                    return str(found)
                if "error" in message:
                    return str(message["error"])
        return str(error)

    def close(self) -> None:
        """Close all connections."""
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
    """Connect to the other ranks, whose version and ``arguments`` (by flag) must be the same.

    Parameters
    ----------
    place : rank and rendezvous address. A ``token`` of None means the one in the environment
    (``PERFMODEL_TOKEN``); without it, under torchrun one that rank 0 generates, and otherwise this
    user's (:func:`.tokens.own_token`).
    timeout_s : how long to wait for the other ranks, and later for any connection without progress.
    congestion : congestion control of all connections; "" for the system's default.
    node : number of this rank's node, given by all ranks or by none; without it, ranks with the
    same address share a node.

    Raises
    ------
    InputError : ranks do not agree, have different tokens, or the address cannot be used.
    LostError : a rank did not connect, or has disconnected.
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
    return _join(place, hello, store, token, timeout_s, congestion)


def _receive_all(
    place: Place,
    own: Hello,
    store: torchrun.Store | None,
    given: Token | None,
    timeout_s: float,
    congestion: str,
) -> Group:
    """On rank 0: wait for the others, check their messages, let them connect to each other."""
    until = time.monotonic() + timeout_s
    token = given or torchrun.generated_token()
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
            store.publish(there, listener.port, None if given else token)
        hellos = {0: own}
        error = ""
        while len(hellos) < place.ranks and not error:
            try:
                one, hello = _visitor(listener, until, Hello)
            except LostError:
                missing = [f"{rank}" for rank in range(place.ranks) if rank not in hellos]
                error = f"rank {', '.join(missing)} did not connect within {timeout_s:g} s"
                continue
            error = _refusal(own, hello, hellos)
            if hello.rank in group.control or not 0 < hello.rank < place.ranks:
                _answer(one, Welcome(error, [], []))
                one.close()
                continue
            hellos[hello.rank] = hello
            one.peer = f"rank {hello.rank}"
            group.control[hello.rank] = one
            group.local_host = group.rank_0_host = own.host = one.local_host
        if not error:
            error = _disagreement(hellos)
        addresses, nodes = [], []
        if not error:
            addresses = [(hellos[rank].host, hellos[rank].port) for rank in range(place.ranks)]
            nodes = _nodes([hellos[rank] for rank in range(place.ranks)])
        for one in group.control.values():
            _answer(one, Welcome(error, addresses, nodes))
        if error:
            raise InputError(error)
        group.nodes = tuple(nodes)
        _let_in(group, listener, set(range(1, place.ranks)))
    return group


def _join(
    place: Place,
    own: Hello,
    store: torchrun.Store | None,
    given: Token | None,
    timeout_s: float,
    congestion: str,
) -> Group:
    """On any other rank: connect to rank 0, then open links to it and to the neighbours."""
    host, port, token = place.host, place.port, given
    if store is not None:
        store.publish_route()
        host, port, generated = store.published()
        token = given or generated
    if token is None:
        raise InputError("rank 0 was given a token, this rank was not; give all ranks the same one")
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
            peers = [(0, (host, port))]
            if place.rank > 1:
                peers.append((place.rank - 1, welcome.addresses[place.rank - 1]))
            for rank, (peer_host, peer_port) in peers:
                link = connect(peer_host, peer_port, timeout_s, token, congestion, f"rank {rank}")
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
    """Return the address to listen on, resolved if an interface was given; "" if none was given."""
    return address_of(place.listen) or place.listen


def _let_in(group: Group, listener: Listener, awaited: set[int]) -> None:
    """Accept the links from the ranks in ``awaited``."""
    until = time.monotonic() + listener.timeout_s
    while awaited:
        names = ", ".join(map(str, sorted(awaited)))
        link, found = _visitor(listener, until, LinkHello, f"rank {names}")
        if found.link not in awaited:
            listener.reject(link, f"claims to be rank {found.link}, which is not expected")
            continue
        awaited.remove(found.link)
        link.peer = f"rank {found.link}"
        group.links[found.link] = link


def _visitor(
    listener: Listener, until: float, kind: Any, peer: str = "another process"
) -> tuple[Connection, Any]:
    """Return the next connection with the expected first message; close any other."""
    timeout_s = listener.timeout_s
    while True:
        one = listener.accept(until - time.monotonic(), peer)
        try:
            one.timeout_s = min(HANDSHAKE_S, timeout_s)
            found = one.receive_object(kind)
        except LostError as error:
            listener.reject(one, str(error))
            continue
        one.timeout_s = timeout_s
        return one, found


def _answer(one: Connection, welcome: Welcome) -> None:
    with contextlib.suppress(LostError):
        one.send_object(msgspec.to_builtins(welcome))


def _refusal(own: Hello, hello: Hello, hellos: Mapping[int, Hello]) -> str:
    """Return why a rank cannot take part, regardless of the others; "" if it can."""
    if hello.greeting != GREETING or hello.version != own.version:
        version = printable(hello.version)
        return f"rank {hello.rank} runs perfmodel {version}, rank 0 runs {own.version}"
    if hello.ranks != own.ranks:
        return f"rank {hello.rank} was given --ranks {hello.ranks}, rank 0 --ranks {own.ranks}"
    if hello.rank in hellos or not 0 < hello.rank < own.ranks:
        return f"two processes were given --rank {hello.rank}"
    return ""


def _disagreement(hellos: Mapping[int, Hello]) -> str:
    """Return the first difference between the ranks' arguments; "" if there is none."""
    own = hellos[0]
    for rank in range(1, own.ranks):
        other = hellos[rank]
        for flag in {**own.arguments, **other.arguments}:
            here, there = own.arguments.get(flag, ""), other.arguments.get(flag, "")
            if here != there:
                flag = printable(flag)
                return f"rank {rank} was given {flag} {there!r}, rank 0 {here!r}"
        if (own.node is None) != (other.node is None):
            return f"--node: give it to all ranks or to none; rank 0 and rank {rank} differ"
    return ""


def _nodes(hellos: Sequence[Hello]) -> list[int]:
    """Return the node of each rank: as given, or one per address."""
    hosts = list(dict.fromkeys(one.host for one in hellos))
    return [hosts.index(one.host) if one.node is None else one.node for one in hellos]
