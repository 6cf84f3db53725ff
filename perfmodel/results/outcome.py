"""The outcome of the fine or the coarse route, before the facts of the job are added."""

from __future__ import annotations

import msgspec

from perfmodel.results.prediction import (
    Bottleneck,
    ClockGap,
    ErrorBand,
    Idle,
    Staleness,
    Utilisation,
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a simulation, or of the formulas, for a job.

    ``iterations_per_s`` is the rate of all workers together. ``run_spread`` and
    ``staleness_spread`` are the standard deviations of the logarithms of throughput and of mean
    staleness between runs of ``run_iterations`` iterations. ``notes`` say how the route was chosen.
    ``causes_by_worker`` has the idle fraction of each worker by cause; each adds up to
    ``idle_fraction.per_worker``. The other fields are as in
    :class:`perfmodel.results.prediction.Prediction`.
    """

    fidelity: str
    workers: int
    iterations_per_s: float
    compute_s: float
    exposed_communication_s: float
    idle_fraction: Idle
    causes_by_worker: tuple[dict[str, float], ...]
    staleness: Staleness | None
    updates_per_s: float
    utilisation: Utilisation
    bottleneck: Bottleneck
    error_band: ErrorBand | None = None
    throughput_ci_fraction: float = 0.0
    run_iterations: int | None = None
    run_spread: float = 0.0
    staleness_spread: float = 0.0
    iterations: int | None = None
    transient_iterations: int = 0
    clock_gap: ClockGap | None = None
    phases_s: dict[str, float] = {}
    operation_s: dict[str, float] = {}
    notes: tuple[str, ...] = ()

    @property
    def iteration_s(self) -> float:
        """Mean iteration time."""
        return self.workers / self.iterations_per_s
