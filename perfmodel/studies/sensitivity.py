"""What each assumption of a job is worth: the throughput with other values of it.

A number is halved and doubled, a switch is flipped, and a word is replaced by each of the others
that are allowed. Everything else stays as it is, and all are predicted by the same route.
"""

from __future__ import annotations

import json
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
from perfmodel.results.prediction import Prediction
from perfmodel.studies.sweeps import Progress, frame

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.sensitivity/1"

FACTORS = (0.5, 2.0)
"""What numbers are multiplied by."""

COMPUTE = "compute time"
"""Of a step: an assumption where it is estimated, not measured."""

Arguments = Mapping[str, Any]
Change = tuple[Any, dict[str, Any]]
"""Another value of an assumption, and the arguments of the job that has it."""


class Alternative(msgspec.Struct, frozen=True):
    """Another value of an assumption: the throughput with it, and its ratio to the one assumed."""

    value: float | int | str | bool
    throughput_samples_per_s: float
    ratio: float


class Effect(msgspec.Struct, frozen=True):
    """What an assumption is worth.

    Attributes
    ----------
    assumption : as in the prediction.
    alternatives : other values of it, in rising order where they are numbers.
    unvaried : why there are none; empty where there are some.
    """

    assumption: Assumption
    alternatives: tuple[Alternative, ...]
    unvaried: str = ""

    @property
    def swing(self) -> float:
        """The largest change of the throughput, as the size of a logarithm; 0 if there is none."""
        return max((abs(math.log(each.ratio)) for each in self.alternatives), default=0.0)


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction, and what each of its assumptions is worth: the largest effect first."""

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
        return json.dumps(self.to_dict(), indent=2)


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

    >>> found = sensitivity(model="vgg16", device="v100", arch="ring", workers=8)
    >>> [each.assumption.name for each in found.effects[:3]]
    ['compression', 'batch_size', 'bandwidth']
    """
    given = per_worker(arguments)
    asked: dict[str, Any] = {"rel_ci": rel_ci, "max_ops": max_ops}
    job = api.make_job(**given)
    now = api.predict(job, fidelity=fidelity, tolerance=tolerance, **asked)
    asked["fidelity"] = now.fidelity
    assumed = [*now.assumptions]
    of_device = job.of_devices.workload
    if of_device.quality == "estimated":
        assumed.append(Assumption(COMPUTE, of_device.compute_s, "s", "estimated"))
    found = []
    for done, assumption in enumerate(assumed, 1):
        found.append(_effect(assumption, job, given, now, asked))
        if progress is not None:
            progress(done, len(assumed))
    found.sort(key=lambda each: -each.swing)
    return Sensitivity(prediction=now, effects=tuple(found))


def _effect(
    assumption: Assumption, job: Job, given: Arguments, now: Prediction, asked: Arguments
) -> Effect:
    """What an assumption is worth, by predictions of the alternatives."""
    found = []
    error = ""
    for value, arguments in _changes(assumption, job, given):
        try:
            then = api.predict(api.make_job(**arguments), **asked)
        except InputError as impossible:
            error = error or f"{value}: {impossible}"
            continue
        rate = then.throughput_samples_per_s
        found.append(Alternative(value, rate, rate / now.throughput_samples_per_s))
    return Effect(assumption, tuple(found), "" if found else error or _unvaried(assumption))


def _unvaried(assumption: Assumption) -> str:
    value = assumption.value
    if isinstance(value, str) and value != "inf":
        return "a name or a rule"
    return f"{value} has no half and no double" if value in (0, "inf", None) else "of the profile"


def _changes(assumption: Assumption, job: Job, given: Arguments) -> Iterator[Change]:
    """Other values of an assumption; none where it is not a value of the job."""
    name = assumption.name
    if assumption.source == f"default of {job.architecture.name}":
        kinds = {each.name: each.type for each in described(type(job.options))}
        for value in _others(getattr(job.options, name), kinds[name]):
            yield value, {**given, "options": {**given.get("options", {}), name: value}}
    elif name == "start":
        for word in _others(job.start, Start):
            yield word, {**given, "start": word}
    elif name == "batch_size" and "batch_size" not in given:
        for size in _others(assumption.value, int):
            yield size, {**given, "batch_size": size}
    elif name == "jitter" and job.jitter is not None:
        for cv in _others(job.jitter.cv, float):
            yield cv, {**given, "jitter": msgspec.structs.replace(job.jitter, cv=cv)}
    elif name == COMPUTE:
        rest = {key: value for key, value in given.items() if key not in api.OF_WORKLOAD}
        for factor in FACTORS:
            workload = job.of_devices.workload.scaled("compute_s", factor)
            yield workload.compute_s, {**rest, "workload": workload}
    elif name in PARTS and assumption.source.startswith("cluster "):
        links = ("bandwidth_bytes_per_s", "latency_s")  # the job's cluster has them
        rest = {key: value for key, value in given.items() if key not in links}
        for value, cluster in PARTS[name](job.of_devices.cluster):
            yield value, {**rest, "cluster": cluster}


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
    "NICs per node": _of("", "nics_per_node"),
    "inside a node": _of("intra_node", "bandwidth_bytes_per_s"),
    "update per tensor": _of("server", "update_per_tensor_s"),
    "update per byte": _of("server", "update_per_byte_s"),
}
"""Assumptions that are values of a cluster, see ``api``: clusters with other values of each."""
