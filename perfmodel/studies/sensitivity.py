"""Sensitivity of a prediction: how other values of each assumption change the throughput.

Numbers are halved and doubled, switches are flipped, and words are replaced by every other allowed
word. Everything else stays the same, and all variants are predicted by the same route.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Job, Start, per_worker
from perfmodel.inputs.options import described
from perfmodel.predicting import coarse, islands, job_facts
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies.chunks import Progress

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.sensitivity/1"

FACTORS = (0.5, 2.0)
"""Factors that numbers are multiplied by."""

MATTERS = 0.02
"""Relative change of the throughput above which an assumption matters."""

LEFT_OUT = "formulas leave out"
"""Start of the reason why the formulas cannot predict a variant."""

NAMES = ("device", "precision", "cluster")
"""Assumptions whose name stands for many values, so they cannot be halved or doubled."""

MOST_BARS, LEAST_SWING = 16, 1e-3
"""Most assumptions in a figure, and the smallest change of log throughput that is drawn."""

COMPUTE = "compute time"
"""Name of the step's compute time, which is an assumption if it is estimated, not measured."""

Arguments = Mapping[str, Any]
Change = tuple[Any, Callable[[], Job]]
"""Another value of an assumption, and a function that makes the job with this value."""


class Alternative(msgspec.Struct, frozen=True):
    """Another value of an assumption, its throughput, and the ratio to the predicted throughput."""

    value: float | int | str | bool
    throughput_samples_per_s: float
    ratio: float

    @property
    def swing(self) -> float:
        """Absolute change of log throughput."""
        return abs(math.log(self.ratio))


class Effect(msgspec.Struct, frozen=True):
    """Effect of an assumption on the throughput.

    Attributes
    ----------
    assumption : as in the prediction.
    alternatives : other values; numbers are in rising order.
    unvaried : why there are no alternatives; empty if there are some.
    """

    assumption: Assumption
    alternatives: tuple[Alternative, ...]
    unvaried: str = ""

    @property
    def swing(self) -> float:
        """Largest absolute change of log throughput; 0 without alternatives."""
        return max((each.swing for each in self.alternatives), default=0.0)

    @property
    def left_out(self) -> bool:
        """Whether the effect is unknown because the formulas leave it out."""
        return f": {LEFT_OUT} " in self.unvaried

    @property
    def matters(self) -> bool:
        """Whether it changes the throughput by more than :data:`MATTERS`, or is a name that stands
        for many values, such as a device."""
        return self.swing > math.log1p(MATTERS) or self.assumption.name in NAMES

    @property
    def sides(self) -> tuple[tuple[str, float], tuple[str, float]]:
        """Return a lower and a higher value as text, each with its ratio; ("", 1) if there is none.
        Words count as higher values."""
        from perfmodel.reporting.contents import Quantity, shown

        a = self.assumption
        below, above = ("", 1.0), ("", 1.0)
        words = isinstance(a.value, (bool, str))
        for each in sorted(self.alternatives, key=lambda each: each.swing):
            side = shown(Quantity(each.value, a.unit)), each.ratio
            if not words and float(each.value) < float(a.value or 0.0):
                below = side
            else:
                above = side
        return below, above


class Sensitivity(Drawn, frozen=True, kw_only=True):
    """A prediction and the effects of its assumptions, the largest first."""

    schema: str = SCHEMA
    prediction: Prediction
    effects: tuple[Effect, ...]

    def __repr__(self) -> str:
        said = (f"{e.assumption.name}: {math.exp(e.swing):.3g}x" for e in self.effects if e.swing)
        return f"Sensitivity({'; '.join(said) or 'no assumption matters'})"

    def rows(self) -> list[dict[str, Any]]:
        """A row per alternative, in SI units; one without an alternative where there is none."""
        rows = []
        for each in self.effects:
            a = each.assumption
            head = {"assumption": a.name, "value": a.value, "unit": a.unit, "source": a.source}
            none = {"alternative": None, "throughput_samples_per_s": None, "ratio": None}
            rows += [
                {**head, "alternative": other.value}
                | {"throughput_samples_per_s": other.throughput_samples_per_s, "ratio": other.ratio}
                | {"unvaried": ""}
                for other in each.alternatives
            ] or [{**head, **none, "unvaried": each.unvaried}]
        return rows

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame."""
        from perfmodel.studies.sweeps import frame

        return frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values."""
        return {
            "schema": self.schema,
            "prediction": self.prediction.to_dict(),
            "effects": [
                {**msgspec.to_builtins(each), "swing": each.swing} for each in self.effects
            ],
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        import json

        return json.dumps(self.to_dict(), indent=2)

    def figure(self) -> Figure:
        """The effects as bars to both sides of 1, the largest first.

        Of several words that may stand instead of one, the one with the largest effect is drawn.
        """
        from perfmodel.studies.figures import tornado

        effects = [each for each in self.effects if each.swing >= LEAST_SWING][:MOST_BARS]
        rows = [(each.assumption.name, each.sides) for each in effects]
        return Figure([[tornado(rows)]], self.prediction.headline)


def sensitivity(
    *,
    fidelity: api.Fidelity = "coarse",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    progress: Progress | None = None,
    **arguments: Any,
) -> Sensitivity:
    """Predict what each assumption of a job is worth, and its compute time where that is estimated.

    Parameters
    ----------
    fidelity, tolerance, rel_ci, max_ops : see :func:`perfmodel.predict`. By default all are
        predicted by formulas. What *auto* chooses for the job is taken for all others, so that
        ratios have no error of the route in them.
    progress : called with (done, all) after each assumption.
    arguments : those of :func:`perfmodel.make_job`, and ``global_batch_size`` in the place of
        ``batch_size``.

    Raises
    ------
    InputError : the job itself is impossible; impossible alternatives are left out.

    >>> job = {"model": "vgg16", "device": "v100", "cluster": "ethernet-10g", "arch": "ring"}
    >>> found = sensitivity(**job, workers=8)
    >>> [each.assumption.name for each in found.effects[:3]]
    ['compression', 'batch_size', 'bandwidth']
    """
    given = per_worker(arguments)
    asked: dict[str, Any] = {"rel_ci": rel_ci, "max_ops": max_ops}
    job = api.make_job(**given)
    now = api.predict(job, fidelity=fidelity, tolerance=tolerance, **asked)
    if now.fidelity == "coarse":
        found = effects(job, progress)
    else:

        def simulated(other: Job) -> float:
            return api.predict(other, fidelity="fine", **asked).throughput_samples_per_s

        found = _effects(job, simulated, now.throughput_samples_per_s, progress)
    return Sensitivity(prediction=now, effects=found)


def effects(job: Job, progress: Progress | None = None) -> tuple[Effect, ...]:
    """Return the effect of each assumption of a job by formulas, the largest first.

    ``progress`` is called with (done, all) after each assumption.
    """
    job = job_facts.with_layers(job)
    same = islands.changed(job, job.of_devices)
    missing = coarse.leaves_out(same)

    def by_formulas(other: Job) -> float:
        other = job_facts.with_layers(other)
        left_out = coarse.leaves_out(other)
        if left_out not in (None, missing):
            raise InputError(f"{LEFT_OUT} {left_out}")
        return _samples_per_s(other)

    return _effects(job, by_formulas, _samples_per_s(same), progress)


def _samples_per_s(job: Job) -> float:
    """Return the throughput by formulas: quickly, unless islands have different sizes."""
    sizes = set(job.batch_sizes)
    if len(sizes) > 1:
        return islands.samples_per_s(job, coarse.predict(job))
    return coarse.iterations_per_s(job) * sizes.pop()


def _effects(
    job: Job,
    rate: Callable[[Job], float],
    now: float,
    progress: Progress | None,
) -> tuple[Effect, ...]:
    """Return the effects, given how to predict the throughput, and the job's own throughput."""
    assumed = [*job.assumptions]
    of_device = job.of_devices.workload
    if of_device.quality == "estimated":
        assumed.append(Assumption(COMPUTE, of_device.compute_s, "s", "estimated"))
    found = []
    for done, assumption in enumerate(assumed, 1):
        found.append(_effect(assumption, job, rate, now))
        if progress is not None:
            progress(done, len(assumed))
    return tuple(sorted(found, key=lambda each: -each.swing))


def _effect(
    assumption: Assumption, job: Job, rate: Callable[[Job], float], now: float
) -> Effect:
    """Return the effect of an assumption: the throughput with other values."""
    found = []
    error = ""
    for value, other in _changes(assumption, job):
        try:
            then = rate(other())
        except InputError as impossible:
            error = error or f"{value}: {impossible}"
            continue
        found.append(Alternative(value, then, then / now))
    return Effect(assumption, tuple(found), "" if found else error or _unvaried(assumption))


def _unvaried(assumption: Assumption) -> str:
    value = assumption.value
    if isinstance(value, str) and value != "inf":
        return "a name or a rule"
    return "cannot be halved or doubled" if value in (0, "inf", None) else "of the profile"


def _changes(assumption: Assumption, job: Job) -> Iterator[Change]:
    """Yield other values of an assumption; none if it is not a value of the job."""
    name, flat = assumption.name, job.of_devices

    def other(**changes: Any) -> Callable[[], Job]:
        return lambda: islands.changed(job, msgspec.structs.replace(flat, **changes))

    if assumption.source == f"default of {job.architecture.name}":
        kinds = {each.name: each.type for each in described(type(job.options))}
        for value in _others(getattr(job.options, name), kinds[name]):
            yield value, functools.partial(_with_option, job, name, value)
    elif name == "start":
        for word in _others(job.start, Start):
            yield word, other(start=word)
    elif name == "batch_size" and job.given is not None and "batch_size" not in job.given:
        for size in _others(assumption.value, int):
            yield size, functools.partial(_with_batch, job, job.given, size)
    elif name == "jitter" and flat.jitter is not None:
        for cv in _others(flat.jitter.cv, float):
            yield cv, other(jitter=msgspec.structs.replace(flat.jitter, cv=cv))
    elif name == COMPUTE:
        for factor in FACTORS:
            workload = flat.workload.scaled("compute_s", factor)
            yield workload.compute_s, other(workload=workload)
    elif name in PARTS and assumption.source.startswith("cluster "):
        for value, cluster in PARTS[name](flat.cluster):
            yield value, other(cluster=cluster)


def _with_option(job: Job, name: str, value: Any) -> Job:
    """Return the job with another value of an option, and its default start."""
    flat = job.of_devices
    options = msgspec.structs.replace(flat.options, **{name: value})
    changes: dict[str, Any] = {"options": options}
    if any(each.name == "start" for each in flat.assumptions):
        changes["start"], _ = api.start_of(None, options)
    return islands.changed(job, msgspec.structs.replace(flat, **changes))


def _with_batch(job: Job, given: Arguments, size: int) -> Job:
    """Return the job with another batch size per device."""
    now = job.of_devices.workload.batch_size
    workload = api.workload_of({**api.anchored(given, now), "batch_size": size})
    flat = job_facts.with_layers(msgspec.structs.replace(job.of_devices, workload=workload))
    return islands.changed(job, flat)


def _others(value: Any, kind: Any) -> Iterator[Any]:
    """Other values of a kind: half and double, the opposite, or all other words.

    >>> list(_others(5, int)), list(_others(True, bool)), list(_others("a", Literal["a", "b"]))
    ([2, 10], [False], ['b'])
    >>> list(_others(1, int)), list(_others(0.0, float))
    ([2], [])
    """
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        if typing.get_origin(kind) is Literal:
            yield from (word for word in typing.get_args(kind) if word != value)
    elif value and math.isfinite(value):
        for factor in FACTORS:
            other = int(value * factor) if isinstance(value, int) else value * factor
            if other:
                yield other


def _at_most_one(value: float) -> Iterator[float]:
    """Half and double of a fraction, which is at most 1."""
    return (other for other in (min(f * value, 1.0) for f in FACTORS) if 0.0 < other != value)


def _scaled(link: Link, field: str, factor: float) -> Link:
    """A link with a value ``factor`` times as large; an efficiency is at most 1."""
    value = getattr(link, field) * factor
    return msgspec.structs.replace(
        link, **{field: min(value, 1.0) if field == "efficiency" else value}
    )


def _links(field: str) -> Callable[[Cluster], Iterator[tuple[Any, Cluster]]]:
    """Clusters whose links between nodes all have another value of ``field``."""

    def changed(cluster: Cluster) -> Iterator[tuple[Any, Cluster]]:
        value, server = getattr(cluster.nic, field), cluster.server
        others = _at_most_one(value) if field == "efficiency" else _others(value, float)
        for other in others:
            factor = other / value
            if server.nic is not None:
                nic = _scaled(server.nic, field, factor)
                server = msgspec.structs.replace(cluster.server, nic=nic)
            overrides = tuple(
                msgspec.structs.replace(o, nic=_scaled(o.nic, field, factor)) if o.nic else o
                for o in cluster.overrides
            )
            nic = _scaled(cluster.nic, field, factor)
            yield (
                other,
                msgspec.structs.replace(cluster, nic=nic, server=server, overrides=overrides),
            )

    return changed


def _nics(field: str) -> Callable[[Cluster], Iterator[tuple[Any, Cluster]]]:
    """Clusters with another number of links, unless a process would use more than its node has."""

    def changed(cluster: Cluster) -> Iterator[tuple[Any, Cluster]]:
        for other in _others(getattr(cluster, field), int):
            links = {"nics_per_node": cluster.nics_per_node,
                     "nics_per_process": cluster.nics_per_process, field: other}  # fmt: skip
            if links["nics_per_process"] <= links["nics_per_node"]:
                yield other, msgspec.structs.replace(cluster, **links)

    return changed


def _of(part: str, field: str) -> Callable[[Cluster], Iterator[tuple[Any, Cluster]]]:
    """Clusters with another value of a field, of the cluster itself or of a part of it."""

    def changed(cluster: Cluster) -> Iterator[tuple[Any, Cluster]]:
        inside = getattr(cluster, part) if part else cluster
        for other in _others(getattr(inside, field), float):
            new = msgspec.structs.replace(inside, **{field: other})
            yield other, msgspec.structs.replace(cluster, **{part: new}) if part else new

    return changed


PARTS: Mapping[str, Callable[[Cluster], Iterator[tuple[Any, Cluster]]]] = {
    "bandwidth": _links("bandwidth_bytes_per_s"),
    "latency": _links("latency_s"),
    "efficiency": _links("efficiency"),
    "devices per node": _of("", "devices_per_node"),
    "NICs per node": _nics("nics_per_node"),
    "NICs per process": _nics("nics_per_process"),
    "inside a node": _of("intra_node", "bandwidth_bytes_per_s"),
    "update per tensor": _of("server", "update_per_tensor_s"),
    "update per byte": _of("server", "update_per_byte_s"),
}
"""Assumptions that are values of a cluster, see ``api``: clusters with other values of each."""
