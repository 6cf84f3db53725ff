"""What either route finds out about a job, before anything is said of the job itself."""

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
    """What a simulation, or the formulas, say of a job.

    ``iterations_per_s`` counts those of all workers together; ``notes`` say how the route was
    chosen. Everything else is as in :class:`perfmodel.results.prediction.Prediction`.
    """

    fidelity: str
    workers: int
    iterations_per_s: float
    compute_s: float
    exposed_communication_s: float
    idle_fraction: Idle
    staleness: Staleness | None
    updates_per_s: float
    utilisation: Utilisation
    bottleneck: Bottleneck
    error_band: ErrorBand | None = None
    throughput_ci_fraction: float = 0.0
    iterations: int | None = None
    transient_iterations: int = 0
    clock_gap: ClockGap | None = None
    phases_s: dict[str, float] = {}
    operation_s: dict[str, float] = {}
    notes: tuple[str, ...] = ()

    @property
    def iteration_s(self) -> float:
        """Mean time of an iteration."""
        return self.workers / self.iterations_per_s
