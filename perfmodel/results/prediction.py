"""A prediction, as a typed result, a table, JSON, a frame or a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption, Provenance
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.results.drawn import Drawn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.results.schedule import Schedule


class ModelAge(msgspec.Struct, frozen=True):
    """Local steps since the last exchange of a worker's model.

    ``exchange_every`` is the mean number of steps between exchanges; ``mean`` and ``p90`` are of
    the age at the start of a step.
    """

    exchange_every: float
    mean: float
    p90: int


SCHEMA = "perfmodel.prediction/1"


class Idle(msgspec.Struct, frozen=True):
    """Fraction of the time in which devices do not compute: 1 - compute time / elapsed time.

    ``by_cause`` splits ``mean`` by what ended the wait: ``network``, ``server``, ``straggler``
    (another worker), ``staleness_bound``, ``data``, ``cpu``.
    """

    mean: float
    per_worker: tuple[float, ...]
    by_cause: dict[str, float]


class Staleness(msgspec.Struct, frozen=True):
    """Version staleness: updates of a parameter between a worker's read and its own update.

    ``histogram`` gives shares of all applied updates; keys are staleness values as text.
    """

    mean: float
    p50: int
    p90: int
    max: int
    per_worker: tuple[float, ...]
    histogram: dict[str, float]


class ClockGap(msgspec.Struct, frozen=True):
    """Iterations by which the fastest worker is ahead of the slowest: mean over time, maximum.

    Where nothing bounds it (asynchronous workers of different speed) it grows with the length of
    the run, here that of the simulation.
    """

    mean: float
    max: int


class CriticalStep(msgspec.Struct, frozen=True):
    """Operations of one kind that follow each other on one resource of the critical cycle.

    ``first`` to ``last`` are ``count`` operations that take ``seconds`` together; ``waited`` says
    that the first of them started when the resource became free, not when its last input came.
    """

    operation: str
    resource: str
    first: str
    last: str
    count: int
    seconds: float
    waited: bool


class Bottleneck(msgspec.Struct, frozen=True):
    """The bottleneck: ``share`` is its share of the critical chain of operations.

    ``shares`` are those of all kinds of resources. ``cycle`` is the chain itself where it
    repeats itself exactly (a deterministic job): its steps add up to a whole number of periods.
    """

    resource: str
    share: float
    text: str
    shares: dict[str, float]
    cycle: tuple[CriticalStep, ...]


class Utilisation(msgspec.Struct, frozen=True):
    """Utilisation of time, bandwidth or cores, by name of the resource.

    ``cores`` has the processors of each node that workers compute on, together with its servers;
    it is empty where workers compute on accelerators, and in a coarse prediction.
    """

    workers: dict[str, float]
    servers: dict[str, float]
    links: dict[str, float]
    cores: dict[str, float] = {}


class Memory(msgspec.Struct, frozen=True):
    """Memory need in bytes of one worker and of the fullest server (None without servers).

    ``device_bytes`` is what the device has, where known.
    """

    worker_bytes: float
    server_bytes: float | None
    device_bytes: float | None


class Training(msgspec.Struct, frozen=True):
    """Seconds of one pass over ``dataset_size`` samples, and of ``epochs`` passes."""

    dataset_size: int
    epochs: int
    iterations_per_epoch: int
    epoch_s: float
    training_s: float


class ErrorBand(msgspec.Struct, frozen=True):
    """Error of a coarse prediction against the simulation, as fractions of the iteration.

    ``median`` and ``p90`` are of the absolute error, over jobs of the same class
    (:mod:`perfmodel.predicting.bands`); None where the coarse model leaves out a feature of the
    job, or where no such jobs were measured. 0 where it is exact.
    """

    median: float | None
    p90: float | None
    text: str


class Interval(msgspec.Struct, frozen=True):
    """Prediction interval of a measured run, with probability ``coverage``.

    The run has ``iterations`` iterations; None if so many that their chance does not count.
    ``iteration_s``, ``throughput_samples_per_s``, ``idle_fraction`` (mean of the workers) and
    ``staleness`` (mean; None without) are the lower and the upper end, ``parts`` the contributions
    to the width of the first (standard deviations of the logarithm), ``text`` the same in words.
    """

    coverage: float
    iteration_s: tuple[float, float]
    throughput_samples_per_s: tuple[float, float]
    idle_fraction: tuple[float, float]
    staleness: tuple[float, float] | None
    parts: Uncertainty
    text: str
    iterations: int | None = None


@runtime_checkable
class Timeline(Protocol):
    """The job, simulated again on request."""

    def chrome_trace(self) -> dict[str, Any]:
        """Two iterations of the steady state as a Chrome trace, times in microseconds."""

    def schedule(self, updates: int | None, samples_per_s: float) -> Schedule:
        """The schedule of so many updates; the throughput is noted in it."""


class Prediction(Drawn, frozen=True, kw_only=True):
    """A prediction; its field names are the keys of its JSON, but for ``timeline``.

    Attributes
    ----------
    fidelity : *fine* for a simulation, *coarse* for formulas.
    error_band : of a coarse prediction; None for a fine one.
    island_devices : devices of each worker, where workers are groups of devices; ``batch_size`` is
        that of the first, and idleness and memory are those of devices.
    throughput_samples_per_s : samples that all workers process per second.
    interval : of a measured run in 9 of 10 cases, see :mod:`perfmodel.predicting.intervals`.
    throughput_ci_fraction : half-width of the 95 % confidence interval of the simulation, as a
        fraction of the throughput (0 for a deterministic job).
    iterations : number of iterations from the start of training; None for the long run.
    sequence_length : tokens of a sample, None where not known.
    transient_iterations : iterations until the leads between workers that are coupled are
        stationary, in a fine prediction of the long run.
    iteration_s : workers / sum of the workers' iterations per second.
    compute_s : mean time a device computes per iteration.
    exposed_communication_s : time per iteration that a device waits for the network or a server.
    phases_s : phases of an iteration (coarse; else empty).
    operation_s : mean duration, queueing included, of push (until applied), update, pull, ...
        (fine; else empty).
    clock_gap : None in a coarse prediction.
    model_age : local steps since a worker's last exchange, for architectures that exchange models.
    updates_per_s : updates of the model per second.
    quality : *measured* if every compute time was measured, else *estimated*.
    timeline : simulates the job again to show it; None in a coarse prediction, or one that was read
        from JSON.
    """

    schema: str = SCHEMA
    model: str
    device: str
    quality: str
    architecture: str
    workers: int
    batch_size: int
    global_batch_size: int
    island_devices: tuple[int, ...] = ()
    sequence_length: int | None = None
    fidelity: str
    error_band: ErrorBand | None
    throughput_samples_per_s: float
    interval: Interval | None = None
    throughput_ci_fraction: float
    iterations: int | None = None
    transient_iterations: int = 0
    iteration_s: float
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
    timeline: Timeline | None = None

    def __repr__(self) -> str:
        return (
            f"Prediction({self.model} on {self.workers} x {self.device}, {self.architecture}: "
            f"{self.throughput_samples_per_s:.4g} samples/s, {self.iteration_s:.4g} s/iteration, "
            f"idle {self.idle_fraction.mean:.1%})"
        )

    def to_dict(self) -> dict[str, Any]:
        """The prediction as JSON-like values."""
        return {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name != "timeline"
        }

    def to_json(self) -> str:
        """The prediction as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_frame(self) -> pd.DataFrame:
        """One row per worker: idle fraction and staleness; the job's rates are in ``attrs``."""
        import pandas as pd

        rows: dict[str, Any] = {
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

    def plot(self) -> Figure:
        """A matplotlib figure: time by cause, and a timeline of two iterations (extra ``plot``).

        A coarse prediction has no timeline.

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        from perfmodel.results.drawing import figure, headline, stacks

        if self.fidelity == "coarse":
            causes = {"compute": 1.0 - self.idle_fraction.mean, **self.idle_fraction.by_cause}
            parts = {cause: part * self.iteration_s for cause, part in causes.items()}
            ends = None if self.interval is None else self.interval.iteration_s
            what = "mean iteration of a worker"
            return stacks([""], [parts], what, [ends], headline(self.to_dict()))
        return figure(self.to_dict(), self.to_chrome_trace())

    def report(self, path: str | Path | None = None) -> str:
        """A page of HTML that needs no network, also written to ``path`` (extra ``report``).

        :func:`perfmodel.report` adds what takes further predictions: what assumptions are worth,
        how the job scales, and what would make it faster.

        Raises
        ------
        InputError : Bokeh is not installed; the place cannot be written.
        """
        from perfmodel.reporting import page
        from perfmodel.reporting.contents import Page
        from perfmodel.results import sections

        page.check()
        parts = (*sections.sections(self), sections.reproduce(self))
        top = sections.answer(self)
        return page.html(Page(title=sections.title(self), answer=top, sections=parts), path)

    def to_chrome_trace(self) -> dict[str, Any]:
        """Two iterations of the steady state as a Chrome trace: open the JSON in Perfetto.

        A process per node, a thread per resource; times in microseconds of simulated time. Arrows
        lead from an operation to the one that waited for it; counters show the use of links,
        queues and staleness. ``otherData`` says which iterations they are. The job is simulated
        again for it, so it costs nothing unless asked for.

        Raises
        ------
        InputError : the prediction is coarse, or was read back from JSON.
        """
        return self._job("trace").chrome_trace()

    def schedule(self, updates: int | None = None) -> Schedule:
        """Which gradient is computed on which model, and when it is applied, from the start of
        training until ``updates`` gradients have been applied.

        By default 1000 for each worker, at most 100 000. The job is simulated again for it.

        Raises
        ------
        InputError : the prediction is coarse, or was read back from JSON; ``updates`` is no
            positive whole number.
        TooLargeError : it takes more operations than the prediction was allowed (``max_ops``).
        """
        return self._job("schedule").schedule(updates, self.throughput_samples_per_s)

    def _job(self, what: str) -> Timeline:
        """The job, to be simulated again for what is asked.

        Raises
        ------
        InputError : the prediction is coarse, or was read back from JSON.
        """
        if self.fidelity == "coarse":
            raise InputError(f"{what}: a coarse prediction has no timeline; needs fidelity fine")
        if self.timeline is None:
            raise InputError(
                f"a prediction read back from JSON has no job for a {what}: predict it anew"
            )
        return self.timeline


def percentile(histogram: Mapping[int, int], fraction: float) -> int:
    """Smallest value that at least ``fraction`` of the counts do not exceed.

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
