"""Sums among the devices that divide layers, and how much slower these are beside others."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from perfmodel.base.same import Same
from perfmodel.communication.costs import LinkCosts
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.precisions import sent_share
from perfmodel.inputs.replica import Replica, Sums
from perfmodel.inputs.workload import WorkloadLayer
from perfmodel.predicting.context import as_sums


def slowdown_of(job: Job) -> float:
    """Return by how much devices are slower than profiled because of all others of the job."""
    cluster = job.cluster
    beside = 1.0 + cluster.slowdown_per_neighbour * (cluster.fullest(job.devices) - 1)
    pace = 1.0 if job.options.asynchronous else cluster.pace(job.devices)
    return beside * pace


def sums_of(
    cluster: Cluster, replica: Replica, layers: Sequence[WorkloadLayer], precision: str = "mixed"
) -> tuple[tuple[Sums, ...], tuple[Sums, ...]]:
    """Return the collectives among the devices that divide each layer, forward and backward,
    (layers,) each; none if single devices have whole layers."""
    if replica.tensor == 1:
        return (), ()
    gathered = sent_share(precision)
    forward, backward = (
        _sums(cluster, replica, sizes, gathered)
        for sizes in (
            [one.forward_summed_bytes for one in layers],
            [one.backward_summed_bytes for one in layers],
        )
    )
    if replica.overlap_sums:
        backward = tuple(map(_exposed, backward, layers))
    return (
        _beside_launches(forward, [one.forward_s * one.launching for one in layers]),
        _beside_launches(backward, [one.backward_s * one.launching for one in layers]),
    )


def _sums(
    cluster: Cluster, replica: Replica, summed: list[float], gathered: float
) -> tuple[Sums, ...]:
    """Return the collectives that sum these bytes among devices that divide layers, (layers,).

    Those of all groups on a node take place at the same time. With sequence parallelism each is a
    reduce-scatter and an all-gather (Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.2),
    which has this part of the bytes.
    """
    if not any(summed):
        return (Sums(),) * len(summed)
    distinct = tuple(sorted(set(summed)))  # few, while there are hundreds of layers
    given = replica.tensor, replica.sequence_parallel, distinct, gathered
    known = _of_sizes(Same(cluster), *given)
    return tuple(known[b] for b in summed)


@functools.lru_cache(maxsize=256)
def _of_sizes(
    on: Same[Cluster], size: int, scattered: bool, distinct: tuple[float, ...], gathered: float
) -> dict[float, Sums]:
    """Return the collectives of so many devices that sum these bytes, as :func:`_sums`; stages, and
    layouts, with the same layers have them in common."""
    cluster, sizes = on.value, np.array(distinct)
    each = cluster.devices_per_node
    here = max(size, each - each % size)
    alone = cluster.at_one_site()
    fabric = Fabric.of(alone, here)
    groups = np.arange(here).reshape(-1, size) if here > size else None
    measured = cluster.inside_collectives if size <= each else cluster.collectives_of(size)
    members = Members(fabric, measured, groups)
    costs = LinkCosts(members, sizes)
    if scattered:
        gathers = LinkCosts(members, gathered * sizes)
        parts = [costs.cost("reduce_scatter"), gathers.cost("all_gather")]
    else:
        parts = [costs.cost("all_reduce")]
    return {b: as_sums(fabric, parts, k) if b else Sums() for k, b in enumerate(distinct)}


def _exposed(sums: Sums, layer: WorkloadLayer) -> Sums:
    """Return what is left of a layer's collectives behind the gradients of its weights."""
    whole_s = _alone_s(sums)
    return _part(sums, max(whole_s - layer.of_weights_s, 0.0) / whole_s) if whole_s else sums


def _beside_launches(sums: tuple[Sums, ...], waiting_s: list[float]) -> tuple[Sums, ...]:
    """Return what is left of a pass's collectives, (layers,), while devices wait for launches."""
    whole_s, idle_s = sum(map(_alone_s, sums)), sum(waiting_s)
    if whole_s == 0.0 or idle_s == 0.0:
        return sums
    left = max(whole_s - idle_s, 0.0) / whole_s
    return tuple(_part(one, left) for one in sums)


def _alone_s(sums: Sums) -> float:
    return sums.seconds + sums.bytes / sums.rate_bytes_per_s


def _part(sums: Sums, share: float) -> Sums:
    return Sums(sums.seconds * share, sums.bytes * share, sums.rate_bytes_per_s)
