"""A prediction as a typed result, with export to JSON, data frame, figure, page or trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption, Provenance
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.base.units import islands_text
from perfmodel.reporting.drawn import Paged
from perfmodel.results.layout import Count, Layout
from perfmodel.results.memory import Memory
from perfmodel.results.training import Training

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.reporting.contents import Figure, Page
    from perfmodel.results.effects import Effect
    from perfmodel.results.schedule import Schedule
    from perfmodel.results.timeline import Timeline


class ModelAge(msgspec.Struct, frozen=True):
    """Local steps since the last exchange of a worker's model.

    ``exchange_every`` is the mean number of steps between exchanges; ``mean`` and ``p90`` describe
    the age at the start of a step.
    """

    exchange_every: float
    mean: float
    p90: int


SCHEMA = "perfmodel.prediction/1"

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
"""Checked in a prediction that is read back from JSON."""


class Idle(msgspec.Struct, frozen=True):
    """Fraction of the time that devices do not compute: 1 - compute time / elapsed time.

    ``by_cause`` splits ``mean`` by the event that ended the wait: ``network``, ``server``,
    ``straggler`` (another worker), ``staleness_bound``, ``data``, ``cpu``, ``pipeline`` (another
    stage), ``expert_imbalance`` (the device whose experts have most tokens), ``unequal_sequences``
    (the worker whose sequences have the longest documents). ``by_stage`` is the mean of each stage,
    in simulations of pipelines.
    """

    mean: float
    per_worker: tuple[float, ...]
    by_cause: dict[str, float]
    by_stage: tuple[float, ...] = ()


class Staleness(msgspec.Struct, frozen=True):
    """Version staleness: updates of a parameter between a worker's read and its own update.

    ``histogram`` maps staleness values, as text, to their share of all applied updates;
    ``by_stage`` is the mean of each stage of pipelines without a flush."""

    mean: float
    p50: int
    p90: int
    max: int
    per_worker: tuple[float, ...]
    histogram: dict[str, float]
    by_stage: tuple[float, ...] = ()


class ClockGap(msgspec.Struct, frozen=True):
    """Iterations by which the fastest worker is ahead of the slowest: mean over time, and maximum.

    Without a bound (asynchronous workers of different speeds) both grow with the simulated time.
    """

    mean: float
    max: int


class CriticalStep(msgspec.Struct, frozen=True):
    """Consecutive operations of one kind on one resource of the critical cycle.

    ``first`` to ``last`` are ``count`` operations that take ``seconds`` in total. ``waited`` is
    True if the first started when the resource became free, not when its last input arrived.
    """

    operation: str
    resource: str
    first: str
    last: str
    count: int
    seconds: float
    waited: bool


class Bottleneck(msgspec.Struct, frozen=True):
    """The bottleneck: ``share`` is its share of the critical path of operations.

    ``shares`` holds the shares of all kinds of resources. ``cycle`` is the chain itself if it
    repeats exactly (a deterministic job): its steps add up to a whole number of periods.
    """

    resource: str
    share: float
    text: str
    shares: dict[str, float]
    cycle: tuple[CriticalStep, ...]


class Utilisation(msgspec.Struct, frozen=True):
    """Utilisation of time, bandwidth or cores, by resource name.

    ``cores`` holds the CPUs of each node on which workers, and possibly servers, compute. It is
    empty if workers compute on accelerators, and in a coarse prediction.
    """

    workers: dict[str, float]
    servers: dict[str, float]
    links: dict[str, float]
    cores: dict[str, float] = {}


class ErrorBand(msgspec.Struct, frozen=True):
    """Error of a coarse prediction relative to the simulation, as fractions of the iteration time.

    ``median`` and ``p90`` are quantiles of the absolute error over jobs of the same class
    (:mod:`perfmodel.predicting.bands`). They are None if the coarse model leaves out a feature of
    the job, or if no such jobs were compared; 0 if the coarse model is exact.
    """

    median: float | None
    p90: float | None
    text: str


class Interval(msgspec.Struct, frozen=True):
    """Interval that contains the value of a measured run with probability ``coverage``.

    The run has ``iterations`` iterations; None if it is so long that random variation averages out.
    ``iteration_s``, ``throughput_samples_per_s``, ``idle_fraction`` (mean of the workers) and
    ``staleness`` (mean; None if there is no staleness) are (lower, upper) bounds. ``parts`` are the
    contributions to the width of ``iteration_s`` (standard deviations of the logarithm); ``text``
    describes them in words.
    """

    coverage: float
    iteration_s: tuple[float, float]
    throughput_samples_per_s: tuple[float, float]
    idle_fraction: tuple[float, float]
    staleness: tuple[float, float] | None
    parts: Uncertainty
    text: str
    iterations: int | None = None


class PredictionUncertainty(msgspec.Struct, frozen=True):
    """How uncertain a prediction is.

    Attributes
    ----------
    interval : of a measured run; None if unknown.
    error_band : of formulas against the simulation; None for a simulation.
    ci_fraction : of the simulation of a random job: half-width of the 95 % confidence interval of
        the throughput, as a fraction.
    """

    interval: Interval | None
    error_band: ErrorBand | None
    ci_fraction: float


Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""


class FurtherResults(Protocol):
    """The job of a prediction, for further results on request."""

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effect of each of its assumptions on the throughput, the largest first."""

    def timeline(self) -> Timeline:
        """Two steady-state iterations."""

    def schedule(
        self, updates: int | None, samples_per_s: float, progress: Progress | None = None
    ) -> Schedule:
        """The schedule of ``updates`` updates; ``samples_per_s`` is recorded in its header."""


class Prediction(Paged, frozen=True, kw_only=True):
    """A prediction; its field names, except ``predicted_job``, are its JSON keys.

    Attributes
    ----------
    fidelity : *fine* for a simulation, *coarse* for formulas.
    error_band : error of a coarse prediction; None for a fine one.
    island_devices : number of devices in each worker, if workers are groups of devices;
        ``batch_size`` is then that of the first, and idleness and memory are per device.
    layout : how the devices of a worker divide the model; None for single devices. Idleness is then
        the mean of a worker's devices.
    nodes : number of nodes that the workers are on, without nodes that only hold servers.
    devices_per_node : devices of the job on each of them; None if these numbers differ.
    throughput_samples_per_s : samples per second of all workers together.
    interval : 90 % interval of a measured run, see :mod:`perfmodel.predicting.intervals`.
    throughput_ci_fraction : half-width of the 95 % confidence interval of the simulation, as a
        fraction of the throughput (0 for a deterministic job).
    iterations : number of iterations from the start of training; None for the steady state.
    sequence_length : tokens per sample; None if unknown.
    transient_iterations : iterations until the leads between coupled workers are stationary, in a
        fine prediction of the steady state.
    iteration_s : workers / sum of the workers' iterations per second.
    compute_s : mean time that a device computes per iteration.
    exposed_communication_s : time per iteration that a device waits for the network or a server.
    phases_s : duration of each phase of an iteration (coarse only; else empty).
    operation_s : mean duration, including queueing, of push (until applied), update, pull, ...
        (fine only; else empty).
    clock_gap : None in a coarse prediction.
    model_age : local steps since a worker's last exchange, for architectures that exchange models.
    updates_per_s : updates of the model per second.
    quality : *measured* if every compute time was measured, else *estimated*.
    predicted_job : makes the timeline, the schedule and the effects of assumptions on request; None
        in a prediction read from JSON.
    """

    schema: str = SCHEMA
    model: str
    device: str
    quality: str
    architecture: str
    workers: Count
    batch_size: Count
    global_batch_size: Count
    island_devices: tuple[int, ...] = ()
    layout: Layout | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    sequence_length: int | None = None
    fidelity: str
    error_band: ErrorBand | None
    throughput_samples_per_s: Positive
    interval: Interval | None = None
    throughput_ci_fraction: float
    iterations: int | None = None
    transient_iterations: int = 0
    iteration_s: Positive
    compute_s: float
    exposed_communication_s: float
    idle_fraction: Idle
    staleness: Staleness | None
    model_age: ModelAge | None
    clock_gap: ClockGap | None
    phases_s: dict[str, float]
    operation_s: dict[str, float]
    updates_per_s: float
    utilisation: Utilisation
    memory: Memory
    bottleneck: Bottleneck
    training: Training | None
    notes: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    provenance: Provenance
    predicted_job: FurtherResults | None = None

    def __repr__(self) -> str:
        return (
            f"Prediction({self.title}: "
            f"{self.throughput_samples_per_s:.4g} samples/s, {self.iteration_s:.4g} s/iteration, "
            f"idle {self.idle_fraction.mean:.1%})"
        )

    def to_dict(self) -> dict[str, object]:
        """The prediction as JSON-like values."""
        return {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name != "predicted_job"
        }

    def to_json(self) -> str:
        """The prediction as JSON text."""
        import json  # text output does not need it

        return json.dumps(self.to_dict(), indent=2)

    def to_frame(self) -> pd.DataFrame:
        """A data frame with one row per worker: idle fraction and staleness.

        ``attrs`` holds the iteration time and the throughput of the job.
        """
        import pandas as pd

        rows: dict[str, object] = {
            "worker": range(self.workers),
            "idle_fraction": self.idle_fraction.per_worker,
        }
        if self.staleness is not None:
            rows["staleness"] = self.staleness.per_worker
        frame = pd.DataFrame(rows)
        frame.attrs = {
            "iteration_s": self.iteration_s,
            "throughput_samples_per_s": self.throughput_samples_per_s,
        }
        return frame

    def figure(self) -> Figure:
        """Time by cause, and a timeline of two iterations.

        A coarse prediction, and one read from JSON, has no timeline.

        Raises
        ------
        TooLargeError : see :meth:`timeline`.
        """
        from perfmodel.reporting.contents import Figure
        from perfmodel.results import sections, timeline_figure

        time = sections.time_panel(self)
        if self.predicted_job is None or self.fidelity == "coarse":
            return Figure([[time]], self.headline)
        rows = timeline_figure.panel(self.timeline(), sections.MOST_ROWS)
        return Figure([[time], [rows]], self.headline)

    def page(self) -> Page:
        """The contents of the page of the prediction alone.

        :func:`perfmodel.report` makes one with further predictions around it: the effect of each
        assumption, how the job scales, and what would make it faster.
        """
        from perfmodel.reporting.contents import Page
        from perfmodel.results import sections

        parts = (*sections.sections(self), sections.reproduce(self))
        return Page(title=self.title, answer=sections.answer(self), sections=parts)

    @property
    def uncertainty(self) -> PredictionUncertainty:
        """The interval of a measured run, and the uncertainty of the route as part of it."""
        return PredictionUncertainty(self.interval, self.error_band, self.throughput_ci_fraction)

    @property
    def counted(self) -> str:
        """The number of workers; of replicas also the devices of each, ``2 x 8``; the islands."""
        if self.island_devices:
            return islands_text(self.island_devices)
        return f"{self.workers}" + (f" x {self.layout.devices}" if self.layout is not None else "")

    @property
    def title(self) -> str:
        """The job in one line."""
        return f"{self.model} on {self.counted} x {self.device}, {self.architecture}"

    @property
    def headline(self) -> str:
        """The job and its throughput, in one line."""
        rate = self.throughput_samples_per_s
        shown = f"{rate:.4g}" if rate < 1e4 else f"{rate:.0f}"
        return f"{self.title}: {shown} samples/s"

    def timeline(self) -> Timeline:
        """Two steady-state iterations: what each worker, server and link does.

        It is made on request, by simulating the job again.

        Raises
        ------
        InputError : the prediction is coarse or was read from JSON.
        TooLargeError : the simulation takes more operations than the prediction's ``max_ops``.
        """
        return self._simulated("trace").timeline()

    def to_chrome_trace(self) -> dict[str, object]:
        """Two steady-state iterations as a Chrome trace; open the JSON in Perfetto.

        There is a process per node and a thread per resource; times are simulated microseconds.
        Arrows lead from an operation to the one that waited for it; counters show link utilisation,
        queues and staleness. ``otherData`` says which iterations are shown. The trace is made on
        request, by simulating the job again.

        Raises
        ------
        InputError : the prediction is coarse or was read from JSON.
        """
        from perfmodel.results.chrome_trace import chrome_trace

        return chrome_trace(self.timeline())

    def schedule(self, updates: int | None = None, *, progress: Progress | None = None) -> Schedule:
        """Record which gradient is computed on which model, and when it is applied, from the start
        of training until ``updates`` gradients have been applied.

        The default is 1000 gradients per worker, at most 100 000. The job is simulated again;
        ``progress`` is called with (done, all) gradients.

        Raises
        ------
        InputError : the prediction is coarse or was read from JSON, or ``updates`` is not a
            positive whole number.
        TooLargeError : the simulation takes more operations than the prediction's ``max_ops``.
        """
        job = self._simulated("schedule")
        return job.schedule(updates, self.throughput_samples_per_s, progress)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What other values of each assumption would do to the throughput, by formulas, the largest
        effect first.

        They are computed on request, once.

        Raises
        ------
        InputError : the prediction was read from JSON.
        """
        return self._job("effects").effects

    @property
    def assumptions_that_matter(self) -> tuple[Effect, ...]:
        """Those of the :attr:`effects` that change the throughput by more than 2 %, and assumptions
        that stand for many values, such as the device.

        Raises
        ------
        InputError : the prediction was read from JSON.
        """
        from perfmodel.results.effects import that_matter

        return tuple(that_matter(self.effects))

    def _simulated(self, request: str) -> FurtherResults:
        """The job, to be simulated again.

        Raises
        ------
        InputError : the prediction is coarse, or was read from JSON.
        """
        if self.fidelity == "coarse":
            raise InputError(f"{request}: a coarse prediction has no timeline; needs fidelity fine")
        return self._job(request)

    def _job(self, request: str) -> FurtherResults:
        if self.predicted_job is None:
            raise InputError(f"{request}: a prediction read from JSON has no job; predict it again")
        return self.predicted_job


def percentile(histogram: Mapping[int, int], fraction: float) -> int:
    """Smallest value that is not exceeded by at least ``fraction`` of the counts.

    >>> percentile({0: 5, 3: 4, 7: 1}, 0.9)
    3
    """
    total = sum(histogram.values())
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen >= fraction * total:
            return value
    return max(histogram)
