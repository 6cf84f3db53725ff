"""How long the candidates of a plan last: what failures make of the time that training takes.

All candidates get the expected time, by formulas over arrays. Those predicted one by one get its
distribution, over failures and over the uncertainty of their step.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.job import Job
from perfmodel.planning.space import Space
from perfmodel.predicting import elastic, long_runs
from perfmodel.predicting.long_runs import Machines
from perfmodel.results.prediction import Prediction
from perfmodel.results.training import LongRun


class Lasting:
    """The times of candidates with failures, or without any."""

    def __init__(self, failures: Failures | None, among: Space) -> None:
        self.failures = failures
        self.runs: dict[int, LongRun] = {}  # of predicted candidates
        self.work_s: dict[int, float] = {}
        self.machines_of: dict[int, Machines] = {}
        self.refused: list[str] = []  # why each series cannot go on with fewer nodes
        if failures is not None:
            self.of = among.of
            self.node_usd_per_h: Floats = among.nodes * np.array(
                [series.price_usd_per_h for series in among.series])[among.of]  # fmt: skip
            if failures.elastic:
                self.refused = [elastic.refusal(series.job, failures) for series in among.series]
            sizes = np.array([long_runs.checkpoint_bytes(series.job) for series in among.series])
            self.machines = Machines(
                among.devices.astype(float), among.nodes.astype(float), sizes[among.of]
            )

    def expected_s(self, work_s: Floats) -> Floats:
        """Expected times of all candidates, (candidates,); infinite where a run never ends.

        Raises
        ------
        InputError : no run ends.
        """
        if self.failures is None:
            return work_s
        mean_s: Floats = np.asarray(self.machines.run_time(work_s, self.failures)[1].mean_s)
        if self.refused and all(self.refused):
            raise InputError(f"plan: no candidate is possible: {self.refused[0]}")
        if self.refused:
            mean_s = np.where(
                np.array([bool(why) for why in self.refused])[self.of], np.inf, mean_s
            )
        if not np.isfinite(mean_s).any():
            raise InputError(
                "plan: failures come faster than any candidate recovers from them: no run ends"
            )
        return mean_s

    def absent_usd_per_h(self) -> Floats | float:
        """Price of the nodes that are not there on average, of each candidate; 0 unless runs are
        elastic."""
        if self.failures is None or not self.failures.elastic:
            return 0.0
        return (1.0 - elastic.present_fraction(self.failures)) * self.node_usd_per_h

    def predicted_absent_usd_per_h(self, i: int) -> float:
        """The same of a predicted candidate."""
        if i not in self.runs:
            return 0.0
        return (1.0 - self.runs[i].present_fraction) * float(self.node_usd_per_h[i])

    def predicted_s(self, i: int, job: Job, work_s: float, p: Prediction) -> float:
        """Expected time of a predicted candidate, whose run is kept."""
        if self.failures is None:
            return work_s
        try:
            run = long_runs.long_run(job, work_s, p.iteration_s, p.interval, self.failures)
        except InputError:  # it never ends, or cannot go on with fewer nodes
            return math.inf
        self.runs[i], self.work_s[i] = run, work_s
        self.machines_of[i] = Machines.of(job)
        return run.expected_s

    def within(self, i: int, limit_s: float, p: Prediction) -> float | None:
        """Probability that a predicted candidate takes at most a time; None without failures."""
        if self.failures is None:
            return None
        if i not in self.runs:
            return 0.0
        machines = self.machines_of[i]
        return long_runs.probability_within(
            limit_s, self.work_s[i], p.iteration_s, p.interval, machines, self.failures
        )

    def room(self, i: int, confidence: float, p: Prediction) -> float | None:
        """Time that a predicted candidate keeps with a probability, as a multiple of the expected
        one; None without failures."""
        if self.failures is None or i not in self.runs:
            return None
        machines = self.machines_of[i]
        times_s = long_runs.mixed_s(
            self.work_s[i], p.iteration_s, p.interval, machines, self.failures
        )
        return float(np.quantile(times_s, confidence)) / self.runs[i].expected_s
