"""Formulas for jobs whose workers are replicas of several devices.

Each stage is a device that computes for as long as the pipeline takes from its first action to its
last, and then exchanges its gradients as its architecture's formulas say. The slowest stage sets
the pace. What a device does not compute of that time is the pipeline's bubble.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.communication.fabric import Fabric
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.workload import Workload, WorkloadLayer, expanded
from perfmodel.phases.phases import BETWEEN_STAGES, Phase, Phases
from perfmodel.predicting.experts import sums_of
from perfmodel.predicting.packed import LaterActions, drawn, with_jitter
from perfmodel.predicting.replicas import (
    StageJob,
    delays,
    rank_positions,
    replica_of,
    shares_sent,
    stage_jobs,
    tied_pairs,
    tied_table,
    whole_fabric,
)
from perfmodel.replicas.stage_work import boundary_bytes, schedule_of
from perfmodel.training.labels import EXPERT_EXCHANGE, IMBALANCE, SLOWEST
from perfmodel.training.shared_links import MOST_TRANSFERS, RoundFlows, shared_pace_s, shared_spans
from perfmodel.training.spans import Paths, Spans, pace_s, paths_of, spans
from perfmodel.training.stages import chunk_seconds

BUSY = 0.02
"""Part of a step in which transfers occupy a link from which on it counts as shared."""


MOST_TAKEN = 0.5
"""Largest part of links that the exchange among replicas takes from transfers: a fair share."""

OF_NODES = "link of each node"
"""The links of nodes in :attr:`perfmodel.phases.phases.Phases.busy_s`."""


class Face(NamedTuple):
    """A stage as a single device: its job, and of the computing time in it, what it really computes
    and what it spends on sums among the devices that divide its layers, on exchanges among those
    that divide sequences, and on waits for the slowest of these; and on exchanges of tokens with
    experts, and waits for the busiest of these."""

    job: Job
    computing_s: float
    summing_s: float
    exchanging_s: float
    waiting_s: float
    routing_s: float
    imbalance_s: float
    span_s: float


OF_FACE = Face._fields[1:-1]
"""Names of what the computing time of a face consists of."""


def phases(job: Job, of_device: Callable[[Job], Phases]) -> Phases:
    """Return the phases of a worker's iteration.

    Parameters
    ----------
    of_device : returns the phases of a job with single devices.
    """
    passes, jobs = job.workload.accumulation, stage_jobs(job)
    paths = paths_of(replica_of(job), passes)
    faces = faces_of(job, jobs)
    several = [of_device(face.job) for face in faces]
    endless = paths.schedule.updates.kind != "flush"
    held_s: list[float] = []
    if (
        not endless
        and job.options.holds_backward
        and replica_of(job).asks_as_torch
        and len(faces) > 1
    ):
        held_s = [_held_s(one) for one in several]
        faces = faces_of(job, jobs, held_s)
        several = [of_device(face.job) for face in faces]
    hidden = max(map(_hidden, several))
    if not endless and hidden > BUSY and len(faces) > 1:
        faces = faces_of(job, jobs, held_s, hidden)
        several = [of_device(face.job) for face in faces]
    slowest = max(range(len(faces)), key=lambda k: float(several[k].iteration_s))
    face, result = faces[slowest], several[slowest]
    computing = float(np.mean([one.computing_s for one in faces]))
    summing, exchanging, waiting, routing, imbalance = (
        float(np.mean([getattr(one, name) for one in faces])) for name in OF_FACE[1:]
    )
    outside_s = float(result.compute_s) - face.span_s
    others = {name: part for name, part in result.parts.items() if part.cause != "compute"}
    parts = {
        "compute": Phase(computing + outside_s, "compute"),
        "sums over tensor-parallel devices": Phase(summing, "network"),
        "exchange over context-parallel devices": Phase(exchanging, "network"),
        "slowest part of sequences": Phase(waiting, SLOWEST),
        EXPERT_EXCHANGE: Phase(routing, "network"),
        "expert imbalance": Phase(imbalance, IMBALANCE),
        **others,
    }
    iteration_s = float(result.iteration_s)
    if endless:
        iteration_s = max(iteration_s, _pace_s(job, paths, jobs, faces, several))
    crossing_s = _crossing_s(job, paths, jobs)
    full_s = max(_links_s(jobs, several, crossing_s) - iteration_s, 0.0) if len(faces) > 1 else 0.0
    bubble_s = iteration_s - sum(float(part.seconds) for part in parts.values())
    parts["transfers beside the exchange"] = Phase(full_s, "network")
    parts["pipeline bubble"] = Phase(bubble_s, "pipeline")
    kept = {name: part for name, part in parts.items() if float(part.seconds) != 0.0}
    busy = dict(result.busy_s)
    if len(faces) > 1:
        busy[BETWEEN_STAGES] = float(crossing_s.max())
    late = tuple(delays(job)) if endless else ()
    return msgspec.structs.replace(result, parts=kept, classes=(), busy_s=busy, late=late)


def _held_s(one: Phases) -> float:
    """Return how long gradients are exchanged after the last backward pass: stages wait for slower
    replicas only once."""
    waits = [float(part.seconds) for part in one.parts.values() if part.cause == SLOWEST]
    return float(one.iteration_s) - float(one.compute_s) - sum(waits)


def _hidden(one: Phases) -> float:
    """Return the part of an iteration in which the exchange among replicas occupies links beside
    computation."""
    exposed = sum(float(part.seconds) for part in one.parts.values() if part.cause == "network")
    whole = float(one.iteration_s)
    return min(max(float(one.busy_s.get(OF_NODES, 0.0)) - exposed, 0.0) / whole, MOST_TAKEN)


def _pace_s(
    job: Job, paths: Paths, jobs: list[StageJob], faces: list[Face], several: list[Phases]
) -> float:
    """Return the time between two updates of stages that go on without a flush."""
    took = _seconds(paths, jobs).sum(axis=0)
    between_s = np.array(
        [float(one.iteration_s) - face.span_s for one, face in zip(several, faces, strict=True)]
    )
    held = np.zeros(len(took))
    if job.options.holds_backward and replica_of(job).asks_as_torch and len(faces) > 1:
        for rank, one in enumerate(several):
            late_s = float(one.iteration_s) - float(one.compute_s)
            held[finals_of(paths, rank)] = late_s
            between_s[rank] -= late_s
    flows = _flows(job, paths, jobs)
    alone_s = pace_s(paths, took + held, flows.alone_s(), flows.latency_s, between_s)
    if _share(paths, flows, alone_s):
        return max(alone_s, shared_pace_s(paths, took + held, flows, between_s))
    return alone_s


def leaves_out(job: Job, of_device: Callable[[Job], str | None]) -> str | None:
    """Return what the formulas leave out of a job; None if nothing.

    ``of_device`` returns what those of a job with single devices leave out.
    """
    replica = replica_of(job)
    several = replica.pipeline > 1
    schedule = schedule_of(replica, job.workload.accumulation)
    if job.workload.packing is not None and schedule.updates.kind != "flush":
        return "unequal sequences in pipelines without a flush"
    if several and replica.transfers == "gloo":
        return "requests behind data (transfers gloo)"
    if several and job.unequal:
        return "stages of different speeds"
    if several and job.options.server_count > 0:
        return "servers that stages share"
    jobs = stage_jobs(job)
    if several and _share_links(jobs):
        return "links that stages share"
    if any(part.bytes for one in jobs if one.job.stage for part in sums_of(one.job.stage.routing)):
        return "links that experts and gradients share"
    return next((text for text in (of_device(one.job) for one in jobs) if text is not None), None)


def _share_links(jobs: list[StageJob]) -> bool:
    """Return whether devices of two stages use the same link of a node, or between sites."""
    used: list[set[tuple[object, ...]]] = [
        {(int(node), int(nic)) for node, row in zip(s.node, s.nics, strict=True) for nic in row}
        | set(itertools.permutations((at.name for at in s.cluster.sites if at.nodes), 2))
        for s in (one.seats for one in jobs)
    ]
    return len(set().union(*used)) < sum(map(len, used))


def exact(job: Job, of_device: Callable[[Job], bool]) -> bool:
    """Return whether the formulas equal the simulation: for one replica without stages whose sums
    pass no links between nodes, if they do for one device (``of_device``)."""
    if replica_of(job).pipeline > 1 or job.workers > 1:
        return False
    (one,) = stage_jobs(job)
    stage = one.job.stage
    if stage is None or stage.context_workers > 1:
        return False
    sums = (*stage.forward_sums, *stage.backward_sums, *stage.forward_exchanges,
            *stage.backward_exchanges, *stage.gradient_sums, *sums_of(stage.routing))  # fmt: skip
    return not any(part.bytes for part in sums) and of_device(
        msgspec.structs.replace(one.job, stage=None)
    )


def _crossing_s(job: Job, paths: Paths, jobs: list[StageJob]) -> Floats:
    """Return how long transfers between stages occupy the busiest link that each rank's devices
    send or receive over in an iteration, (ranks,)."""
    fabric, position = whole_fabric(job), rank_positions(jobs)
    rank = paths.schedule.rank
    source, target = rank[paths.handing.source], rank[paths.handing.target]
    path = fabric.path(position[source], position[target])  # (transfers, workers, links)
    load = np.zeros(len(fabric.capacity) + 1)  # the last is that of no link
    moved = np.broadcast_to(_moved(job, paths)[:, None, None], path.shape)
    np.add.at(load, path, moved)
    busy_s = np.append(load[:-1] / fabric.capacity, 0.0)[path].max(axis=(1, 2), initial=0.0)
    crossing = np.zeros(len(position))
    for ends in (source, target):
        np.maximum.at(crossing, ends, busy_s)
    return crossing


def _links_s(jobs: list[StageJob], several: list[Phases], crossing_s: Floats) -> float:
    """Return how long transfers and the exchange together occupy the busiest link of a node."""
    return max(
        float(one.busy_s.get(OF_NODES, 0.0)) + float(crossing_s[of.ranks].max())
        for of, one in zip(jobs, several, strict=True)
    )


def _moved(job: Job, paths: Paths) -> Floats:
    """Return the bytes of each transfer, (transfers,)."""
    replica, stage, handing = replica_of(job), paths.schedule.stage, paths.handing
    share = shares_sent(job)
    sizes = np.array([*boundary_bytes(job.workload, replica), 0.0])
    between = np.minimum(stage[handing.source], stage[handing.target])
    return np.asarray(sizes[between] * share)


def faces_of(
    job: Job, jobs: list[StageJob], held_s: Sequence[float] = (), taken: float = 0.0
) -> list[Face]:
    """Return each stage, of ``jobs``, as a job with single devices. ``taken`` is the part of links
    that something else uses all the time.

    ``held_s`` (stages,) is how much longer the last backward passes of a stage take because they
    return once their gradients have been exchanged; each chunk has an equal part.
    """
    replica, passes = replica_of(job), job.workload.accumulation
    if passes > 1 and replica.pipeline == 1 and job.options.sends_in_each_pass:
        single = msgspec.structs.replace(job, workload=one_pass(job.workload))
        return [_repeated(face, passes) for face in faces_of(single, stage_jobs(single))]
    paths = paths_of(replica, passes)
    parts = _seconds(paths, jobs)
    held = np.zeros(parts.shape[1])
    for one, late_s in zip(jobs, held_s, strict=False):
        for rank in one.ranks.tolist():
            finals = finals_of(paths, rank)
            held[finals] = late_s / len(finals)
    took = parts.sum(axis=0)
    of_documents: LaterActions | None = None
    if paths.schedule.updates.kind == "flush":
        flows = _flows(job, paths, jobs)
        left = flows.capacity_bytes_per_s * (1.0 - taken)
        at = _spans(paths, took + held, flows._replace(capacity_bytes_per_s=left))
        if job.workload.packing is not None:
            of_documents = drawn(job, jobs, paths, took + held, flows)
            at = of_documents.later(at)
        at = Spans(at.begin, at.end - held)
    else:  # a stage alone, which waits for nothing
        end = np.cumsum(took)
        at = Spans(end - took, end)
    done_s = [float(at.end[stop - 1]) for stop in paths.schedule.begins.tolist()[1:]]
    if pairs := tied_pairs(jobs):
        table, ends = (
            tied_table(jobs[pairs[0][0]].job),
            [jobs[k].seats.position[:1] for k in pairs[0]],
        )
        summed_s = max(done_s[k] for k in pairs[0])
        summed_s += sum_of_tied_s(whole_fabric(job), 0.0 if table is None else table.bytes, ends)
        for k in pairs[0]:
            done_s[k] = summed_s
    ranks = [int(one.ranks[0]) for one in jobs]
    faces = [
        _face(paths, at, parts, rank, one, done_s[rank])
        for rank, one in zip(ranks, jobs, strict=True)
    ]
    if of_documents is None:
        return faces
    return [
        face._replace(job=with_jitter(face.job, job, float(of_documents.cv[rank])))
        for rank, face in zip(ranks, faces, strict=True)
    ]


def _repeated(face: Face, passes: int) -> Face:
    """Return a device whose updates have so many passes as this."""
    work = accumulated(face.job.workload, passes)
    times = {name: passes * getattr(face, name) for name in (*OF_FACE, "span_s")}
    return face._replace(job=msgspec.structs.replace(face.job, workload=work), **times)


def sum_of_tied_s(fabric: Fabric, table_bytes: float, ends: Sequence[Ids]) -> float:
    """Return the time in which two stages sum the gradient of a table that both have, the first
    devices of which are these two ``ends``, (1,) each; each sends its part, the slower one last."""
    several = [alone_between(fabric, *pair) for pair in (ends, ends[::-1])]
    return max(
        table_bytes / float(rate_bytes_per_s[0]) + 2.0 * float(latency_s[0])
        for rate_bytes_per_s, latency_s in several
    )


def finals_of(paths: Paths, rank: int) -> list[int]:
    """Return the action that completes the gradients of each chunk of a rank, (chunks,)."""
    return list(paths.schedule.finals[rank])


def _seconds(paths: Paths, jobs: list[StageJob]) -> Floats:
    """Return the time of each action by part, (6, actions): computing, sums among devices, their
    exchanges, and waits for the slowest; exchanges with experts, and waits for the busiest."""
    schedule = paths.schedule
    parts = np.zeros((6, len(schedule)))
    for one in jobs:
        *several, gradients = chunk_seconds(one.job)
        for rank in one.ranks.tolist():
            where = actions_of(paths, rank)
            chunk = np.searchsorted(np.array(schedule.held(rank)), schedule.stage[where])
            for row, table in zip(parts, several, strict=True):
                row[where] = table[schedule.kind[where], chunk]
            parts[2, finals_of(paths, rank)] += gradients
    return parts


def _flows(job: Job, paths: Paths, jobs: list[StageJob]) -> RoundFlows:
    """Return the transfers of the replica that shares most links with the same transfers of
    others."""
    schedule, handing = paths.schedule, paths.handing
    fabric, moved = whole_fabric(job), _moved(job, paths)
    position = rank_positions(jobs)
    pairs = np.stack([schedule.rank[handing.source], schedule.rank[handing.target]], axis=1)
    each, of = np.unique(pairs, axis=0, return_inverse=True)
    a, z = position[each[:, 0]], position[each[:, 1]]  # (pairs, replicas)
    path = fabric.path(a, z)  # (pairs, replicas, links)
    shared = np.zeros((len(each), len(fabric.capacity) + 1))  # the last is that of no link
    for row, links in zip(shared, path, strict=True):
        np.add.at(row, links, 1.0)
    shared[:, -1] = 1.0
    units = shared[np.arange(len(each))[:, None, None], path]
    one = int(units.sum(axis=(0, 2)).argmax())
    of = of.reshape(-1)
    return RoundFlows(
        moved,
        fabric.between_s(a[:, one], z[:, one])[of],
        fabric.flow_between(a[:, one], z[:, one])[of],
        path[:, one][of],
        units[:, one][of],
        fabric.capacity,
    )


def _spans(paths: Paths, seconds: Floats, flows: RoundFlows) -> Spans:
    """Return begin and end of each action; if links are shared and not almost idle, with transfers
    that share them."""
    sent_s = flows.alone_s()
    at = spans(paths, seconds, sent_s, flows.latency_s)
    return shared_spans(paths, seconds, flows) if _share(paths, flows, at.end.max()) else at


def _share(paths: Paths, flows: RoundFlows, took_s: float) -> bool:
    """Return whether transfers of a step of so many seconds share links for some of the time."""
    if not 0 < len(flows.bytes) <= MOST_TRANSFERS:
        return False
    rank, handing = paths.schedule.rank, paths.handing
    pairs = zip(rank[handing.source].tolist(), rank[handing.target].tolist(), strict=True)
    return flows.busy_s() >= BUSY * took_s and flows.meet(list(pairs))


def alone_between(fabric: Fabric, source: Ids, target: Ids) -> tuple[Floats, Floats]:
    """Return the rate (bytes/s) and the latency (s) of transfers alone on their links."""
    path = fabric.path(source, target)
    capacity = np.where(path >= 0, fabric.capacity[path], np.inf).min(axis=-1)
    rate: Floats = np.minimum(capacity, fabric.flow_between(source, target))
    return rate, fabric.between_s(source, target)


def _face(
    paths: Paths,
    at: Spans,
    parts: Floats,
    rank: int,
    one: StageJob,
    end_s: float,
) -> Face:
    """Return a stage as a device that is done at ``end_s`` (:func:`passes_of`)."""
    where, job = actions_of(paths, rank), one.job
    work = one_pass(expanded(job.workload))
    sizes = (len(work.layers),) if job.stage is None else job.stage.chunk_layers
    forward = np.array([layer.forward_s for layer in work.layers])
    backward = np.array([layer.backward_s for layer in work.layers])
    forward, backward, span_s = passes_of(paths, at, rank, (forward, backward), sizes, end_s)
    layers = [
        msgspec.structs.replace(layer, forward_s=forward_s, backward_s=backward_s)
        for layer, forward_s, backward_s in zip(
            work.layers, forward.tolist(), backward.tolist(), strict=True
        )
    ]
    face = _as_device(work, layers, job.workload)
    alone = msgspec.structs.replace(job, workload=face, stage=None)
    seconds = dict(zip(OF_FACE, parts[:, where].sum(axis=1).tolist(), strict=True))
    return Face(job=alone, span_s=float(span_s), **seconds)


def actions_of(paths: Paths, rank: int) -> slice:
    """Return where the actions of a rank are among all."""
    begins = paths.schedule.begins
    return slice(int(begins[rank]), int(begins[rank + 1]))


def passes_of(
    paths: Paths,
    at: Spans,
    rank: int,
    layers_s: tuple[Floats, Floats],
    chunk_layers: Sequence[int],
    end_s: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """Return the passes of a rank as those of a single device, and how long it takes for both.

    The backward pass of a layer is the one that completes its gradients, with whatever is between
    it and the one before; all before the first of them is in the forward pass.

    Parameters
    ----------
    at : of all actions, (actions, ...).
    layers_s : forward and backward times of the rank's layers in one pass, (layers, ...) each, with
        the same further axes, as returned.
    end_s : when the rank is done.
    """
    forward_s, backward_s = layers_s
    where, finals = actions_of(paths, rank), finals_of(paths, rank)
    begin_s = at.begin[where][0]
    order = sorted(range(len(finals)), key=lambda k: finals[k])
    past_s = at.begin[finals[order[0]]]
    before_s, passes_s = past_s - begin_s, forward_s.sum(axis=0)
    scale = np.minimum(1.0, before_s / np.where(passes_s > 0.0, passes_s, np.inf))
    scale = np.where(passes_s > 0.0, scale, 0.0)
    forward = forward_s * scale
    forward[-1] += before_s - passes_s * scale
    backward = np.empty_like(forward)
    for k in order:
        stop, action = sum(chunk_layers[: k + 1]), finals[k]
        chunk = slice(stop - chunk_layers[k], stop)
        gap_s = at.begin[action] - past_s  # other actions since the gradient before
        all_s = backward_s[chunk].sum(axis=0)
        share = backward_s[chunk] / np.where(all_s > 0.0, all_s, 1.0)
        share = np.where(all_s > 0.0, share, 1.0 / chunk_layers[k])
        backward[chunk] = (at.end[action] - at.begin[action]) * share
        backward[stop - 1] += gap_s
        past_s = at.end[action]
    backward[0] += end_s - past_s
    return forward, backward, end_s - begin_s


def _as_device(work: Workload, layers: list[WorkloadLayer], update: Workload) -> Workload:
    """Return the workload of an update in one pass with these layers."""
    return msgspec.structs.replace(
        work,
        layers=tuple(layers),
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        batch_size=update.batch_size,
        data_loading_s=update.data_loading_s,
        accumulation=1,
    )
