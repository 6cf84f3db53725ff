"""The cluster of a job: as named, with the links that were given and the usual losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perfmodel.base.errors import number, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.catalogue import catalogue
from perfmodel.inputs import usual_losses
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path


class LinkChange(msgspec.Struct, frozen=True):
    """Bandwidth and latency that replace those of every node's link; None for no change."""

    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None

    def of(self, link: Link) -> Link:
        """Return the changed link.

        Raises
        ------
        InputError : a value is not a number in its range.
        """
        changes: dict[str, float] = {}
        if self.bandwidth_bytes_per_s is not None:
            name = "bandwidth_bytes_per_s"
            changes[name] = number(name, self.bandwidth_bytes_per_s, above=0.0)
        if self.latency_s is not None:
            changes["latency_s"] = number("latency_s", self.latency_s)
        return msgspec.structs.replace(link, **changes)


class ProcessesOnNodes(NamedTuple):
    """Whether a job has servers, and islands, whose processes use links of their nodes."""

    servers: bool
    islands: bool


def named_cluster(
    given: Cluster | str | Path | None, device: str, devices_per_node: int | None = None
) -> tuple[Cluster, list[Assumption]]:
    """Return a cluster, given itself, by its file or by its name in the catalogue; without any, the
    device's default, and an assumption that says so. Its nodes have ``devices_per_node``, if given.

    Raises
    ------
    InputError : there is no such cluster, or it has no such nodes.
    """
    cluster, notes = _named(given, device)
    if devices_per_node is None or cluster.devices_per_node == devices_per_node:
        return cluster, notes
    whole_number("devices_per_node", devices_per_node)
    changed = msgspec.structs.replace(
        cluster, devices_per_node=devices_per_node, devices_on_nodes=()
    )
    return changed, notes


def _named(given: Cluster | str | Path | None, device: str) -> tuple[Cluster, list[Assumption]]:
    """The cluster of a name, and an assumption if it is a default."""
    if given is not None:
        return given if isinstance(given, Cluster) else catalogue.cluster_or_file(given), []
    named = catalogue.default_cluster_of(device)
    cluster = catalogue.cluster(catalogue.DEFAULT_CLUSTER if named is None else named)
    why = "default" if named is None else f"default for {device}"
    return cluster, [Assumption("cluster", cluster.name, "", why)]


def cluster_of(
    base: Cluster, links: LinkChange, workload: Workload, processes: ProcessesOnNodes | None
) -> tuple[Cluster, list[Assumption]]:
    """Return the cluster of a job, changed and with the usual losses, and the assumptions about it.

    Parameters
    ----------
    processes : what the job has besides workers, which adds assumptions; None if ``base`` is not
        from a file, so that its values are not assumptions.

    Raises
    ------
    InputError : a link's value is out of range.
    """
    changed, of_links = _overridden(base, links)
    lossy, of_losses = usual_losses.with_losses(
        changed,
        catalogue.known_device(workload.device),
        sockets=usual_losses.over_sockets(base.nic),
        servers=processes is not None and processes.servers,
        among_several=workload.among_several,
    )
    shown = msgspec.structs.replace(base, intra_node=lossy.intra_node)
    of_file = [] if processes is None else _of_file(shown, links, processes)
    return lossy, [*of_file, *of_links, *of_losses]


def _overridden(base: Cluster, links: LinkChange) -> tuple[Cluster, list[Assumption]]:
    """Return a cluster with every node's links changed, and an assumption about its collectives."""
    if links == LinkChange():
        return base, []
    notes = []
    if base.collectives:
        why = "the measured ones are for another bandwidth or latency"
        notes = [Assumption("collectives", "closed forms", "", why)]
    return msgspec.structs.replace(base.with_links(links.of), collectives=()), notes


def _of_file(cluster: Cluster, links: LinkChange, processes: ProcessesOnNodes) -> list[Assumption]:
    """Return assumptions for values taken from the cluster file because none were given."""
    name, nic, cost = f"cluster {cluster.name}", cluster.nic, cluster.server
    inside = cluster.intra_node
    rows: list[tuple[bool, str, float, str, str]] = [
        (
            links.bandwidth_bytes_per_s is None,
            *("bandwidth", nic.bandwidth_bytes_per_s, "bytes_per_s", ""),
        ),
        (links.latency_s is None, "latency", nic.latency_s, "s", ""),
        (True, "efficiency", nic.efficiency, "of bandwidth", ""),
        (cluster.devices_per_node > 1, "devices per node", cluster.devices_per_node, "", ""),
        (cluster.nics_per_node > 1, "NICs per node", cluster.nics_per_node, "", ""),
        (
            cluster.nics_per_node > 1 and any(processes),
            *("NICs per process", cluster.nics_per_process, "", ""),
        ),
    ]
    if inside is not None:
        kind = ", through the host" if inside.interconnect == "host" else f", {inside.kind}"
        rows.append((True, "inside a node", inside.bandwidth_bytes_per_s, "bytes_per_s", kind))
    if cluster.sites:
        rows.append((True, "sites", len(cluster.sites), "", ", with the links between them"))
    costly = processes.servers and (cost.update_per_tensor_s > 0.0 or cost.update_per_byte_s > 0.0)
    rows += [
        (costly, "update per tensor", cost.update_per_tensor_s, "s", ""),
        (costly, "update per byte", cost.update_per_byte_s, "s/byte", ""),
    ]
    return [Assumption(what, v, unit, name + more) for there, what, v, unit, more in rows if there]
