"""Formulas for packed sequences in replicas of several devices.

A micro-batch takes equally much longer or shorter on all stages. Formulas draw steps of a replica;
from all of them follow the mean times of its actions, and how much longer the slowest of several
replicas takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.inputs.job import Jitter, Job
from perfmodel.inputs.passes import one_pass
from perfmodel.phases.quantities import iteration_cv
from perfmodel.phases.variation import KIND, spread_of, varying_part
from perfmodel.predicting.replicas import StageJob
from perfmodel.theory.packing import relative_loads
from perfmodel.training.shared_links import RoundFlows
from perfmodel.training.spans import Paths, Spans, spans
from perfmodel.training.stages import varying_seconds

DRAWS, WORK = (256, 4096), 1 << 21
"""Least and most steps that are drawn, and about how many actions of all of them."""


class LaterActions(NamedTuple):
    """How much later actions begin and end on average because micro-batches differ, (actions,)
    each; and the coefficient of variation of the time of each rank, (ranks,)."""

    begin_s: Floats
    end_s: Floats
    cv: Floats

    def later(self, at: Spans) -> Spans:
        """Return when actions begin and end, that otherwise do as ``at`` says."""
        return Spans(at.begin + self.begin_s, at.end + self.end_s)


def drawn(
    job: Job, jobs: Sequence[StageJob], paths: Paths, seconds: Floats, flows: RoundFlows
) -> LaterActions:
    """Return what packed sequences change.

    Parameters
    ----------
    seconds : of each action if all micro-batches are alike, (actions,).
    """
    schedule, packing = paths.schedule, job.workload.packing
    if packing is None:
        raise ValueError("the sequences are not packed")
    varying = np.zeros(len(schedule))
    for one in jobs:
        table = varying_seconds(one.job)
        for rank in one.ranks.tolist():
            where = slice(int(schedule.begins[rank]), int(schedule.begins[rank + 1]))
            chunk = np.searchsorted(np.array(schedule.held(rank)), schedule.stage[where])
            varying[where] = table[schedule.kind[where], chunk]
    least, most = DRAWS
    count = int(min(max(WORK // len(schedule), least), most))
    loads = relative_loads(packing, one_pass(job.workload).batch_size)
    generator = np.random.Generator(np.random.Philox(len(schedule)))
    batches = int(schedule.micro_batch.max()) + 1
    more = loads[generator.integers(len(loads), size=(batches, count))]
    more -= more.mean(axis=1, keepdims=True)
    took = seconds[:, None] + varying[:, None] * more[schedule.micro_batch]
    sent = flows.alone_s()
    wide = [np.repeat(one[:, None], count, axis=1) for one in (sent, flows.latency_s)]
    several, alike = spans(paths, took, *wide), spans(paths, seconds, sent, flows.latency_s)
    begins = schedule.begins
    of_ranks = several.end[begins[1:] - 1] - several.begin[begins[:-1]]
    workers = 1 if job.options.asynchronous else job.workers
    among = jobs[0].job.workers  # devices that divide sequences, or have copies of stages, count
    cv = [spread_of(np.sort(row) / row.mean(), workers, among) for row in of_ranks]
    return LaterActions(
        several.begin.mean(axis=1) - alike.begin,
        several.end.mean(axis=1) - alike.end,
        np.array(cv),
    )


def with_jitter(face: Job, job: Job, cv: float) -> Job:
    """Return a stage of a job as a device whose time varies as those of its replicas do."""
    alike = msgspec.structs.replace(job.workload, packing=None)
    others = float(iteration_cv(msgspec.structs.replace(job, workload=alike)))
    rest = others * (1.0 - varying_part(job.workload))
    kind = KIND if job.jitter is None else job.jitter.kind
    work = msgspec.structs.replace(face.workload, packing=None)
    spread = Jitter((rest**2 + cv**2) ** 0.5, kind)
    return msgspec.structs.replace(face, workload=work, jitter=spread)
