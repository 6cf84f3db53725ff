"""The reported runs as a table: each with its prediction, its interval and its bottleneck."""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks.accuracy.cases import about
from perfmodel import Prediction, predict
from perfmodel.validation import read_cases
from perfmodel.validation.cases import MeasuredJob

CASES = Path(__file__).with_name("cases.json")

FOUND: dict[str, str] = about("field").facts["bottlenecks"]
"""Links that a thread found to be the bottleneck, by the name of a case: a word in the name of
such a resource: ``inside`` a node, ``out`` of it, or any ``link``."""

NOTABLE = 0.05
"""Share of the critical path from which a link counts as named."""


def communication(prediction: Prediction) -> tuple[str, float]:
    """Return the kind of link with the largest share of the critical path, and that share."""
    shares = {kind: share for kind, share in prediction.bottleneck.shares.items() if "link" in kind}
    kind = max(shares, key=lambda name: shares[name], default="")
    return kind, shares.get(kind, 0.0)


def named(found: str, prediction: Prediction) -> bool:
    """Whether the prediction names the bottleneck that a thread found."""
    kind, share = communication(prediction)
    return found in kind and share >= NOTABLE


@functools.cache
def table() -> str:
    """Return the table in Markdown, made once."""
    heads = ["run", "thread", "devices", "measured", "predicted", "error", "90% interval", "inside",
             "largest share of a link", "found in the thread"]  # fmt: skip
    lines = [heads, ["---"] * len(heads), *(_row(one) for one in read_cases(CASES))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(one: MeasuredJob) -> list[str]:
    prediction = predict(one.job)
    measured_s = one.measured.step_s or 0.0
    low_s, high_s = prediction.interval.iteration_s
    kind, share = communication(prediction)
    found = FOUND.get(one.name, "")
    nodes = one.job.cluster.nodes_for(one.job.workers)
    verdict = {"": "", True: "named", False: "not named"}[found and named(found, prediction)]
    return [
        one.name,
        one.source.text,
        f"{one.job.workers} x {one.job.workload.device}, {nodes} node{'s' * (nodes > 1)}",
        f"{measured_s:.4g} s",
        f"{prediction.iteration_s:.4g} s",
        f"{prediction.iteration_s / measured_s - 1.0:+.1%}",
        f"{low_s:.3g} to {high_s:.3g} s",
        "yes" if low_s <= measured_s <= high_s else "no",
        f"{kind} {share:.0%}" if share > 0.0 else "",
        f"{found}: {verdict}" if found else "",
    ]
