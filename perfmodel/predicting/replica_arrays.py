"""Formulas of many layouts of replicas at once: :func:`along`.

The functions are those of :mod:`perfmodel.predicting.replica_formulas`, which take arrays; but
transfers between stages have their links to themselves. Layouts
with the same schedule share its longest path; stages with the same layers on the same devices share
what the formulas of an architecture say of them. What differs is an axis of arrays: times of
layers, stages, and numbers of micro-batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import accumulated
from perfmodel.inputs.replica import Replica, ReplicaStage
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.predicting.replica_columns import (
    Known,
    OfExperts,
    Work,
    column_of,
    structure_of,
    timed,
    updates_of,
)
from perfmodel.predicting.replica_formulas import alone_between, finals_of, passes_of, sum_of_tied_s
from perfmodel.predicting.replica_lines import Value, line_of, on_line
from perfmodel.predicting.replicas import replica_of
from perfmodel.replicas.stages import chunks_of
from perfmodel.training.spans import Paths, Spans, paths_of
from perfmodel.training.waves import spans_of, waves_of

Formulas = Callable[[Job, Quantities], Phases]


class Steps(NamedTuple):
    """Seconds of a step and of its pipeline bubble, (numbers of micro-batches,)."""

    step_s: Floats
    bubble_s: Floats


def along(
    shapes: Sequence[Job], passes: Sequence[Ids], formulas: Formulas, known: Known
) -> list[Steps | InputError]:
    """Return the steps of each layout with each of its numbers of micro-batches.

    Beyond a few micro-batches, as many more as there are stages take a step the same time longer;
    that time is evaluated and checked, and where it varies, all numbers are evaluated.

    Parameters
    ----------
    shapes : jobs of one model with replicas (:func:`.replica_columns.as_arrays`), whose workload is
        that of one micro-batch, with layers. Equal workloads, and clusters, should be one object.
    passes : numbers of micro-batches of each, increasing; all are possible with its schedule.
    formulas : returns the phases of a job with single devices from quantities with arrays.
    known : what these, and other layouts of the same jobs, share.
    """
    results: list[Steps | InputError] = [InputError("")] * len(shapes)
    alike: dict[tuple[int, Replica], list[int]] = defaultdict(list)
    for k, job in enumerate(shapes):
        try:
            known.work(job)
            known.seats_of(job)
        except InputError as error:
            results[k] = error
            continue
        alike[len(job.workload.layers), structure_of(job)].append(k)
    by_stages: dict[int, list[_Group]] = defaultdict(list)
    for (_, structure), members in alike.items():
        by_stages[structure.pipeline].append(_Group(structure, members, shapes, passes, known))
    for groups in by_stages.values():
        possible = []
        for group in groups:
            try:
                group.prepare()
                possible.append(group)
            except InputError as error:
                for k in group.members:
                    results[k] = error
        _evaluate(possible, formulas, results)
    return results


class _Block(NamedTuple):
    """Some columns of a group with one number of micro-batches.

    ``layouts`` are those of each column, as numbers in the group; they differ in architecture.
    ``forward_s`` and ``backward_s`` are each rank's passes as those of a single device, (layers,
    columns) each; ``span_s`` how long it takes for them, and ``busy_s`` what it computes and sums
    of that, (ranks, columns). All are repeated ``turns`` times in an update.
    """

    group: _Group
    passes: int
    turns: int
    columns: Sequence[int]
    layouts: Sequence[Sequence[int]]
    forward_s: list[Floats]
    backward_s: list[Floats]
    span_s: Floats
    busy_s: Floats


class _Group:
    """Layouts with the same stages, chunks and schedule; ``members`` are their numbers.

    A column is a layout but for its architecture. Those of which ``sends_each`` (layouts,) is true
    communicate in each of their passes, one after the other.
    """

    def __init__(
        self,
        structure: Replica,
        members: list[int],
        shapes: Sequence[Job],
        passes: Sequence[Ids],
        known: Known,
    ) -> None:
        self.structure, self.members, self.known = structure, members, known
        self.jobs, self.passes = [shapes[k] for k in members], [passes[k] for k in members]

    def prepare(self) -> None:
        """Stack the times of all columns.

        Raises
        ------
        InputError : the layers, the nodes or the schedule do not allow such replicas.
        """
        self.chunks = chunks_of(self.jobs[0].workload.layers, self.structure)
        self.lines = [line_of(passes, self.structure.pipeline) for passes in self.passes]
        single = self.structure.pipeline == 1
        self.sends_each = [single and job.options.sends_in_each_pass for job in self.jobs]
        lines = zip(self.lines, self.sends_each, strict=True)
        for number in {1 if each else m for line, each in lines for m in line.first}:
            self.paths(number)
        numbers: dict[Hashable, int] = {}
        self.columns: list[Job] = []
        self.column_of = []
        for job in self.jobs:
            key = column_of(job)
            if key not in numbers:
                numbers[key] = len(numbers)
                self.columns.append(job)
            self.column_of.append(numbers[key])
        self.works = [self.known.work(job) for job in self.columns]
        self.seats = [self.known.seats_of(job) for job in self.columns]
        starts, ends = zip(*((chunk.start, chunk.stop - 1) for chunk in self.chunks), strict=True)
        columns = zip(self.columns, self.works, strict=True)
        seconds = np.stack([self.of_layers_s(job, work) for job, work in columns], axis=-1)
        self.seconds = np.add.reduceat(seconds, starts, axis=1)  # (kinds, chunks, columns)
        self.forward_s = np.stack([one.forward_s for one in self.works], axis=-1)
        self.backward_s = np.stack([one.backward_s for one in self.works], axis=-1)
        gradients = np.stack([one.gradients_s for one in self.works], axis=-1)
        self.gradients_s = np.add.reduceat(gradients, starts)  # (chunks, columns)
        self.moved = np.stack([one.passed_bytes[list(ends)] for one in self.works], axis=-1)
        self.devices = self.device_numbers()
        kinds = [(job.architecture.name, job.options, job.context_workers) for job in self.jobs]
        self.kinds = np.array([self.known.number(kind) for kind in kinds])

    def of_layers_s(self, job: Job, work: Work) -> Floats:
        """Return the seconds of each layer of a column by kind of action, (kinds, layers)."""
        seconds = work.seconds + work.sums
        if replica_of(job).experts is not None:
            paths = self.paths(self.lines[0].first[0])
            for rank, placed in enumerate(self.known.placed_of(job)):
                rows = np.concatenate([np.array(one) for one in self.held(paths, rank)])
                seconds[:, rows] += self.known.routed_s(job, placed)[:, rows]
        return seconds

    def paths(self, passes: int) -> Paths:
        """Return what each action waits for."""
        return paths_of(self.structure, passes)

    def held(self, paths: Paths, rank: int) -> list[range]:
        """Return the layers of each chunk of a rank."""
        return [self.chunks[chunk] for chunk in paths.schedule.held(rank)]

    def block(
        self,
        passes: int,
        columns: Sequence[int],
        layouts: Sequence[Sequence[int]],
        late_s: Floats | None = None,
        turns: int = 1,
    ) -> _Block:
        """Return the passes of each rank as those of a single device.

        ``late_s`` (ranks, columns) is how much longer a rank's last backward passes take because
        they return once their gradients have been exchanged. All is repeated ``turns`` times.
        """
        paths = self.paths(passes)
        schedule = paths.schedule
        seconds = self.seconds[schedule.kind, schedule.stage][:, columns]
        for last in map(list, schedule.finals):
            seconds[last] += self.gradients_s[schedule.stage[last]][:, columns]
        waiting = np.zeros_like(seconds)
        for rank, late in enumerate(() if late_s is None else late_s):
            finals = finals_of(paths, rank)
            waiting[finals] = late / len(finals)
        waves = waves_of(self.structure, passes)
        at = spans_of(waves, seconds + waiting, *self._sends(paths, columns))
        at = Spans(at.begin, at.end - waiting)
        ends_s = self._ends_s(paths, at, columns)
        made = []
        for rank in range(schedule.ranks):
            held = self.held(paths, rank)
            rows = np.concatenate([np.array(chunk) for chunk in held])
            layers_s = self.forward_s[rows][:, columns], self.backward_s[rows][:, columns]
            sizes = [len(chunk) for chunk in held]
            made.append(passes_of(paths, at, rank, layers_s, sizes, ends_s[rank]))
        forward, backward, span = map(list, zip(*made, strict=True))
        busy = np.add.reduceat(seconds, schedule.begins[:-1], axis=0)
        return _Block(
            self, passes, turns, columns, layouts, forward, backward, np.array(span), busy
        )

    def _ends_s(self, paths: Paths, at: Spans, columns: Sequence[int]) -> Floats:
        """Return when each rank is done, (ranks, columns): the first and the last also sum the
        gradients of a table that they have in common."""
        ends_s = at.end[paths.schedule.begins[1:] - 1]
        if not any(self.works[column].whole.table for column in columns):
            return ends_s
        held = [self.held(paths, rank) for rank in range(paths.schedule.ranks)]
        for place, column in enumerate(columns):
            whole, (seats, _) = self.works[column].whole, self.seats[column]
            both = [rank for rank, layers in enumerate(held) if whole.ties(layers)]
            if both:
                ends = [seats[rank].position[:1] for rank in both]
                fabric = self.known.fabric_of(self.columns[column])
                summed_s = sum_of_tied_s(fabric, sum(whole.table), ends)
                ends_s[both, place] = ends_s[both, place].max() + summed_s
        return ends_s

    def _sends(self, paths: Paths, columns: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the time of each transfer alone on its links, and the latency in it, (transfers,
        columns)."""
        rank, stage, handing = paths.schedule.rank, paths.schedule.stage, paths.handing
        between = np.minimum(stage[handing.source], stage[handing.target])
        moved = self.moved[between][:, columns]
        rate_bytes_per_s, latency_s = np.empty_like(moved), np.empty_like(moved)
        links: dict[int, tuple[Floats, Floats]] = {}
        for place, column in enumerate(columns):
            seats, _ = self.seats[column]
            if id(seats) not in links:
                position = np.array([one.position[0] for one in seats])
                ends = position[rank[handing.source]], position[rank[handing.target]]
                links[id(seats)] = alone_between(self.known.fabric_of(self.columns[column]), *ends)
            rate_bytes_per_s[:, place], latency_s[:, place] = links[id(seats)]
        return moved / rate_bytes_per_s + latency_s, latency_s

    def device_numbers(self) -> Ids:
        """Return a number for what the quantities of a single device in place of each rank depend
        on, besides its times and its architecture, (columns, ranks)."""
        paths = self.paths(self.lines[0].first[0])
        rows = [np.concatenate([np.array(one) for one in self.held(paths, rank)])
                for rank in range(paths.schedule.ranks)]  # fmt: skip
        numbers = np.empty((len(self.columns), len(rows)), np.int64)
        columns = zip(self.columns, self.works, self.seats, strict=True)
        for column, (job, work, (_, seen)) in enumerate(columns):
            whole = work.workload
            common = (
                *(id(job.cluster), job.counted_as_one, job.workers, self.structure.order),
                *(self.structure.pipeline, job.context_workers),
                *updates_of(whole),
            )
            loads, experts = whole.data_loading_s > 0.0, replica_of(job).experts
            placed = [None] * len(rows) if experts is None else self.known.placed_of(job)
            for rank, row in enumerate(rows):
                loaded = loads and rank == 0
                copies = work.whole.copies(self.held(paths, rank))
                tensors = copies, work.tensors[row].tobytes(), experts, placed[rank]
                key = (*common, seen[rank], loaded, *tensors)
                numbers[column, rank] = self.known.number(key)
        return numbers

    def device(self, paths: Paths, column: int, layout: int, rank: int, turns: int = 1) -> Job:
        """Return a rank of a layout as a job with single devices, which sends in ``turns`` passes
        of an update."""
        held = self.held(paths, rank)
        stage = ReplicaStage(rank, self.structure, tuple(map(len, held)))
        (seats, _), job = self.seats[column], self.jobs[layout]
        of_experts, experts = None, replica_of(job).experts
        if experts is not None:
            placed = self.known.placed_of(job)[rank]
            of_experts = OfExperts(experts, placed, job.options.shares_update)
        work = self.known.part(self.works[column], held, stage, of_experts)
        return msgspec.structs.replace(
            job,
            workload=accumulated(work, turns),
            cluster=seats[rank].cluster,
            workers=job.workers * job.context_workers,
            options=job.options.among(job.context_workers),
            replica=None,
            given=None,
        )


class _Devices(NamedTuple):
    """The layouts of a block, and where the column of each is in it, (layouts,); the seconds of a
    step, and of computation in it, of each rank as a single device, (ranks, layouts)."""

    layouts: Ids
    places: Ids
    step_s: Floats
    compute_s: Floats


def _devices(blocks: Sequence[_Block], known: Known, formulas: Formulas) -> list[_Devices]:
    """Return what the formulas say of each rank of the layouts of blocks."""
    parts: dict[tuple[int, int, int], list[tuple[int, int, Ids]]] = defaultdict(list)
    results = []
    for number, block in enumerate(blocks):
        group = block.group
        places = np.repeat(np.arange(len(block.columns)), [len(one) for one in block.layouts])
        layouts = np.array([k for one in block.layouts for k in one])
        device = group.devices[np.array(block.columns)[places]].T  # (ranks, layouts)
        for of, kind, rank, members in _alike(device, group.kinds[layouts]):
            key = of, kind, block.turns
            if key not in known.quantities:
                place, layout = int(places[members[0]]), int(layouts[members[0]])
                paths = group.paths(block.passes)
                job = group.device(paths, block.columns[place], layout, rank, block.turns)
                known.quantities[key] = (job, known.quantities_of(of, job), _handed_s(job))
            parts[key].append((number, rank, members))
        shape = device.shape
        results.append(_Devices(layouts, places, np.empty(shape), np.empty(shape)))
    for key, several in parts.items():
        columns = [results[number].places[members] for number, _, members in several]
        forward_s, backward_s = (
            np.concatenate([getattr(blocks[number], name)[rank][:, at]
                            for (number, rank, _), at in zip(several, columns, strict=True)],
                           axis=1)
            for name in ("forward_s", "backward_s")
        )  # fmt: skip
        passes = np.repeat([blocks[number].passes for number, *_ in several], [*map(len, columns)])
        found = _phases(*known.quantities[key], forward_s, backward_s, passes, formulas)
        bounds = np.cumsum([0, *map(len, columns)])
        for (number, rank, members), first, stop in zip(
            several, bounds[:-1], bounds[1:], strict=True
        ):
            results[number].step_s[rank, members] = found[0][first:stop]
            results[number].compute_s[rank, members] = found[1][first:stop]
    return results


def _alike(device: Ids, kinds: Ids) -> Iterator[tuple[int, int, int, Ids]]:
    """Yield each pair of a device and a kind (``device`` (ranks, layouts), ``kinds`` (layouts,)), a
    rank that has it, and the layouts that have it there."""
    of, kind = (np.unique(values, return_inverse=True) for values in (device, kinds))
    ranks, layouts = device.shape
    pair = of[1].reshape(device.shape) * len(kind[0]) + kind[1].reshape(-1)
    key = (np.arange(ranks)[:, None] * (len(of[0]) * len(kind[0])) + pair).reshape(-1)
    order = np.argsort(key, kind="stable")
    firsts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for members in np.split(order, firsts[1:]):
        rank, layout = divmod(int(members[0]), layouts)
        one, other = divmod(int(pair[rank, layout]), len(kind[0]))
        yield int(of[0][one]), int(kind[0][other]), rank, members - rank * layouts


def _phases(
    job: Job,
    q: Quantities,
    handed_s: Floats,
    forward_s: Floats,
    backward_s: Floats,
    passes: Ids,
    formulas: Formulas,
) -> tuple[Floats, Floats]:
    """Return the seconds of a step of a single device with these times, and of computation in it,
    (cases,); ``passes`` (cases,) of a replica load a batch each."""
    q = timed(job, q, handed_s, forward_s, backward_s)
    if job.workload.data_loading_s > 0.0:
        q = msgspec.structs.replace(q, data_loading_s=q.data_loading_s * passes)
    found, shape = formulas(job, q), passes.shape
    return np.broadcast_to(found.iteration_s, shape), np.broadcast_to(found.compute_s, shape)


def _handed_s(job: Job) -> Floats:
    """Return how long the gradients of each layer are handed over for, (layers,)."""
    pairs = zip(job.device_work.layers, job.workload.layers, strict=True)
    return np.array([handed.backward_s - plain.backward_s for handed, plain in pairs])


def _values(
    wanted: Sequence[tuple[_Group, int, int, Sequence[int]]], formulas: Formulas
) -> list[dict[int, Value]]:
    """Return the values of some layouts of groups, each with a number of micro-batches, which are
    repeated so many times in an update."""
    if not wanted:
        return []
    known = wanted[0][0].known
    blocks = []
    for group, passes, turns, layouts in wanted:
        by_column: dict[int, list[int]] = defaultdict(list)
        for layout in layouts:
            by_column[group.column_of[layout]].append(layout)
        blocks.append(group.block(passes, list(by_column), list(by_column.values()), turns=turns))
    found = _devices(blocks, known, formulas)
    again, of_block = [], []
    for number, (block, devices) in enumerate(zip(blocks, found, strict=True)):
        group = block.group
        held = np.flatnonzero([_holds(group.jobs[k]) for k in devices.layouts])
        if len(held):
            late_s = (devices.step_s - devices.compute_s)[:, held]
            columns = [group.column_of[k] for k in devices.layouts[held]]
            several = [[k] for k in devices.layouts[held].tolist()]
            again.append(group.block(block.passes, columns, several, late_s))
            of_block.append(number)
    values = [_summary(block, one) for block, one in zip(blocks, found, strict=True)]
    later = _devices(again, known, formulas)
    for number, block, one in zip(of_block, again, later, strict=True):
        values[number] |= _summary(block, one)
    return values


def _holds(job: Job) -> bool:
    """Return whether backward passes return only once their gradients are exchanged."""
    replica = replica_of(job)
    return job.options.holds_backward and replica.asks_as_torch and replica.pipeline > 1


def _summary(block: _Block, devices: _Devices) -> dict[int, Value]:
    """Return the values of the layouts of a block: the slowest rank sets the pace."""
    rank, every = devices.step_s.argmax(axis=0), np.arange(len(devices.layouts))
    step_s = devices.step_s[rank, every]
    bubble_s = block.span_s[rank, devices.places] - block.busy_s.mean(axis=0)[devices.places]
    rows = zip(step_s.tolist(), (block.turns * bubble_s).tolist(), strict=True)
    return dict(zip(devices.layouts.tolist(), rows, strict=True))


def _evaluate(
    groups: Sequence[_Group], formulas: Formulas, results: list[Steps | InputError]
) -> None:
    """Write the steps of all layouts of groups with the same number of stages."""
    known: list[list[dict[int, Value]]] = [[{} for _ in group.jobs] for group in groups]

    def evaluate(numbers: Callable[[int, int], Iterable[int]]) -> None:
        wanted: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for g, group in enumerate(groups):
            for k, each in enumerate(group.sends_each):
                for m in numbers(g, k):
                    if m not in known[g][k]:
                        wanted[(g, 1, m) if each else (g, m, 1)].append(k)
        asked = [(groups[g], m, turns, layouts) for (g, m, turns), layouts in wanted.items()]
        for (g, m, turns), values in zip(wanted, _values(asked, formulas), strict=True):
            for k, value in values.items():
                known[g][k][m * turns] = value

    evaluate(lambda g, k: groups[g].lines[k].first)
    straight = [
        [on_line(line, known[g][k]) for k, line in enumerate(group.lines)]
        for g, group in enumerate(groups)
    ]
    evaluate(lambda g, k: () if straight[g][k] is not None else groups[g].passes[k].tolist())
    for g, group in enumerate(groups):
        for k, (number, passes) in enumerate(zip(group.members, group.passes, strict=True)):
            beyond = straight[g][k]
            few = passes if beyond is None else passes[: len(passes) - len(beyond)]
            table = np.array([known[g][k][m] for m in few.tolist()]).reshape(-1, 2)
            if beyond is not None:
                table = np.concatenate([table, beyond])
            results[number] = Steps(table[:, 0], table[:, 1])
