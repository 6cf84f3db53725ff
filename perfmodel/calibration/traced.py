"""The job that traces of some of its ranks show: :func:`replay`.

Computation is taken from the traces, rank by rank; communication is replaced by the model's, on
links as fast as the traced collectives. Predicting that job again says how far the model is off
(:attr:`Replay.error`); changes of it answer what-if questions: more ranks, other links, no overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Source
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Job, Straggler
from perfmodel.results.prediction import Prediction
from perfmodel.theory.buckets import DDP_BUCKET_BYTES
from perfmodel.traces.collectives import TracedCollective
from perfmodel.traces.workload import ImportedTrace, import_trace

SAME = 0.01
"""Ranks whose computation differs by less than this fraction from the middle one are alike."""

SMALL_BYTES = 2**20
"""Exchanges of less, such as of a norm or a loss, may be among any ranks."""

STEPS = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0}
"""Steps of an operation in a ring, over the number of ranks less one."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A traced job, and its prediction on links as traced.

    Attributes
    ----------
    job : the job of the traces; :meth:`perfmodel.Job.with_` changes it.
    arguments : of :func:`perfmodel.make_job`, which make it.
    traces : of the ranks, in order.
    step_s : measured, mean of the traced ranks.
    compute_s : of each traced rank per step, with idling, without communication and loading.
    link : of each rank, as fast as the traced collectives; None if a cluster was given.
    prediction : of ``job``.
    """

    job: Job
    arguments: dict[str, Any]
    traces: tuple[ImportedTrace, ...]
    step_s: float
    compute_s: tuple[float, ...]
    link: Link | None
    prediction: Prediction

    @property
    def error(self) -> float:
        """Predicted time of a step over the measured one, less 1."""
        return self.prediction.iteration_s / self.step_s - 1.0

    @property
    def text(self) -> str:
        """The replay in a line."""
        from perfmodel.base.units import show

        ranks = f"{len(self.traces)} of {self.job.workers} ranks"
        links = (
            "" if self.link is None else f", links as traced "
            f"({show(self.link.bandwidth_bytes_per_s, 'bytes_per_s')})"
        )  # fmt: skip
        slow = [f"{s.factor:.2f} times on rank {s.worker}" for s in self.job.stragglers]
        late = f", computing {', '.join(slow[:3])}" if slow else ""
        return (
            f"replayed from traces of {ranks}: {show(self.prediction.iteration_s, 's')} by the "
            f"model, {show(self.step_s, 's')} measured ({self.error:+.1%}){links}{late}"
        )

    def to_dict(self) -> dict[str, object]:
        """The replay as JSON-like values, without the job and its prediction."""
        return {
            "traces": [trace.trace for trace in self.traces],
            "workers": self.job.workers,
            "step_s": self.step_s,
            "predicted_step_s": self.prediction.iteration_s,
            "error": self.error,
            "compute_s": list(self.compute_s),
            "stragglers": [[s.worker, s.factor] for s in self.job.stragglers],
            "link": None if self.link is None else msgspec.to_builtins(self.link),
        }


def replay(
    paths: Sequence[str | Path],
    *,
    batch_size: int | None = None,
    gradient_bytes: float | None = None,
    fidelity: str = "fine",
    **arguments: Any,
) -> Replay:
    """Read traces of ``torch.profiler`` of some ranks of a data-parallel job, and predict it.

    Ranks that were not traced compute like the middle one of those that were.

    Parameters
    ----------
    paths : traces, one for each rank.
    batch_size, gradient_bytes : of a rank, where its trace does not tell.
    fidelity : as in :func:`perfmodel.predict`.
    arguments : of :func:`perfmodel.make_job` that describe the traced job, such as ``cluster``
        instead of links as traced, or ``workers``, if the traces do not tell how many.

    Raises
    ------
    InputError : a trace cannot be read, or lacks what a workload needs; two are of the same rank;
        some ranks exchange among themselves, as those that divide a model do;
        no trace tells the number of ranks, and one alone is given; none tells sizes and times of
        collectives, and no cluster is given.

    >>> replay(["rank0.json", "rank1.json"]).job.with_(workers=16)  # doctest: +SKIP
    """
    if not paths:
        raise InputError("traces: give at least one")
    traces = _ordered([_imported(path, batch_size, gradient_bytes) for path in paths])
    workers = arguments.get("workers") or max(len(traces), *(trace.ranks or 1 for trace in traces))
    _among_all(traces, workers)
    compute_s = tuple(
        trace.step_s - trace.parts_s["communication_exposed"] - trace.parts_s["data_loading"]
        for trace in traces
    )
    middle = _middle(compute_s)
    link = None
    if not {"cluster", "bandwidth", "bandwidth_bytes_per_s"} & arguments.keys():
        link = link_of([trace.collectives for trace in traces], workers)
    given = {
        **_architecture(traces[middle].collectives, traces[middle].steps),
        "workload": traces[middle].workload,
        "workers": workers,
        "stragglers": _stragglers(traces, compute_s, compute_s[middle]),
        **({} if link is None else {"cluster": _cluster(link)}),
        **arguments,
    }
    job = api.make_job(**given)
    prediction = api.predict(job, fidelity=fidelity)  # type: ignore[arg-type]
    return Replay(
        job=job,
        arguments=given,
        traces=tuple(traces),
        step_s=fmean(trace.step_s for trace in traces),
        compute_s=compute_s,
        link=link,
        prediction=prediction,
    )


def _imported(
    path: str | Path, batch_size: int | None, gradient_bytes: float | None
) -> ImportedTrace:
    """A trace, with values that it lacks."""
    trace = import_trace(path)
    if trace.workload is None and (batch_size is not None or gradient_bytes is not None):
        given = trace.batch_size or batch_size
        trace = import_trace(path, batch_size=given, gradient_bytes=gradient_bytes)
    if trace.workload is None:
        raise InputError(f"{path}: no workload can be made: it lacks {trace.lacks}")
    return trace


def _among_all(traces: Sequence[ImportedTrace], workers: int) -> None:
    """Check that ranks exchange with all others, as data-parallel ones do."""
    for trace in traces:
        for one in trace.collectives:
            if one.bytes >= SMALL_BYTES and 1 < (one.ranks or workers) < workers:
                words = one.operation.replace("_", "-")
                raise InputError(
                    f"{trace.trace}: an {words} is among {one.ranks} of {workers} ranks, which "
                    "divide the model or shard it in groups: perfmodel what-if replays such traces"
                )


def _ordered(traces: Sequence[ImportedTrace]) -> list[ImportedTrace]:
    """Traces by rank; those that do not tell theirs take the free ones in order."""
    known = [trace.rank for trace in traces if trace.rank is not None]
    for trace in traces:
        if trace.rank is not None and known.count(trace.rank) > 1:
            raise InputError(f"{trace.trace}: two traces are of rank {trace.rank}")
    free = iter(rank for rank in range(len(traces) + len(known)) if rank not in known)
    ranked = [
        trace if trace.rank is not None else msgspec.structs.replace(trace, rank=next(free))
        for trace in traces
    ]
    return sorted(ranked, key=lambda trace: trace.rank or 0)


def _middle(values: Sequence[float]) -> int:
    """Place of the value nearest to the median, from below."""
    at = median(values)
    return min(range(len(values)), key=lambda k: (abs(values[k] - at), values[k]))


def _stragglers(
    traces: Sequence[ImportedTrace], compute_s: Sequence[float], middle_s: float
) -> tuple[Straggler, ...]:
    """Ranks that compute more or less than the middle one."""
    return tuple(
        Straggler(trace.rank or 0, seconds / middle_s)
        for trace, seconds in zip(traces, compute_s, strict=True)
        if abs(seconds / middle_s - 1.0) > SAME
    )


def link_of(ranks: Sequence[Sequence[TracedCollective]], workers: int) -> Link:
    """Bandwidth and latency of a ring's links from traced collectives.

    With *n* ranks an all-reduce of *S* bytes takes :math:`2 (n - 1) (S / (n B) + \\alpha)`, others
    half of that. If all ranks were traced, each collective takes as long as on the rank that waits
    least, and both values are fitted to relative errors. If not, any of them may have waited for a
    rank that is not there: then the fastest give the bandwidth, and the least that is left of any
    the latency.

    Parameters
    ----------
    ranks : the collectives of each traced rank, (ranks,) of (collectives,).
    workers : ranks of a collective that does not tell.

    Raises
    ------
    InputError : there are no collectives of known size among several ranks.
    """
    alike = len({tuple((c.operation, c.bytes) for c in rank) for rank in ranks}) == 1
    together = alike and len(ranks) >= workers
    told = (
        [
            msgspec.structs.replace(same[0], seconds=min(c.seconds for c in same))
            for same in zip(*ranks, strict=True)
        ]
        if together
        else [c for rank in ranks for c in rank]
    )
    told = [c for c in told if (c.ranks or workers) > 1 and c.bytes > 0.0]
    if not told:
        if any(ranks) and workers < 2:
            raise InputError(
                "traces: they do not tell how many ranks the job had: give all of them, or "
                "--traced-ranks (workers)"
            )
        raise InputError(
            "traces: no collectives of known size; give the links of the job with --cluster or "
            "--bandwidth, or trace with record_shapes=True"
        )
    counts = np.array([c.ranks or workers for c in told], dtype=float)
    steps = np.array([STEPS[c.operation] for c in told]) * (counts - 1.0)
    per_step = np.array([c.bytes for c in told]) / counts
    step_s = np.array([c.seconds for c in told]) / steps
    fastest = float(np.min(step_s / per_step))
    if not together:
        return Link(1.0 / fastest, max(float(np.min(step_s - per_step * fastest)), 0.0))
    from scipy.optimize import nnls

    (per_byte_s, latency_s), _ = nnls(
        np.stack([per_step, np.ones(len(told))], axis=1) / step_s[:, None], np.ones(len(told))
    )
    return Link(1.0 / float(per_byte_s or fastest), float(latency_s))


def _cluster(link: Link) -> Cluster:
    return Cluster(
        name="traced",
        nic=link,
        losses="none",
        source=Source("measured", "fitted to the collectives of traces, a link for each rank"),
    )


def _architecture(collectives: Sequence[TracedCollective], steps: int) -> Mapping[str, object]:
    """Architecture and buckets that the collectives of a rank show."""
    names = {c.operation for c in collectives}
    if "all_gather" in names and "all_reduce" not in names:
        return {"arch": "fsdp"}
    per_step, remainder = divmod(len(collectives), max(steps, 1))
    sizes = [c.bytes for c in collectives[:per_step]]
    repeated = not remainder and all(
        [c.bytes for c in collectives[k : k + per_step]] == sizes
        for k in range(0, len(collectives), per_step or 1)
    )
    if not repeated or len(sizes) < 2:
        return {"arch": "ddp"}
    cap = min(sizes[1:-1], default=max(DDP_BUCKET_BYTES, sizes[-1]))
    return {"arch": "ddp", "options": {"first_bucket_bytes": sizes[0], "bucket_cap_bytes": cap}}
