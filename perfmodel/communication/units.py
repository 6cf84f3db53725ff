"""The workers of a job by kinds of their nodes, and a sample that has some of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids, quantiles
from perfmodel.communication.fabric import places_of
from perfmodel.communication.network import homes_of
from perfmodel.graph.mean_field import Places
from perfmodel.inputs.job import Job

MOST_KINDS, CLASSES = 64, 8
"""Most kinds of units; if there are more, units are of so many classes by the speed of their
workers, and of their links (decision 0110)."""


class Devices(NamedTuple):
    """The devices of all workers: a job in which they are the workers, and the ``node`` of each,
    (workers,), by numbers that all devices have in common."""

    job: Job
    node: Ids

    @classmethod
    def of(cls, job: Job) -> Devices:
        """Return those of a job whose workers are single devices."""
        return cls(job, places_of(job.cluster, job.workers))

    @property
    def alone(self) -> bool:
        """Whether each is alone on its node."""
        return bool(np.diff(self.node).all())

    @property
    def hosts(self) -> int:
        """Number of servers on their nodes."""
        colocated = self.job.cluster.server.placement == "colocated"
        return self.job.options.server_count if colocated else 0


class Units(NamedTuple):
    """The workers of a job in units, of which no two have devices on one node.

    Attributes
    ----------
    start : first worker of each unit, and the number of workers, (units + 1,).
    kinds : the units of each kind, ascending; the most frequent kind is last. Units are of one kind
        if their workers, nodes and links are alike, and the same servers, or as many, are on them;
        if that makes too many kinds, of workers and links that are about as fast on average.
        If the last unit is like those of the last kind, but has fewer workers, it is of none.
    alike : number of the kind of each worker, (workers,): those of equal units that are as fast.
    node : of each device of each worker, (devices, workers).
    """

    start: Ids
    kinds: tuple[Ids, ...]
    alike: Ids
    node: Ids

    @classmethod
    def of(cls, several: Sequence[Devices], *, hosts_alike: bool = False) -> Units:
        """Return the units of workers that have ``several`` devices each. If ``hosts_alike``, nodes
        are alike that have as many servers, instead of the same.

        Units have an even number of workers if most of the smallest ones have an odd number, so
        that every second worker is active in AD-PSGD.
        """
        node = np.array([devices.node for devices in several])
        start = _starts(node)
        unlike = np.concatenate([_unlike(devices, hosts_alike) for devices in several])
        slowed = np.array([_slowed(devices) for devices in several])
        places, speeds = _places(several, start), slowed.view(np.int64)
        traits = np.concatenate([places, unlike, speeds])
        if len(_of_kinds(traits, start)) > MOST_KINDS:
            unlike = np.concatenate([_unlike(one, hosts_alike, links=False) for one in several])
            late = np.array([_late(devices) for devices in several])
            speeds = np.array([quantiles(row, CLASSES) for row in (*slowed, *late)])
            classes = [_of_speed(how, start) for how in (slowed, late)]
            traits = np.concatenate([places, unlike, classes])
        *rare, usual = _of_kinds(traits, start)

        last, first = len(start) - 2, start[usual[0]]
        size = start[last + 1] - start[last]
        cut = size < start[usual[0] + 1] - first and bool(
            (traits[:, start[last] :] == traits[:, first : first + size]).all()
        )
        kinds = [kind for kind in rare if not cut or kind[0] < last]
        kinds.append(usual)
        kind_of = np.full(len(start) - 1, len(kinds) - 1)
        for number, units in enumerate(kinds):
            kind_of[units] = number
        columns = np.vstack([np.repeat(kind_of, np.diff(start)), unlike, speeds])
        alike = np.unique(columns, axis=1, return_inverse=True)[1].ravel()
        return cls(start, tuple(kinds), alike, node)

    @property
    def each(self) -> int:
        """Number of workers of a unit of the most frequent kind."""
        first = self.kinds[-1][0]
        return int(self.start[first + 1] - self.start[first])

    def sample(self, workers: int, fewest: int) -> Ids:
        """Return units with about so many workers in all, ascending, or with ``fewest`` usual ones
        beside the others: of each kind as large a part as of all, two units at least."""
        number = sum(map(len, self.kinds))
        wanted = max(workers // self.each, 1)
        *rare, usual = self.kinds
        some = [kind[: max(round(wanted * len(kind) / number), 2)] for kind in rare]
        least = max(fewest // self.each, 2)
        rest = max(wanted - sum(map(len, some)), least)
        rest = min(rest, max(round(wanted * len(usual) / number), least))
        return np.sort(np.concatenate([*some, usual[:rest]]))

    def workers(self, sample: Ids) -> Ids:
        """Return the workers of some units, ascending."""
        rows = [np.arange(self.start[unit], self.start[unit + 1]) for unit in sample.tolist()]
        return np.concatenate(rows)

    def represented_by(self, sample: Ids) -> Represented:
        """Return which workers of a sample of units represent all."""
        size = np.diff(self.start)
        unit_of = np.repeat(np.arange(len(size)), size)
        itself = np.arange(len(size))  # the unit that represents each
        place = np.where(np.isin(itself, sample), itself, self.kinds[-1][0])
        for units in self.kinds:
            there, rest = np.intersect1d(units, sample), np.setdiff1d(units, sample)
            place[rest] = there[np.arange(len(rest)) * len(there) // max(len(rest), 1)]
        rows = self.workers(sample)
        same = self.start[place[unit_of]] + np.arange(self.start[-1]) - self.start[unit_of]
        kind = np.unique(self.alike[rows], return_inverse=True)[1].ravel()
        node_unit, like = np.zeros((2, self.node.max() + 1), np.int64)
        node_unit[self.node] = unit_of
        like[self.node] = self.node[:, same]
        places = Places(unit_of[rows], node_unit, like)
        return Represented(np.searchsorted(rows, same), kind, places)


class Represented(NamedTuple):
    """Which workers of a sample represent all.

    Attributes
    ----------
    of : place in the sample of the worker that represents each, (workers,).
    kind : number of the kind of each worker in the sample, (sample,).
    places : the units that these are of, and the nodes of all workers.
    """

    of: Ids
    kind: Ids
    places: Places


def _starts(node: Ids) -> Ids:
    """Return the first worker of each unit, and the number of workers, given the nodes of each
    worker's devices, (devices, workers)."""
    workers = node.shape[1]
    first, last = np.full(node.max() + 1, workers), np.full(node.max() + 1, NONE)
    number = np.broadcast_to(np.arange(workers), node.shape)
    np.minimum.at(first, node, number)
    np.maximum.at(last, node, number)
    used = last != NONE
    across = np.zeros(workers + 1, np.int64)  # nodes with workers before and from each one on
    np.add.at(across, first[used] + 1, 1)
    np.add.at(across, last[used] + 1, -1)
    start = np.append(np.flatnonzero(np.cumsum(across)[:-1] == 0), workers)
    if np.bincount(np.diff(start)).argmax() % 2:
        return np.append(start[:-1][::2], workers)
    return start


def _places(several: Sequence[Devices], start: Ids) -> Ids:
    """Return where devices are in their unit, (places, workers)."""
    unit = np.repeat(start[:-1], np.diff(start))
    base = several[0].node[unit]
    rows: list[Ids] = []
    for job, node in several:
        own, number = places_of(job.cluster, job.workers), np.arange(job.workers)
        rows += [node - base, own - own[unit], number - np.searchsorted(own, own)]
    return np.array(rows)


def _of_kinds(traits: Ids, start: Ids) -> list[Ids]:
    """Return the units of each kind, ascending, the most frequent kind last, given the traits of
    their workers, (traits, workers)."""
    found: dict[bytes, list[int]] = {}
    for unit, (begin, end) in enumerate(itertools.pairwise(start)):
        found.setdefault(traits[:, begin:end].tobytes(), []).append(unit)
    return sorted(map(np.array, found.values()), key=lambda kind: (len(kind), -kind[0]))


def _of_speed(slowed: Floats, start: Ids) -> Ids:
    """Return the class of each worker's unit by how slow its devices or links are on average,
    (workers,), given how slow each is, (devices, workers). That of the slowest is one."""
    size = np.diff(start)
    mean = np.add.reduceat(slowed.mean(axis=0), start[:-1]) / size
    slowest = np.maximum.reduceat(slowed.max(axis=0), start[:-1]) == slowed.max()
    return np.repeat(np.where(slowest, CLASSES, quantiles(mean, CLASSES)), size)


def _slowed(devices: Devices) -> Floats:
    """Return how many times as long as usual each device takes to compute, (workers,)."""
    job, cluster = devices.job, devices.job.cluster
    own = places_of(cluster, job.workers)
    slowed, speed = np.ones(job.workers), np.ones(own.max() + 1)
    for straggler in job.stragglers:
        slowed[straggler.worker] = straggler.factor
    for one in cluster.overrides:
        if one.node < len(speed):
            speed[one.node] = one.speed
    return np.asarray(slowed / speed[own])


def _late(devices: Devices) -> Floats:
    """Return how many times as long as over the usual link each device's bytes take, (workers,)."""
    cluster, own = devices.job.cluster, places_of(devices.job.cluster, devices.job.workers)
    late = np.ones(own.max() + 1)
    for one in cluster.overrides:
        if one.node < len(late) and one.nic is not None:
            late[one.node] = cluster.nic.goodput_bytes_per_s / one.nic.goodput_bytes_per_s
    return np.asarray(late[own])


def _unlike(devices: Devices, hosts_alike: bool, *, links: bool = True) -> Ids:
    """Return what makes nodes unlike others but their speed: their ``links``, what is beside each
    device, and the servers on them, (traits, workers)."""
    job, cluster = devices.job, devices.job.cluster
    own = places_of(cluster, job.workers)
    count = np.bincount(own)
    features: dict[int, list[object]] = {}
    for one in cluster.overrides:
        if links and one.node < len(count) and one.nic is not None:
            features.setdefault(one.node, []).append(one.nic)
    if cluster.server.placement == "colocated":
        for server, node in enumerate(homes_of(job, job.options.server_count).tolist()):
            features.setdefault(node, []).append("a server" if hosts_alike else server)
    if cluster.sites:
        for node, site in enumerate(cluster.sites_of(len(count), job.workers).tolist()):
            features.setdefault(node, []).append(f"site {site}")
    numbers: dict[object, int] = {}
    unlike = np.zeros(len(count), np.int64)
    for node, those in features.items():
        unlike[node] = numbers.setdefault(tuple(those), len(numbers) + 1)
    beside = [
        np.array([slowdown(many) for many in range(int(count.max()) + 1)])[count[own]]
        for slowdown in (cluster.neighbour_slowdown, cluster.loading_slowdown)
    ]
    return np.stack([unlike[own], *(times.view(np.int64) for times in beside)])
