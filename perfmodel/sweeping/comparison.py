"""Jobs side by side: their differences, and where the slower ones lose time.

A worker's mean iteration is compute time plus waiting time by cause, exactly:
``iteration_s = compute_s + sum(by_cause) * iteration_s``. The difference between two iterations
splits the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from perfmodel import api
from perfmodel.architectures import registry
from perfmodel.base.errors import InputError
from perfmodel.base.files import finite
from perfmodel.base.units import show
from perfmodel.inputs.job import Jitter, Job, Straggler
from perfmodel.reporting import contents
from perfmodel.reporting.contents import Figure, Page, Section
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.panels import stacks
from perfmodel.reporting.rows import table
from perfmodel.results import sections
from perfmodel.results.prediction import Prediction
from perfmodel.sweeping.chunks import Progress, counted
from perfmodel.sweeping.grids import Skipped, grid
from perfmodel.sweeping.labels import Row, distinct, label, shown
from perfmodel.sweeping.tables import (
    Tabular,
    basis_columns,
    best_of,
    common,
    memory_columns,
    quantity_columns,
)

SCHEMA = "perfmodel.comparison/1"

MOST_JOBS = 16
"""Largest number of jobs side by side; use a sweep for more."""

FROM_FRACTION = 0.005
"""Smallest share of a difference that the explanation mentions."""

ROUNDING = 1e-9
"""Throughput ratios closer to 1 than this count as 1."""

WORDS = {
    "compute": "computing",
    "network": "waiting for the network",
    "server": "waiting for a server",
    "straggler": "waiting for another worker",
    "staleness_bound": "waiting at the staleness bound",
    "data": "waiting for data",
    "cpu": "waiting for processor cores",
    "pipeline": "waiting for another stage",
    "expert_imbalance": "waiting for a device whose experts have more to do",
    "unequal_sequences": "waiting for a worker whose sequences have longer documents",
}

_NAMES = {
    "workload.name": "model",
    "architecture": "arch",
    "cluster.name": "cluster",
    "cluster.nic.bandwidth_bytes_per_s": "bandwidth_bytes_per_s",
    "cluster.nic.latency_s": "latency_s",
}
_SILENT = ("schema", "title", "source", "options")


class Comparison(Paged, Tabular, frozen=True, kw_only=True):
    """Predictions side by side.

    ``differing`` holds, for each prediction, the inputs that differ between the jobs, by name and
    in SI units; None where an option does not apply or has no effect.
    """

    names: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    differing: tuple[Row, ...]

    def __repr__(self) -> str:
        rates = (f"{p.throughput_samples_per_s:.4g}" for p in self.predictions)
        parts = (f"{name}: {rate}" for name, rate in zip(self.names, rates, strict=True))
        return f"Comparison({'; '.join(parts)} samples/s)"

    @property
    def title(self) -> str:
        """Inputs that all jobs have in common."""
        return common(self.predictions)

    @property
    def best(self) -> int:
        """Index of the prediction with the highest throughput of those that fit into their devices,
        or of all if none does; the first on ties."""
        return best_of(self.predictions)

    @property
    def per_sample(self) -> bool:
        """Whether times are compared per sample, because global batch sizes differ."""
        return len({(p.workers, p.batch_size) for p in self.predictions}) > 1

    @property
    def text(self) -> list[str]:
        """A sentence for each job that may not fit into its devices, and for each slower job on why
        it is slower than the best, fastest job first."""
        best = self.predictions[self.best]
        others = [i for i in range(len(self.predictions)) if i != self.best]
        others.sort(key=lambda i: -self.predictions[i].throughput_samples_per_s)
        name = self.names[self.best]
        shorts = {i: p.memory.shortage(p.device) for i, p in enumerate(self.predictions)}
        sentences = [f"{self.names[i]} {text}" for i, text in shorts.items() if text]
        sentences += [
            _why(name, best, self.names[i], self.predictions[i])
            for i in others
            if not shorts[i] or shorts[self.best]
        ]
        stale = [(p.staleness.mean, i) for i, p in enumerate(self.predictions) if p.staleness]
        if best.staleness is not None and stale:
            least, i = min(stale)
            if best.staleness.mean > least + 0.5:
                sentences.append(
                    f"throughput is not progress: mean gradient staleness is "
                    f"{best.staleness.mean:.3g} updates with {name} and {least:.3g} with "
                    f"{self.names[i]}"
                )
        return sentences

    def rows(self) -> list[Row]:
        """One row per job: the inputs that differ, then the predictions, in SI units.

        ``compute_s`` and the ``idle_*_s`` add up to ``iteration_s``.
        """
        causes = [c for c in WORDS if any(c in p.idle_fraction.by_cause for p in self.predictions)]
        most = self.predictions[self.best].throughput_samples_per_s
        rows = []
        memory = memory_columns(self.predictions)
        columns = zip(self.names, self.differing, self.predictions, memory, strict=True)
        for name, differing, p, fitting in columns:
            link, use = _busiest(p.utilisation.links)
            idle = {f"idle_{cause}_s": parts_s(p).get(cause, 0.0) for cause in causes}
            rows.append(
                {
                    "job": name,
                    **differing,
                    "throughput_samples_per_s": p.throughput_samples_per_s,
                    "throughput_ci_fraction": p.throughput_ci_fraction,
                    "of_best_fraction": p.throughput_samples_per_s / most,
                    "iteration_s": p.iteration_s,
                    "compute_s": p.compute_s,
                    **idle,
                    "idle_fraction": p.idle_fraction.mean,
                    "staleness_mean": p.staleness.mean if p.staleness is not None else None,
                    "busiest_link": link,
                    "busiest_link_fraction": use,
                    **fitting,
                    **basis_columns(p),
                }
            )
        return rows

    def to_dict(self) -> Row:
        """Rows and sentences, as JSON-like values."""
        return {"schema": SCHEMA, "rows": self.rows(), "text": self.text}

    def figure(self) -> Figure:
        """Compute and waiting time by cause, a bar per job.

        Times are per iteration, or per sample over all workers if global batch sizes differ.
        """
        names = [
            f"{name}\n{p.throughput_samples_per_s:.4g} samples/s"
            for name, p in zip(self.names, self.predictions, strict=True)
        ]
        parts = [parts_s(p, per_sample=self.per_sample) for p in self.predictions]
        ends = [self._ends_s(p) for p in self.predictions]
        return Figure([[stacks(names, parts, f"{self._what} (s)", ends)]])

    @property
    def _what(self) -> str:
        """What takes the times that are compared."""
        per_sample, per_step = "time per sample of all workers", "mean iteration time of a worker"
        return per_sample if self.per_sample else per_step

    def _ends_s(self, p: Prediction) -> tuple[float, float] | None:
        """Bounds of the interval of the iteration time, or of the time per sample."""
        if p.interval is None or not self.per_sample:
            return None if p.interval is None else p.interval.iteration_s
        low, high = p.interval.throughput_samples_per_s
        return 1.0 / high, 1.0 / low

    def page(self) -> Page:
        """The contents of the page."""
        parts = [parts_s(p, per_sample=self.per_sample) for p in self.predictions]
        kinds = [kind for kind in WORDS if any(kind in part for part in parts)]
        times = [{"job": name, **part} for name, part in zip(self.names, parts, strict=True)]
        rows = [dict.fromkeys(("job", *kinds), 0.0) | row for row in times]
        best = self.predictions[self.best].throughput_samples_per_s
        parts_of_page = [
            Section(
                name="time",
                title="Where the time goes",
                text=self.text,
                figure=self.figure().rows[0][0],
                tables=[table(f"{self._what.capitalize()}, in seconds", rows)],
            ),
            Section(name="jobs", title="All jobs", tables=[table("Jobs", self.rows())]),
        ]
        answer = [("Fastest", contents.shown(best, "samples/s"), self.names[self.best])]
        title = f"Comparison: {self.title}" if self.title else "Comparison"
        return Page(title=title, answer=answer, sections=parts_of_page)


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to compare, their names, impossible combinations, and notes."""

    jobs: tuple[Job, ...]
    names: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


def compare(
    jobs: Iterable[Job | Prediction],
    names: Iterable[str] | None = None,
    *,
    fidelity: api.Fidelity = "fine",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    progress: Progress | None = None,
) -> Comparison:
    """Compare jobs, or predictions of them.

    Parameters
    ----------
    names : one for each job; by default made from the inputs that differ.
    fidelity, tolerance, rel_ci, max_ops : see :func:`perfmodel.predict`.
    progress : called with (done, all) after each job.

    Raises
    ------
    InputError : fewer than 2 or more than 16 jobs, a missing name, or a name given twice.

    >>> ring, ps = (api.make_job(model="resnet18", arch=a, workers=4) for a in ("ring", "ps"))
    >>> compare([ring, ps]).names
    ('allreduce, ring', 'ps')
    """
    several = list(jobs)
    if len(several) < 2:
        raise InputError(f"compare: needs at least two jobs, got {len(several)}")
    if len(several) > MOST_JOBS:
        raise InputError(
            f"compare: {len(several)} jobs; at most {MOST_JOBS} (use perfmodel sweep for more)"
        )
    called = list(names) if names is not None else None
    if called is not None and (len(called) != len(several) or len(set(called)) != len(several)):
        raise InputError(f"names: expected {len(several)} different names, got {called}")
    how = api.PredictOptions(fidelity=fidelity, tolerance=tolerance, rel_ci=rel_ci, max_ops=max_ops)
    predictions = [
        job if isinstance(job, Prediction) else api.predict(job, how)
        for job in counted(several, progress)
    ]
    differing = _differing(predictions)
    if called is None:
        mixed = len({p.fidelity for p in predictions}) > 1
        kinds = [{"fidelity": p.fidelity} if mixed else {} for p in predictions]
        called = distinct(_name(a | b) for a, b in zip(differing, kinds, strict=True))
    return Comparison(
        names=tuple(called),
        predictions=tuple(predictions),
        differing=tuple(differing),
    )


def gathered(several: Sequence[tuple[str | None, Mapping[str, object]]]) -> Gathered:
    """Collect the jobs of several sets of arguments, each of which may be a whole sweep.

    Parameters
    ----------
    several : pairs of a file name, or None, and arguments as for :func:`perfmodel.sweep`.

    Raises
    ------
    InputError : fewer than two jobs; see :func:`perfmodel.sweep` for the arguments.
    """
    names: list[str] = []
    grids = []
    for path, arguments in several:
        try:
            grids.append(grid(arguments))
        except InputError as error:
            raise InputError(f"{path}: {error}" if len(several) > 1 else str(error)) from None
        stem = Path(path).stem if path is not None and len(several) > 1 else ""
        names += [", ".join(filter(None, [stem, label(p)])) for p in grids[-1].points]
    skipped = tuple(skip for part in grids for skip in part.skipped)
    if len(names) < 2 and skipped:
        raise InputError(f"compare: needs at least two jobs; {skipped[0].reason}")
    return Gathered(
        jobs=tuple(job for part in grids for job in part.jobs),
        names=tuple(distinct(names)),
        skipped=skipped,
        notes=tuple(dict.fromkeys(note for part in grids for note in part.notes)),
    )


def parts_s(p: Prediction, *, per_sample: bool = False) -> dict[str, float]:
    """Split a worker's mean iteration into seconds of ``compute`` and of each cause of waiting.

    With ``per_sample``, they are divided by the global batch size and add up to 1 / throughput.
    """
    share = 1.0 / p.global_batch_size if per_sample else 1.0
    return {kind: seconds * share for kind, seconds in sections.parts_s(p).items()}


def differences(fine: Prediction, coarse: Prediction) -> dict[str, float | None]:
    """Relative differences of a coarse prediction from a fine one.

    The difference in ``idle_fraction`` is absolute. None where the fine value is 0 or missing.
    """
    names = ("throughput_samples_per_s", "iteration_s", "idle_fraction", "staleness_mean")
    return {
        n: _difference(n, quantity_columns(fine)[n], quantity_columns(coarse)[n]) for n in names
    }


def _difference(name: str, fine: float | None, coarse: float | None) -> float | None:
    if fine == coarse:
        return 0.0
    if fine is None or coarse is None:
        return None
    if name == "idle_fraction":
        return coarse - fine
    return coarse / fine - 1.0 if fine else None


def both_to_dict(fine: Prediction, coarse: Prediction) -> dict[str, object]:
    """A fine and a coarse prediction of one job, and their differences, as JSON-like values."""
    both = {"fine": fine.to_dict(), "coarse": coarse.to_dict()}
    return {**both, "difference_fraction": differences(fine, coarse)}


def _why(name: str, best: Prediction, slower_name: str, slower: Prediction) -> str:
    """Explain in one sentence why a job is slower than the best."""
    ratio = best.throughput_samples_per_s / slower.throughput_samples_per_s
    unsure = [_uncertainty(p) for p in (best, slower)]
    if ratio - 1.0 <= max(sum(unsure), ROUNDING):
        within = " and ".join(f"± {part:.1%}" for part in dict.fromkeys(unsure) if part)
        limits = f" within their uncertainty ({within})" if within else ""
        return f"{name} and {slower_name} are equally fast{limits}"
    faster = (
        f"{ratio:.3g} times as fast as" if ratio >= 1.5 else f"{100 * (ratio - 1):.3g}% faster than"
    )
    per_sample = (best.workers, best.batch_size) != (slower.workers, slower.batch_size)
    quick, slow = (parts_s(p, per_sample=per_sample) for p in (best, slower))
    total = sum(slow.values()) - sum(quick.values())
    times = f"{show(sum(quick.values()), 's')} instead of {show(sum(slow.values()), 's')}"
    if per_sample:
        took = (
            f"all workers together need {times} per sample (global batches are "
            f"{best.global_batch_size} and {slower.global_batch_size} samples; iterations take "
            f"{show(best.iteration_s, 's')} and {show(slower.iteration_s, 's')})"
        )
    else:
        took = f"an iteration takes {times}"
    more = {kind: slow.get(kind, 0.0) - quick.get(kind, 0.0) for kind in WORDS}
    return f"{name} is {faster} {slower_name}: {took}; {_parts(more, total, slower)}"


def _uncertainty(p: Prediction) -> float:
    """Half-width of the confidence interval plus the 90th percentile of the formulas' error."""
    band = p.error_band
    return p.throughput_ci_fraction + (band.p90 or 0.0 if band is not None else 0.0)


def _parts(more: Mapping[str, float], total: float, slow: Prediction) -> str:
    """Describe the contributions to a difference: largest first, negative ones last."""
    kinds = sorted(
        (kind for kind, seconds in more.items() if abs(seconds) >= FROM_FRACTION * total),
        key=lambda kind: -more[kind],
    )
    if len(kinds) == 1:
        return f"the whole difference is {WORDS[kinds[0]]}{_where(kinds[0], slow)}"
    parts = [
        f"{show(more[kind], 's')} more {WORDS[kind]}{_where(kind, slow)}"
        if more[kind] > 0
        else f"{show(-more[kind], 's')} less {WORDS[kind]}"
        for kind in kinds
    ]
    return f"the {show(total, 's')} difference is {', '.join(parts[:-1])} and {parts[-1]}"


def _where(kind: str, slow: Prediction) -> str:
    """Name the busiest resource of a kind in the slower job."""
    use_of = slow.utilisation
    resources = {"network": use_of.links, "server": use_of.servers, "cpu": use_of.cores}
    name, use = _busiest(resources.get(kind, {}))
    return f" (busiest: {name}, {use:.0%} in use)" if name is not None and use else ""


def _busiest(use: Mapping[str, float]) -> tuple[str | None, float | None]:
    return max(use.items(), key=lambda item: item[1], default=(None, None))


def _name(differing: Row) -> str:
    """The name of a job; a cluster's name replaces all fields of the cluster."""
    details = ("cluster.", "bandwidth", "latency") if "cluster" in differing else ("cluster.",)
    return label({k: v for k, v in differing.items() if not k.startswith(details)})


def _differing(predictions: Sequence[Prediction]) -> list[Row]:
    """The inputs that differ between predictions."""
    inputs = [_inputs(p) for p in predictions]
    names = dict.fromkeys(name for row in inputs for name in row)
    differ = [name for name in names if len({repr(row.get(name)) for row in inputs}) > 1]
    if "start" in differ and all(_is_assumed(p, "start") for p in predictions):
        differ.remove("start")  # follows from the architecture
    rows = [{name: row.get(name) for name in differ} for row in inputs]
    options: list[Row] = [p.provenance.inputs["options"] for p in predictions]
    for name in dict.fromkeys(name for row in options for name in row):
        values = {repr(row[name]) for row in options if name in row}
        missing = any(name not in row for row in options)
        if len(values) > 1 or (missing and any(_is_chosen(p, name) for p in predictions)):
            for row, option in zip(rows, options, strict=True):
                row[name] = option.get(name)
    return rows


def _inputs(p: Prediction) -> Row:
    """The inputs of a job except its options, flattened, by name."""
    flat: Row = {}

    def walk(value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            name = _NAMES.get(path, path.removeprefix("workload."))
            flat[name] = value if not isinstance(value, (list, tuple)) else json.dumps(value)
            return
        for key, item in value.items():
            if key not in _SILENT:
                walk(item, f"{path}.{key}" if path else key)

    inputs = dict(p.provenance.inputs)
    jitter = inputs.pop("jitter")
    stragglers = [Straggler(**straggler) for straggler in inputs.pop("stragglers")]
    walk(inputs, "")
    flat["jitter"] = shown(Jitter(**jitter)) if jitter is not None else 0.0
    return {**flat, "stragglers": shown(stragglers), "seed": p.provenance.seed}


def _is_assumed(p: Prediction, name: str) -> bool:
    return name in {assumption.name for assumption in p.assumptions}


def _is_chosen(p: Prediction, option: str) -> bool:
    """Return whether an option differs from its default."""
    options = p.provenance.inputs["options"]
    if option not in options:
        return False
    architecture, _ = registry.find(p.architecture)
    return bool(options[option] != finite(getattr(architecture.options(), option), "inf"))
