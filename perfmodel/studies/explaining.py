"""What an explanation says, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.studies.crossovers import FOR_REPLICAS, Crossover, Explanation
from perfmodel.studies.variables import argument


def words(explanation: Explanation, job: Job, others: Sequence[Crossover] = ()) -> list[str]:
    """Write an explanation as sentences."""
    longest_s = explanation.phases_s.get(explanation.rules, 0.0)
    lines = [
        f"{explanation.rules} dominates: {show(longest_s, 's')} of "
        f"{show(explanation.iteration_s, 's')} per iteration "
        f"({longest_s / explanation.iteration_s:.0%})",
        *_ranges(explanation.crossovers, "dominates", job),
        *_ranges(others, "is faster", job),
    ]
    for s in explanation.saturations:
        lines.append(f"{s.resource}: saturated from {s.workers:.3g} workers up")
    return lines


def _ranges(crossovers: Sequence[Crossover], verb: str, job: Job) -> list[str]:
    """Describe for each variable what dominates, from its smallest value to its largest."""
    lines = []
    for name in FOR_REPLICAS:
        along = [c for c in crossovers if c.variable == name]
        if not along:
            continue
        variable = argument(name, job)
        text = f"{along[0].below} {verb} below {variable.shown(along[0].value)}"
        for c in along:
            text += f", {c.above} from {variable.shown(c.value)} up"
        solved = "; ".join(c.formula for c in along if c.formula)
        now = f"(now {variable.shown(variable.value_in(job, job))})"
        lines.append(f"{variable.words}: {text} {now}" + (f"; {solved}" if solved else ""))
    return lines
