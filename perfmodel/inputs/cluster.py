"""Clusters: nodes, their links and their servers."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import msgspec

from perfmodel.base import files
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError, speed_ratio, unknown_name, whole_number
from perfmodel.base.provenance import Source
from perfmodel.base.ranges import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Range,
    Ranged,
    or_none,
)
from perfmodel.inputs.calibration import Calibration, value_at
from perfmodel.inputs.links import LEAST_EFFICIENCY, IntraNode as IntraNode, Link as Link
from perfmodel.inputs.measured_collectives import (
    Collective as Collective,
    Piece as Piece,
    Uneven as Uneven,
)
from perfmodel.inputs.sites import Between, Site, SiteLink, check_sites, sites_of_nodes

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "perfmodel.cluster/1"

MOST_NICS = 1000
"""Maximum number of network links per node; a limit that catches typing errors."""


CORE_SHARING = ("operation", "thread")
"""Ways to share the cores of a node: equally between operations, or between threads."""

NOT_ACROSS_SITES = {
    "nodes": "the number follows from the sites; leave it out",
    "core_oversubscription": "models the core of a single site; cannot be combined with sites",
    "queue_bytes": "models queues within a single site; cannot be combined with sites",
    "collectives": "were measured within a single site; cannot be combined with sites",
}
"""Fields that a cluster with sites cannot have, and why."""


class NodeOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node whose links or device speed differ from the others'.

    ``nic`` replaces each of the node's links to the network. ``speed`` is relative to the profile
    (1 = as profiled).
    """

    node: int
    nic: Link | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        whole_number("node", self.node, at_least=0)
        speed_ratio("speed", self.speed)


class Server(Ranged, frozen=True, forbid_unknown_fields=True):
    """Parameter servers: their placement, and the cost of applying a gradient tensor.

    ``placement`` is *dedicated* (each on its own node, after the workers' nodes) or *colocated* (on
    the workers' nodes in turn, sharing their links). Applying one pushed tensor of n bytes takes
    ``update_per_tensor_s + n * update_per_byte_s`` on one of ``threads`` update threads. Each
    optimizer update of n bytes takes a further ``n * optimizer_per_byte_s`` there, even if it
    combines the gradients of many workers. ``nic`` is the link of a dedicated server's node, by
    default that of the workers' nodes. ``site`` is the site of the dedicated servers' nodes, which
    come in addition to that site's own nodes; None for the first site.
    """

    RANGES: ClassVar = {
        "update_per_tensor_s": NOT_NEGATIVE,
        "update_per_byte_s": NOT_NEGATIVE,
        "threads": COUNT,
        "optimizer_per_byte_s": NOT_NEGATIVE,
    }

    placement: Literal["dedicated", "colocated"] = "dedicated"
    update_per_tensor_s: float = 0.0
    update_per_byte_s: float = 0.0
    threads: int = 1
    optimizer_per_byte_s: float = 0.0
    nic: Link | None = None
    site: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.site is not None and self.placement == "colocated":
            raise InputError("site: colocated servers are at the workers' sites; leave it out")


T = TypeVar("T", NodeOverride, Server)


class Handover(Ranged, frozen=True, forbid_unknown_fields=True):
    """Device time to hand a gradient over to the network.

    It is ``per_tensor_s + n * per_byte_s`` for a tensor of n bytes: copies into buffers, launches,
    and any other device work for communication. The device does not compute meanwhile.
    """

    RANGES: ClassVar = dict.fromkeys(("per_tensor_s", "per_byte_s"), NOT_NEGATIVE)

    per_tensor_s: float = 0.0
    per_byte_s: float = 0.0

    def seconds(self, tensors: int, size_bytes: float) -> float:
        """Seconds to hand over ``tensors`` tensors of ``size_bytes`` in total."""
        return self.per_tensor_s * tensors + self.per_byte_s * size_bytes


NO_HANDOVER = Handover()
"""A handover that takes no time."""


class Seat(msgspec.Struct, frozen=True):
    """Where a worker runs: its node, each network link of that node, and the workers there.

    ``slowdown`` is its compute time over that of a device of normal speed alone on its node,
    ``loading`` its time to load a batch over that of such a device.
    """

    node: int
    nic: Link
    devices: int
    slowdown: float
    loading: float


class Cluster(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes and the network between them (schema ``perfmodel.cluster/1``).

    Attributes
    ----------
    nic : each link between a node and the network.
    nodes : number of nodes; None for as many as a job needs.
    devices_per_node : workers fill a node before they use the next.
    nics_per_node : links of each node to the network. Device i and server i of a node use link i
        modulo this number.
    nics_per_process : links of its node that one process uses: a server on its own node, or the
        process that exchanges for an island. A connection uses one of them.
    devices_on_nodes : devices that the job has on each of the first nodes, if not all of them; on
        later nodes it has all.
    intra_node : the links between the devices of a node; None if transfers there take no time. A
        :class:`Link` is taken as a bus.
    core_oversubscription : bandwidth of all NICs together over the core's capacity; None for a core
        that is never a bottleneck.
    pair_efficiency : fraction of link bandwidth available to a job on exactly two nodes: there is a
        single path between two nodes, while a node's connections take several paths among more.
    cpu_cores : CPU cores per node; limits the update threads of a server.
    worker_threads : threads with which a worker computes on its node's cores, shared with the
        servers there; None if workers compute on accelerators.
    core_sharing : how the cores are shared if there are more threads than cores. *operation*: each
        running operation gets an equal share, up to its threads. *thread*: each thread does, as
        with the default scheduler of Linux, so that a single-threaded update next to two operations
        of 8 threads gets a seventeenth.
    overrides : nodes that differ, by number from 0 (dedicated servers come after the workers).
    collectives : measured collectives, at most one per operation.
    inside_collectives : measured collectives among devices of one node that divide layers between
        them (tensor parallelism), at most one per operation.
    slowdown_per_neighbour : relative increase of a device's compute time per further device of the
        job on its node, due to contention for host, memory and power.
    loaders_per_node : batches that a node loads at a time, 1 or more; with more devices than that,
        loading takes proportionally longer. None if every device has its own loader.
    handover : device time to hand gradients over to the network.
    queue_bytes : buffer in front of a node's link; when it overflows, packets are lost and senders
        get unequal shares of the link (:mod:`perfmodel.theory.incast`). None for equal shares.
    burst_bytes : bytes that a link between nodes lets pass at once after it was idle: the bucket of
        what shapes it (``tc tbf``, a cloud's limit), which fills at the link's rate. It counts for
        single messages; collectives leave it out.
    send_queue_bytes : bytes of its transfers that a node holds in the queue of its link, for which
        a request of its own waits. 0: requests overtake data.
    send_queue_s : or as many bytes as the node's link sends in this time, if these are more.
    flow_bytes_per_s : maximum rate of one connection between two nodes, for example where a single
        core copies what it receives; several connections share the links as usual. Messages on the
        same connection share its rate. None if only the links limit.
    sites : sites of the nodes, which are numbered site after site; empty if all nodes are at one
        site.
    site_links : the links between sites, one for each pair or one for all pairs.
    device_spread : standard deviation of the speeds of equal devices, as a fraction; the devices of
        a synchronous job go at the pace of the slowest.
    losses : whether the usual losses are added to the figures
        (:mod:`perfmodel.inputs.usual_losses`): *usual* or *none*; None for *usual* if the source
        is estimated or published and nothing was fitted.
    calibration : how precisely the fitted values are known; None if nothing was fitted.
    """

    RANGES: ClassVar = {
        "devices_per_node": COUNT,
        "nics_per_node": COUNT._replace(at_most=MOST_NICS),
        "nics_per_process": COUNT,
        "devices_on_nodes": COUNT,
        "slowdown_per_neighbour": NOT_NEGATIVE,
        "device_spread": FRACTION,
        "loaders_per_node": or_none(Range(1.0)),
        **dict.fromkeys(("queue_bytes", "flow_bytes_per_s"), or_none(POSITIVE)),
        **dict.fromkeys(("burst_bytes", "send_queue_bytes", "send_queue_s"), NOT_NEGATIVE),
        **dict.fromkeys(("nodes", "cpu_cores", "worker_threads"), or_none(COUNT)),
        "core_oversubscription": or_none(Range(1.0)),
        "pair_efficiency": Range(LEAST_EFFICIENCY, 1.0),
    }

    schema: Literal["perfmodel.cluster/1"] = "perfmodel.cluster/1"
    name: str
    title: str = ""
    nic: Link
    nodes: int | None = None
    devices_per_node: int = 1
    nics_per_node: int = 1
    nics_per_process: int = 1
    devices_on_nodes: tuple[int, ...] = ()
    intra_node: IntraNode | None = None
    core_oversubscription: float | None = None
    pair_efficiency: float = 1.0
    cpu_cores: int | None = None
    worker_threads: int | None = None
    core_sharing: Literal["operation", "thread"] = "operation"
    server: Server = Server()
    overrides: tuple[NodeOverride, ...] = ()
    collectives: tuple[Collective, ...] = ()
    inside_collectives: tuple[Collective, ...] = ()
    slowdown_per_neighbour: float = 0.0
    loaders_per_node: float | None = None
    handover: Handover = NO_HANDOVER
    queue_bytes: float | None = None
    burst_bytes: float = 0.0
    send_queue_bytes: float = 0.0
    send_queue_s: float = 0.0
    flow_bytes_per_s: float | None = None
    sites: tuple[Site, ...] = ()
    site_links: tuple[SiteLink, ...] = ()
    device_spread: float = 0.0
    losses: Literal["usual", "none"] | None = None
    calibration: Calibration | None = None
    source: Source

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nics_per_process > self.nics_per_node:
            whole_number("nics_per_process", self.nics_per_process, at_most=self.nics_per_node)
        if self.nics_per_process > 1 and self.server.placement == "colocated":
            raise InputError(
                "nics_per_process: servers colocated with workers use one link of their node each; "
                f"got {self.nics_per_process} (allowed: 1, or placement = dedicated of the server)"
            )
        inside: Link | None = self.intra_node
        if inside is not None and not isinstance(inside, IntraNode):
            bus = IntraNode(*(getattr(inside, name) for name in Link.__struct_fields__))
            msgspec.structs.force_setattr(self, "intra_node", bus)
        for i, count in enumerate(self.devices_on_nodes):
            whole_number(f"devices_on_nodes[{i}]", count, at_most=self.devices_per_node)
        if self.worker_threads is not None:
            if self.cpu_cores is None:
                raise InputError("worker_threads: needs cpu_cores, the number of cores per node")
            if self.worker_threads > self.cpu_cores:
                raise InputError(
                    f"worker_threads: must be at most cpu_cores, {self.cpu_cores}, "
                    f"got {self.worker_threads}"
                )
        if self.core_sharing not in CORE_SHARING:
            raise unknown_name("core_sharing", self.core_sharing, CORE_SHARING)
        numbers: set[int] = set()
        for node in (override.node for override in self.overrides):
            if self.nodes is not None and node >= self.nodes:
                raise InputError(f"overrides: there is no node {node} (0 to {self.nodes - 1})")
            if node in numbers:
                raise InputError(f"overrides: node {node} is given twice")
            numbers.add(node)
        for path in self.calibration.parameters if self.calibration is not None else ():
            value_at(self, path)
        if self.sites or self.site_links or self.server.site is not None:
            check_sites(self.sites, self.site_links, self.server.site)
        for name in NOT_ACROSS_SITES if self.sites else ():
            if getattr(self, name) not in (None, ()):
                raise InputError(f"{name}: {NOT_ACROSS_SITES[name]}")
        for name in ("collectives", "inside_collectives"):
            operations = [measured.operation for measured in getattr(self, name)]
            for operation in operations:
                if operations.count(operation) > 1:
                    raise InputError(f"{name}: {operation} is given twice")

    def node_of_worker(self, worker: int) -> int:
        """The node worker ``worker`` runs on."""
        for node, count in enumerate(self.devices_on_nodes):
            if worker < count:
                return node
            worker -= count
        return len(self.devices_on_nodes) + worker // self.devices_per_node

    def nodes_for(self, workers: int) -> int:
        """Number of nodes with workers."""
        return self.node_of_worker(workers - 1) + 1

    def first_worker(self, node: int) -> int:
        """The first worker on ``node``, if there are enough workers."""
        listed = self.devices_on_nodes
        return sum(listed[:node]) + max(node - len(listed), 0) * self.devices_per_node

    def devices_at(self, node: int, workers: int) -> int:
        """Number of workers on ``node``, of ``workers`` in all."""
        listed = self.devices_on_nodes
        size = listed[node] if node < len(listed) else self.devices_per_node
        return min(max(workers - self.first_worker(node), 0), size)

    def even(self, workers: int) -> bool:
        """Return whether all nodes, and all links in use, have the same number of workers."""
        counts = {self.devices_at(node, workers) for node in self.samples(workers)}
        count, nics = max(counts), self.nics_per_node
        return len(counts) == 1 and (count <= nics or count % nics == 0)

    def samples(self, workers: int) -> list[int]:
        """A sample of the nodes with workers that includes every number of devices that occurs."""
        last = self.nodes_for(workers) - 1
        return sorted({*range(min(len(self.devices_on_nodes) + 1, last)), last})

    def fullest(self, workers: int) -> int:
        """Workers on the fullest node, of ``workers`` in all."""
        return max(self.devices_at(node, workers) for node in self.samples(workers))

    @property
    def copies_through_host(self) -> bool:
        """Whether copies between the devices of a node cross the host's memory."""
        return self.intra_node is not None and self.intra_node.interconnect == "host"

    def neighbour_slowdown(self, devices: int) -> float:
        """Compute time of one of several devices on a node over that of a device alone there."""
        return 1.0 + self.slowdown_per_neighbour * (devices - 1)

    def pace(self, workers: int) -> float:
        """Compute time of the slowest of ``workers`` equal devices over that of a mean one."""
        if self.device_spread == 0.0:
            return 1.0
        from perfmodel.theory.order_statistics import normal_maximum

        return 1.0 + self.device_spread * normal_maximum(workers)

    def loading_slowdown(self, devices: int) -> float:
        """Loading time of one of several devices on a node over that of a device alone there."""
        if self.loaders_per_node is None:
            return 1.0
        return max(devices / self.loaders_per_node, 1.0)

    def seats(
        self, some: Iterable[int], workers: int, factors: Mapping[int, float], *, in_step: bool
    ) -> list[Seat]:
        """Where each of some workers runs, of ``workers`` in all; ``factors`` on the compute times
        of stragglers are by worker. Workers ``in_step`` go at the pace of the slowest device."""
        pace, seats = self.pace(workers) if in_step else 1.0, []
        for worker in some:
            node = self.node_of_worker(worker)
            devices, override = self.devices_at(node, workers), self._override(node)
            slowdown, nic = pace * factors.get(worker, 1.0), self.nic
            slowdown *= self.neighbour_slowdown(devices)
            if override is not None:
                slowdown, nic = slowdown / override.speed, override.nic or nic
            seats.append(Seat(node, nic, devices, slowdown, self.loading_slowdown(devices)))
        return seats

    def crowded(self, workers: int, *, loading: bool) -> bool:
        """Whether devices differ in speed, or in ``loading``, by how many are on their node."""
        counts = {self.devices_at(node, workers) for node in self.samples(workers)}
        compute = {self.neighbour_slowdown(count) for count in counts}
        load = {self.loading_slowdown(count) for count in counts} if loading else ()
        return len(compute) > 1 or len(load) > 1

    @property
    def crowds(self) -> bool:
        """Whether a device's speed depends on how many workers are on its node, or on how many
        nodes have workers."""
        beside = self.slowdown_per_neighbour > 0.0 and self.devices_per_node > 1
        placed = bool(self.devices_on_nodes) or self.pair_efficiency < 1.0
        return beside or self.loaders_per_node is not None or placed

    @property
    def by_workers(self) -> bool:
        """Whether a device's speed depends on the number of workers, apart from its pace."""
        return self.crowds or self.handover != NO_HANDOVER

    def node_of_server(self, server: int, workers: int) -> int:
        """Node that server ``server`` runs on, in a job of ``workers`` workers."""
        if self.server.placement == "colocated":
            return server % self.nodes_for(workers)
        return self.nodes_for(workers) + server

    @property
    def workers_nodes(self) -> int | None:
        """Number of nodes for workers; None for as many as a job needs."""
        return sum(site.nodes for site in self.sites) if self.sites else self.nodes

    def at_one_site(self) -> "Cluster":
        """The cluster of equal nodes at one site."""
        server = msgspec.structs.replace(self.server, site=None)
        return msgspec.structs.replace(self, overrides=(), sites=(), site_links=(), server=server)

    def sites_of(self, nodes: int, workers: int) -> Ids:
        """The site number of each of the first ``nodes`` nodes of a job with ``workers`` workers:
        the workers' nodes, then those of dedicated servers."""
        names = [site.name for site in self.sites]
        servers = names.index(self.server.site) if self.server.site is not None else 0
        return sites_of_nodes(self.sites, nodes, self.nodes_for(workers), servers)

    def between_sites(self) -> Between:
        """The paths that carry transfers between sites."""
        return Between.of(self.sites, self.site_links, self.flow_bytes_per_s or math.inf)

    @property
    def links_differ(self) -> bool:
        """Whether some nodes have other links, or other paths to each other, than the rest."""
        return bool(self.overrides or self.sites)

    def nic_of(self, node: int) -> Link:
        """Each link of ``node`` to the network, unless it is a dedicated server's node."""
        override = self._override(node)
        return override.nic if override is not None and override.nic is not None else self.nic

    def nic_of_server(self, server: int, workers: int) -> Link:
        """The links that ``server`` uses, as one, in a job of ``workers`` workers."""
        node = self.node_of_server(server, workers)
        override, of_servers = self._override(node), self.server_nic
        if of_servers is None or (override is not None and override.nic is not None):
            of_servers = self.nic_of(node)
        return of_servers.times(self.nics_per_process)

    @property
    def server_nic(self) -> Link | None:
        """Each link of a dedicated server's node, if it differs from the workers'."""
        return self.server.nic if self.server.placement == "dedicated" else None

    def with_links(self, changed: Callable[[Link], Link]) -> "Cluster":
        """The cluster with the links between nodes, and those of servers, changed."""

        def other(part: T) -> T:
            nic = part.nic
            return part if nic is None else msgspec.structs.replace(part, nic=changed(nic))

        return msgspec.structs.replace(
            self,
            nic=changed(self.nic),
            server=other(self.server),
            overrides=tuple(map(other, self.overrides)),
        )

    def path_efficiency(self, nodes: int) -> float:
        """Fraction of link bandwidth available to a job on ``nodes`` nodes."""
        return self.pair_efficiency if nodes == 2 else 1.0

    def collectives_of(self, workers: int) -> tuple[Collective, ...]:
        """Measured collectives, for ``workers`` workers.

        If one of their links is slower than ``nic``, the times per byte grow in proportion.
        """
        if not self.collectives or not self.overrides:
            return self.collectives
        links = (self.nic_of(node) for node in range(self.nodes_for(workers)))
        slower = self.nic.goodput_bytes_per_s / min(link.goodput_bytes_per_s for link in links)
        return tuple(
            msgspec.structs.replace(
                measured,
                pieces=tuple(
                    msgspec.structs.replace(piece, per_byte_s=piece.per_byte_s * max(slower, 1.0))
                    for piece in measured.pieces
                ),
            )
            for measured in self.collectives
        )

    def _override(self, node: int) -> NodeOverride | None:
        return next((o for o in self.overrides if o.node == node), None)

    @property
    def update_threads(self) -> int:
        """Update threads of one server, limited to the cores of a node."""
        if self.cpu_cores is None:
            return self.server.threads
        return min(self.server.threads, self.cpu_cores)


def read_cluster(path: "str | Path") -> Cluster:
    """Read a cluster file.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`.
    """
    return files.read(path, Cluster, SCHEMA)
