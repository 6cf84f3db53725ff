"""How a job is predicted: the arguments of :func:`perfmodel.predict`."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, TypedDict

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.ranges import COUNT, Range, Ranged, or_none
from perfmodel.inputs.failures import Failures
from perfmodel.predicting.budget import MOST_OPS
from perfmodel.results.prediction import Progress

REL_CI = 0.01
"""Target half-width of the 95 % confidence interval of a simulated random job, as a fraction."""

MOST_ITERATIONS = 1_000_000
"""Maximum number of first iterations of a run that may be simulated."""

MOST_SAMPLES = 10**15
"""Maximum number of samples of an epoch."""

TOLERANCE = 0.05
"""Largest 90th-percentile error of a coarse iteration time that *auto* accepts, as a fraction."""

MOST_MAX_OPS = 1e15
"""Largest finite ``max_ops``: what one core simulates in thirty years."""

Fidelity = Literal["fine", "coarse", "auto"]
FIDELITIES = ("fine", "coarse", "auto")


class PredictArguments(TypedDict, total=False):
    """The fields of :class:`PredictOptions` as keyword arguments."""

    fidelity: Fidelity
    tolerance: float
    dataset_size: int | None
    epochs: int | None
    failures: Failures | None
    rel_ci: float
    iterations: int | None
    run_iterations: int | None
    max_ops: float
    progress: Progress | None


class PredictOptions(Ranged, frozen=True, kw_only=True):
    """How a job is predicted.

    Attributes
    ----------
    fidelity : *fine* simulates the job; *coarse* evaluates its formulas, in microseconds to
        milliseconds; *auto* is coarse if 9 in 10 such jobs are within ``tolerance`` of the
        simulation, and fine otherwise.
    tolerance : largest error that *auto* accepts, as a fraction of the iteration time.
    dataset_size, epochs : samples per epoch and number of epochs, to predict the training time.
    failures : failures and checkpoints of the training; needs ``dataset_size``.
    rel_ci : target half-width of the confidence interval of a simulated random job, as a fraction
        of its throughput.
    iterations : predict the first ``iterations`` iterations of a run, with their initial transient,
        instead of the steady state; the run ends when each worker has finished them. Needs *fine*.
    run_iterations : length of the measured run that the prediction interval is for: chance makes
        short runs of a random job faster or slower. Defaults to ``iterations`` if given, else to a
        run long enough that chance averages out. Coarse predictions ignore it.
    max_ops : largest number of operations to simulate; beyond it *fine* raises an error and *auto*
        falls back to coarse; inf for no limit.
    progress : called with (done, expected) during the simulation.

    Raises
    ------
    InputError : ``fidelity`` is unknown; ``tolerance`` or ``rel_ci`` is not in (0, 1]; ``epochs``
        or ``failures`` are given without ``dataset_size``, or a number is below 1; ``iterations``
        is not in 1 to MOST_ITERATIONS, or is given with ``dataset_size`` or a fidelity other than
        *fine*;
        ``run_iterations`` is not in that range, or is given with ``iterations``.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("tolerance", "rel_ci"), Range(above=0.0, at_most=1.0)),
        "max_ops": Range(1.0, MOST_MAX_OPS, besides=(math.inf,)),
        "dataset_size": or_none(COUNT._replace(at_most=MOST_SAMPLES)),
        "epochs": or_none(COUNT),
        **dict.fromkeys(
            ("iterations", "run_iterations"), or_none(COUNT._replace(at_most=MOST_ITERATIONS))
        ),
    }

    fidelity: Fidelity = "fine"
    tolerance: float = TOLERANCE
    dataset_size: int | None = None
    epochs: int | None = None
    failures: Failures | None = None
    rel_ci: float = REL_CI
    iterations: int | None = None
    run_iterations: int | None = None
    max_ops: float = MOST_OPS
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.fidelity not in FIDELITIES:
            raise unknown_name("fidelity", self.fidelity, FIDELITIES)
        if self.epochs is not None and self.dataset_size is None:
            raise InputError("epochs: needs dataset_size too")
        if self.failures is not None and self.dataset_size is None:
            raise InputError("failures: need dataset_size too: they lengthen a whole training")
        super().__post_init__()
        if self.iterations is None:
            return
        if self.fidelity != "fine":
            raise InputError(
                f"iterations: needs fidelity fine, which simulates; got {self.fidelity}"
            )
        if self.dataset_size is not None:
            raise InputError("iterations: dataset_size needs the steady state; give one of them")
        if self.run_iterations is not None:
            raise InputError("run_iterations: cannot be combined with iterations; give one of them")
