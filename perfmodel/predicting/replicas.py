"""Jobs whose workers are replicas of several devices, stage by stage.

The devices of one stage of all replicas are the workers of a job of their own: its architecture is
that of the job, its workload are the stage's layers, and its cluster is what these devices see. The
graph of the job joins those of its stages, which share links, by what stages send to each other.
No architecture knows of replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.base.same import Same
from perfmodel.communication.fabric import Fabric, places_of
from perfmodel.communication.network import Network
from perfmodel.communication.units import Devices
from perfmodel.graph.joining import JoiningBuilder
from perfmodel.graph.op_graph import Axis, OpGraph
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Options
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.replica import Replica, Tied
from perfmodel.pipelines.facts import staleness
from perfmodel.predicting.context import with_context
from perfmodel.predicting.experts import Placed, with_experts
from perfmodel.predicting.stage_links import key_of, keys_of_fabric, names_of
from perfmodel.predicting.tensor_sums import slowdown_of, sums_of
from perfmodel.replicas.seats import Seats, of_groups, positions_of, seats_of
from perfmodel.replicas.stage_work import boundary_bytes, groups_of, schedule_of, stages_of
from perfmodel.training.blocks import BLOCKS, in_blocks
from perfmodel.training.spans import Paths, paths_of
from perfmodel.training.stages import ENDS, STARTS, TIED

WORKERS: tuple[Axis, ...] = (("worker", None),)
"""Axes of operations that every worker has."""


class StageJob(NamedTuple):
    """The job of the devices of one stage, and where these devices are.

    With two copies of each stage, those of both copies are its workers. ``ranks`` (copies,) are
    their numbers among the ranks of the schedule, and ``workers`` (copies, replicas) the number of
    each device among the workers.
    """

    job: Job
    seats: Seats
    ranks: Ids
    workers: Ids


def stage_jobs(job: Job, most: int | None = None) -> list[StageJob]:
    """Return the jobs of all stages, or of the first so many. A prediction asks several times for
    those of one job.

    Raises
    ------
    InputError : the layers, the schedule or the nodes do not allow such replicas.
    """
    if most is not None:
        return _stage_jobs(job, most)
    last = _last.get("made")
    if last is None or last[0] is not job:
        last = _last["made"] = job, _stage_jobs(job)
    return list(last[1])


_last: dict[str, tuple[Job, list[StageJob]]] = {}
"""The last job and those of its stages."""


def _stage_jobs(job: Job, most: int | None = None) -> list[StageJob]:
    replica, within, slower = replica_of(job), job.context_workers, slowdown_of(job)
    jobs = []
    several = zip(placed_stages(job, most), stages_of(job.workload, replica, most), strict=True)
    for one, (stage, workload) in several:
        layers = one_pass(workload).layers
        forward, backward = sums_of(job.cluster, replica, layers, job.workload.precision)
        stage = msgspec.structs.replace(stage, forward_sums=forward, backward_sums=backward)
        if replica.context > 1:
            stage = with_context(job.cluster, stage, layers, workload, within)
        if replica.experts is not None:
            placed = Placed.of(job.cluster, one.seats, replica, job.counted_as_one)
            stage, workload = with_experts(
                stage,
                workload,
                replica.experts,
                placed,
                shares_update=job.options.shares_update,
            )
        if slower != 1.0:
            workload = workload.scaled("compute_s", slower)
        part = msgspec.structs.replace(one.job, workload=workload, stage=stage)
        jobs.append(one._replace(job=part))
    return jobs


def placed_stages(job: Job, most: int | None = None) -> list[StageJob]:
    """Return the jobs of all stages, or of the first so many, without what the devices of a replica
    exchange: what they keep does not depend on it.

    Raises
    ------
    InputError : the layers, the schedule or the nodes do not allow such replicas.
    """
    replica, within = replica_of(job), job.context_workers
    _check_versions(job)
    groups = groups_of(schedule_of(replica, job.workload.accumulation))
    _check_copies(job, groups)
    positions = positions_of(job.workers, replica, within)[groups]  # (groups, copies, replicas)
    flat = np.sort(positions.reshape(len(groups), -1))
    seated = _seats_at(Same(job.cluster), job.counted_as_one, flat.tobytes(), len(flat), most)
    jobs = []
    for number, (seats, (stage, workload)) in enumerate(
        zip(seated, stages_of(job.workload, replica, most), strict=True)
    ):
        index = np.searchsorted(flat[number], positions[number])
        part = msgspec.structs.replace(
            job,
            workload=workload,
            cluster=seats.cluster,
            workers=index.size,
            options=job.options.among(within),
            replica=None,
            stage=stage,
            stragglers=tuple(
                msgspec.structs.replace(one, worker=int(worker))
                for one in job.stragglers
                for worker in index[:, one.worker * within : (one.worker + 1) * within].flat
            ),
            given=None,
        )
        jobs.append(StageJob(part, seats, groups[number], index))
    return jobs


@functools.lru_cache(maxsize=64)
def _seats_at(
    cluster: Same[Cluster], together: int, positions: bytes, rows: int, most: int | None
) -> tuple[Seats, ...]:
    """Return the seats of devices at so many rows of positions, where so many count as one."""
    at = np.frombuffer(positions, np.int64).reshape(rows, -1)
    return tuple(seats_of(of_groups(cluster.value, together), at, most))


def replica_of(job: Job) -> Replica:
    """Return what each worker of a job is.

    Raises
    ------
    InputError : a single device.
    """
    if job.replica is None:
        raise InputError("replica: the job has single devices")
    return job.replica


def _check_copies(job: Job, groups: Ids) -> None:
    """Raise InputError if a replica has two copies of each stage that would not remain the same."""
    if groups.shape[1] > 1 and (job.options.asynchronous or not architecture_of(job).central):
        raise InputError(
            f"schedule: {replica_of(job).schedule} has two copies of each stage, and with "
            f"{job.architecture.name} not all have the same weights in each step"
        )


def rank_positions(jobs: list[StageJob]) -> Ids:
    """Return where the devices of each rank of all replicas are among all, (ranks, replicas)."""
    rows = {
        int(rank): one.seats.position[index]
        for one in jobs
        for rank, index in zip(one.ranks, one.workers, strict=True)
    }
    return np.array([rows[rank] for rank in sorted(rows)])


def _check_versions(job: Job) -> None:
    """Raise InputError if stages update weights without a flush, and the architecture cannot have
    several versions of them."""
    why, replica = job.options.needs_flush, replica_of(job)
    kind = schedule_of(replica, job.workload.accumulation).updates.kind
    if kind != "flush" and why is not None:
        raise InputError(
            f"schedule: {replica.schedule} keeps several versions of weights, and with "
            f"{job.architecture.name} {why}"
        )


def whole_fabric(job: Job) -> Fabric:
    """Return the links between the devices of all stages of all replicas."""
    devices = job.devices // job.counted_as_one
    return Fabric.of(of_groups(job.cluster, job.counted_as_one), devices)


def devices_of(job: Job) -> list[Devices]:
    """Return the devices of all replicas, rank by rank."""
    jobs = [(one.job, one.seats.node) for one in stage_jobs(job)]
    return [Devices(one, node[places_of(one.cluster, one.workers)]) for one, node in jobs]


def build(job: Job, some: Ids | None = None, *, fold: bool = False) -> OpGraph:
    """Build the graph of a job with replicas, or with ``some`` of them, (replicas,); with ``fold``,
    of the first replica only, which represents all, if its stages allow it."""
    jobs = stage_jobs(job)
    whole = of_groups(job.cluster, job.counted_as_one)
    paths = paths_of(replica_of(job), job.workload.accumulation)
    late = delays(job)
    at = rank_positions(jobs)
    names = names_of(at, job.context_workers)
    pairs = _pairs(paths) + tied_pairs(jobs)
    loads = _loads(whole_fabric(job), at, pairs) if fold and len(at) == len(jobs) else None
    fold = loads is not None and whole.core_oversubscription is None
    graphs = _graphs(jobs, some, fold=fold)
    workers = job.workers * job.context_workers
    folded = fold and any(len(graph.group_mark) < workers for graph in graphs)
    if folded and any(len(graph.group_mark) == workers for graph in graphs):
        graphs, folded = _graphs(jobs, None, fold=False), False
    at = at if some is None else at[:, some]
    b = JoiningBuilder()
    devices = msgspec.structs.replace(
        job,
        cluster=whole,
        workers=job.devices // job.counted_as_one,
        replica=None,
        options=Options(),  # numbers of workers that these allow are numbers of replicas
        stragglers=(),
    )
    network = Network(b, devices, names=names)
    keys = keys_of_fabric(network.fabric)
    used = network.ids(np.arange(len(keys)))
    b.share(
        "link", used[used >= 0], [key for key, known in zip(keys, used >= 0, strict=True) if known]
    )
    logs: dict[int, tuple[Ids, Ids]] = {}
    tied: dict[int, Ids] = {}
    for graph, one in zip(graphs, jobs, strict=True):
        key = functools.partial(key_of, one.seats, network.fabric)
        name = f"stage {' and '.join(map(str, one.ranks))}"
        index = one.workers if some is None else np.arange(len(some))[None]
        index = np.zeros((1, 1), np.int64) if folded else index
        groups = np.empty(index.size, np.int64)  # among those of all: first those of rank 0
        groups[index] = one.ranks[:, None] * index.shape[1] + np.arange(index.shape[1])
        by = b.add(_later(graph, late[one.ranks[0]]), name, key, groups)
        logged = {log.label: log.ops + by for log in graph.logged}
        for rank, rows in zip(one.ranks.tolist(), index, strict=True):
            logs[rank] = logged[STARTS][rows], logged[ENDS][rows]
            if TIED in logged:
                tied[rank] = logged[TIED]
    units = loads if loads is not None and folded else {}
    in_order = [logs[rank] for rank in sorted(logs)]
    _add_transfers(b, job, network, at, in_order, paths, units)
    for pair in tied_pairs(jobs):
        _add_tied(b, network, jobs, pair, tied, units)
    return b.joined()


def delays(job: Job) -> list[int]:
    """Return for each stage how many of its own updates are between the weights that a micro-batch
    reads and its own update."""
    replica = replica_of(job)
    schedule = schedule_of(replica, job.workload.accumulation)
    stale = staleness(schedule)
    return [int(stale[list(schedule.held(rank))].max()) for rank in range(schedule.ranks)]


def _later(graph: OpGraph, rounds: int) -> OpGraph:
    """Return a stage's graph in which gradients are applied so many rounds after the weights that
    they were computed on have been read."""
    lag = graph.probe_lag.copy()
    for block in graph.probes:
        if block.label == "staleness":
            lag[block.first : block.first + block.size] += rounds
    return msgspec.structs.replace(graph, probe_lag=lag)


def tied_pairs(jobs: list[StageJob]) -> list[tuple[int, int]]:
    """Return the two stages that have a table in common, in both orders, if there are any."""
    both = [k for k, one in enumerate(jobs) if tied_table(one.job) is not None]
    return [(both[0], both[1]), (both[1], both[0])] if len(both) == 2 else []


def tied_table(job: Job) -> Tied | None:
    """Return the table that the job of a stage has in common with another's, if there is one."""
    return None if job.stage is None else job.stage.tied


def _add_tied(
    b: JoiningBuilder,
    network: Network,
    jobs: list[StageJob],
    pair: tuple[int, int],
    tied: dict[int, Ids],
    units: dict[tuple[int, int], Floats],
) -> None:
    """Add what one of two stages with a table in common sends to the other, to sum its gradients.

    Of an all-reduce between two, each sends as many bytes as there are, in two steps.
    """
    source, target = pair
    n = len(tied[source])
    a, z = (jobs[stage].seats.position[:n] for stage in pair)
    table = tied_table(jobs[source].job)
    between = network.between(a, z)
    sent = b.ops(
        "sum of tied tables",
        (n,),
        bytes=0.0 if table is None else table.bytes,
        path=between["path"],
        path_units=units.get(pair, 1.0),
        rate_cap_bytes_per_s=between["rate_cap_bytes_per_s"],
        latency_s=2.0 * between["latency_s"],
        group=target * n + np.arange(n),
        axes=(*WORKERS,),
    )
    for stage in pair:
        b.edge(tied[stage][:, 0], sent)
        b.edge(sent, tied[stage][:, 1])


def _pairs(paths: Paths) -> list[tuple[int, int]]:
    """Return the ranks that send and receive of each transfer, (transfers,)."""
    rank, handing = paths.schedule.rank, paths.handing
    return list(zip(rank[handing.source].tolist(), rank[handing.target].tolist(), strict=True))


def _loads(
    fabric: Fabric, at: Ids, pairs: list[tuple[int, int]]
) -> dict[tuple[int, int], Floats] | None:
    """Return how many replicas share each link of the path between two stages of the first, by the
    pair of stages, (links,); None if other replicas share theirs in another way."""
    each = list(dict.fromkeys(pairs))
    ends = [(at[a], at[z]) for a, z in each]
    routes = [fabric.path(a, z) for a, z in ends]  # (workers, links) each
    shared = np.zeros((len(fabric.capacity) + 1, len(each)))  # the last row is that of no link
    for column, route in enumerate(routes):
        np.add.at(shared[:, column], np.where(route == NONE, len(shared) - 1, route), 1.0)
    shared[-1] = 0.0
    capacity = np.append(fabric.capacity, np.inf)
    for (a, z), route in zip(ends, routes, strict=True):
        for seen in (shared[route], capacity[route], fabric.between_s(a, z),
                     fabric.flow_between(a, z)):  # fmt: skip
            if (seen != seen[:1]).any():
                return None
    return {
        pair: np.maximum(shared[route[0], column], 1.0)
        for column, (pair, route) in enumerate(zip(each, routes, strict=True))
    }


def _graphs(jobs: list[StageJob], some: Ids | None, *, fold: bool) -> list[OpGraph]:
    """Build the graph of each stage, of ``some`` of its workers; folded if its architecture can."""
    graphs = []
    for job, *_ in jobs:
        architecture, graph = architecture_of(job), None
        if some is not None and architecture.few is not None:
            in_step = len(some) < job.workers and job.options.server_count > 0
            graph = architecture.few(in_blocks(job, BLOCKS) if in_step else job, some)
        elif fold and architecture.fold is not None:
            graph = architecture.fold(job)
        graphs.append(architecture.build(job) if graph is None else graph)
    return graphs


def shares_sent(job: Job) -> float:
    """Return what the devices of a stage that count as one send to the next stage, as a multiple
    of the activations: each sends its own, of its part of a sequence."""
    replica = replica_of(job)
    copies = 1 if replica.sequence_parallel else replica.tensor
    return copies / job.context_workers


def _add_transfers(
    b: JoiningBuilder,
    job: Job,
    network: Network,
    at: Ids,
    logs: list[tuple[Ids, Ids]],
    paths: Paths,
    units: dict[tuple[int, int], Floats],
) -> None:
    """Add what stages send to each other: activations forward, and their gradients backward.

    Transfers from one device to another follow each other on one connection. If the first replica
    represents all, ``units`` (links,) of each pair of stages is how many share its links.
    """
    replica = replica_of(job)
    schedule, handing = paths.schedule, paths.handing
    sizes = boundary_bytes(job.workload, replica)
    starts = np.concatenate([start for start, _ in logs], axis=1)  # (workers, actions of all ranks)
    ends = np.concatenate([end for _, end in logs], axis=1)
    n, worker = len(starts), np.arange(len(starts))
    stage = schedule.stage
    share = shares_sent(job)
    pairs = _pairs(paths)
    lines = {pair: b.slots(f"connection of stage {pair[0]} to {pair[1]}", (n,), axes=WORKERS)
             for pair in sorted({*pairs, *(pair[::-1] for pair in pairs)})}  # fmt: skip
    sends: dict[tuple[int, int], tuple[Ids, Ids]] = {}
    for pair in dict.fromkeys(pairs):
        where = np.flatnonzero([one == pair for one in pairs])
        source, target = handing.source[where], handing.target[where]
        moved = [sizes[min(both)] for both in zip(stage[source], stage[target], strict=True)]
        a, z = (at[end][:n] for end in pair)
        between = network.between(a, z)
        names = [
            f"from stage {pair[0]} to {pair[1]}, {schedule.action(k)}" for k in source.tolist()
        ]
        sent = b.ops(
            "send",
            (n, len(where)),
            bytes=share * np.array(moved),
            path=between["path"][:, None],
            path_units=units.get(pair, 1.0),
            rate_cap_bytes_per_s=between["rate_cap_bytes_per_s"][:, None],
            latency_s=between["latency_s"][:, None],
            burst_bytes=between["burst_bytes"][:, None],
            slot=lines[pair][:, None],
            group=(pair[1] * n + worker)[:, None],
            axes=(*WORKERS, ("result of", names)),
        )
        sends[pair] = (where, sent)
        b.edge(ends[:, handing.leaves[where]], sent)
        for lag in np.unique(handing.lag[where]).tolist():
            now = handing.lag[where] == lag
            b.edge(sent[:, now], starts[:, target[now]], lag=lag)
        if replica.transfers != "gloo":
            for lag in np.unique(handing.held_lag[where]).tolist():
                now = (handing.held[where] != NONE) & (handing.held_lag[where] == lag)
                b.edge(sent[:, now], starts[:, handing.held[where][now]], lag=lag)
        b.probe("send between stages", sent, sent, at_ready=True)
    for pair, (where, sent) in sends.items():
        known = np.flatnonzero(handing.posted[where] != NONE)
        before, after = ends[:, handing.posted[where][known]], sent[:, known]
        if replica.transfers != "gloo":
            b.edge(before, after)
            continue
        of_pair = f"from stage {pair[1]} to {pair[0]}"
        actions = handing.target[where][known].tolist()
        names = [f"{of_pair}, {schedule.action(k)}" for k in actions]
        ways = tuple(at[end][:n] for end in pair[::-1])
        asked = _add_requests(b, network, after.shape, ways, lines[pair[::-1]], pair[1], names)
        b.edge(before, asked)
        b.edge(asked, after)
        held, held_lag = handing.held[where][known], handing.held_lag[where][known]
        for lag in np.unique(held_lag).tolist():  # until the data are in the connection's buffer
            now = (held != NONE) & (held_lag == lag)
            b.edge(asked[:, now], starts[:, held[now]], lag=lag)


def _add_requests(
    b: JoiningBuilder,
    network: Network,
    shape: tuple[int, ...],
    ways: tuple[Ids, ...],
    line: Ids,
    stage: int,
    names: Sequence[str],
) -> Ids:
    """Add the requests for the data of ``names`` (requests,) by the devices of a stage, in
    ``shape`` (devices, requests); ``ways`` are where they leave from and go to."""
    between = network.between(*ways)
    return b.ops(
        "request",
        shape,
        seconds=between["latency_s"][:, None],
        path=between["path"][:, None],
        queued_bytes=network.fabric.queued_bytes(*ways)[:, None],
        slot=line[:, None],
        group=(stage * shape[0] + np.arange(shape[0]))[:, None],
        axes=(*WORKERS, ("of", names)),
    )
