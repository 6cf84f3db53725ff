"""Sites of a cluster, and the wide-area links between them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.ranges import COUNT, FRACTION, POSITIVE, Ranged, or_none
from perfmodel.inputs.links import Link

MOST_CONNECTIONS = 10_000
"""Maximum connections per transfer between sites; a limit that catches typing errors."""


MOST_SITES = 200
"""Maximum sites of a cluster: there is a path between every two of them."""


class Site(Ranged, frozen=True, forbid_unknown_fields=True):
    """A site with ``nodes`` nodes. The nodes of a cluster are numbered site after site."""

    RANGES: ClassVar = {"nodes": COUNT}

    name: str
    nodes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.strip():
            raise InputError("name: must not be empty")


class SiteLink(Link, frozen=True, forbid_unknown_fields=True):
    """The link from one site to another, which all transfers between them share.

    Attributes
    ----------
    between : names of the two sites, from and to. The entry also applies to the opposite direction,
        unless that has its own. None: the link of all pairs without an entry.
    latency_s : one way, between nodes of the two sites.
    connections : TCP connections per transfer.
    window_bytes : largest window of a connection; None if the window never limits.
    loss_rate : fraction of segments lost, at random.
    """

    RANGES: ClassVar = {
        **Link.RANGES,
        "connections": COUNT._replace(at_most=MOST_CONNECTIONS),
        "window_bytes": or_none(POSITIVE),
        "loss_rate": FRACTION,
    }

    between: tuple[str, str] | None = None
    connections: int = 1
    window_bytes: float | None = None
    loss_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.between is not None and self.between[0] == self.between[1]:
            raise InputError(f"between: needs two sites, got {self.between[0]!r} twice")

    def transfer_bytes_per_s(self, round_trip_s: float, connection: float = math.inf) -> float:
        """Maximum rate of a transfer; ``connection`` limits each of its connections."""
        from perfmodel.theory.tcp import connection_bytes_per_s

        tcp = connection_bytes_per_s(
            round_trip_s, window_bytes=self.window_bytes, loss_rate=self.loss_rate
        )
        return self.connections * min(tcp, connection)


class Between(msgspec.Struct, frozen=True, eq=False):
    """Properties of the paths between sites, which are numbered from 0 to sites - 1.

    Attributes
    ----------
    names : site names, (sites,).
    bytes_per_s : goodput of the link from one site to another, (sites, sites).
    latency_s : one way, (sites, sites).
    flow_bytes_per_s : maximum rate of one transfer, (sites, sites).

    Links from a site to itself are infinitely fast.
    """

    names: tuple[str, ...]
    bytes_per_s: Floats
    latency_s: Floats
    flow_bytes_per_s: Floats

    @classmethod
    def of(
        cls, sites: Sequence[Site], links: Sequence[SiteLink], connection_bytes_per_s: float
    ) -> "Between":
        """Paths between all pairs of sites; ``connection_bytes_per_s`` limits each connection."""
        names = tuple(site.name for site in sites)
        known = _by_pair(links)
        bytes_per_s, latency_s, flow = (
            np.full((len(names), len(names)), value) for value in (math.inf, 0.0, math.inf)
        )
        for (i, a), (j, z) in itertools.permutations(enumerate(names), 2):
            link, back = _link(known, a, z), _link(known, z, a)
            bytes_per_s[i, j], latency_s[i, j] = link.goodput_bytes_per_s, link.latency_s
            round_trip_s = link.latency_s + back.latency_s
            flow[i, j] = link.transfer_bytes_per_s(round_trip_s, connection_bytes_per_s)
        return cls(names, bytes_per_s, latency_s, flow)

    def among(self, used: Ids) -> "Between":
        """The same for the sites ``used``, renumbered from 0."""
        pairs = np.ix_(used, used)
        return Between(
            tuple(self.names[k] for k in used.tolist()),
            self.bytes_per_s[pairs],
            self.latency_s[pairs],
            self.flow_bytes_per_s[pairs],
        )

    @property
    def pairs(self) -> NDArray[np.bool_]:
        """Whether a link joins one site to another, (sites, sites): all but the diagonal."""
        return ~np.eye(len(self.names), dtype=np.bool_)

    def ring(self, rings: int = 1) -> list[int]:
        """The order of the sites on the ring whose slowest hop is fastest.

        With several ``rings``, each carries an equal part of the bytes, in a transfer of its own.
        """
        from perfmodel.theory.cycles import best_cycle

        per_byte_s = 1.0 / np.minimum(self.bytes_per_s, rings * self.flow_bytes_per_s)
        return best_cycle(per_byte_s, self.latency_s)


Pair = tuple[str, str] | None


def _by_pair(links: Sequence[SiteLink]) -> dict[Pair, SiteLink]:
    return {link.between: link for link in links}


def _link(known: Mapping[Pair, SiteLink], source: str, target: str) -> SiteLink:
    """The link from one site to another.

    Raises
    ------
    InputError : the pair has no entry, and there is no entry for all pairs.
    """
    for pair in ((source, target), (target, source), None):
        if pair in known:
            return known[pair]
    raise InputError(
        f"site_links: no link between {source!r} and {target!r}; add the pair, or an entry without "
        "between for all other pairs"
    )


def sites_of_nodes(sites: Sequence[Site], nodes: int, workers_nodes: int, servers_site: int) -> Ids:
    """The site of each of ``nodes`` nodes, (nodes,): the workers' nodes first, then servers'."""
    last = np.cumsum([site.nodes for site in sites])
    places = np.searchsorted(last, np.arange(nodes), side="right")
    return np.where(np.arange(nodes) < workers_nodes, places, servers_site)


def check_sites(sites: Sequence[Site], links: Sequence[SiteLink], servers_site: str | None) -> None:
    """Check that sites and their links are consistent.

    Raises
    ------
    InputError : there are too many sites or links; a name is used twice or does not exist; a pair
        is given twice or not at all.
    """
    if len(sites) > MOST_SITES:
        raise InputError(f"sites: at most {MOST_SITES}, got {len(sites)}")
    most = len(sites) * (len(sites) - 1) + 1
    if sites and len(links) > most:
        raise InputError(f"site_links: at most {most} for {len(sites)} sites, got {len(links)}")
    names = [site.name for site in sites]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"sites: {name!r} is given twice")
    for what, given in (("site_links", links), ("server.site", servers_site)):
        if given and not names:
            raise InputError(f"{what}: the cluster has no sites")
    if servers_site is not None and servers_site not in names:
        raise unknown_name("site of the server", servers_site, names)
    pairs: set[Pair] = set()
    for i, pair in enumerate(link.between for link in links):
        for name in pair or ():
            if name not in names:
                raise unknown_name(f"site in site_links[{i}].between", name, names)
        if pair in pairs:
            whole = "entry without between" if pair is None else f"pair {pair[0]!r} and {pair[1]!r}"
            raise InputError(f"site_links: the {whole} is given twice")
        pairs.add(pair)
    known = _by_pair(links)
    for a, z in itertools.combinations(names, 2):
        _link(known, a, z)
