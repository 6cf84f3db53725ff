"""What an explanation says, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.studies.crossovers import RANGES, WHOLE, Crossover, Explanation, value_of


def words(found: Explanation, job: Job, others: Sequence[Crossover] = ()) -> list[str]:
    """Write an explanation as sentences."""
    share = found.phases_s.get(found.rules, 0.0) / found.iteration_s
    lines = [
        f"{found.rules} dominates: {show(found.phases_s.get(found.rules, 0.0), 's')} of "
        f"{show(found.iteration_s, 's')} per iteration ({share:.0%})"
    ]
    lines += [*_ranges(found.crossovers, "dominates", job), *_ranges(others, "is faster", job)]
    for s in found.saturations:
        lines.append(f"{s.resource}: saturated from {s.workers:.3g} workers up")
    return lines


def _ranges(crossovers: Sequence[Crossover], verb: str, job: Job) -> list[str]:
    """Describe for each variable what dominates, from its smallest value to its largest."""
    lines = []
    for variable in RANGES:
        mine = [c for c in crossovers if c.variable == variable]
        if not mine:
            continue
        text = f"{mine[0].below} {verb} below {_shown(variable, mine[0].value)}"
        for c in mine:
            text += f", {c.above} from {_shown(variable, c.value)} up"
        word = variable.removesuffix("_bytes_per_s").replace("_", " ")
        solved = "; ".join(c.formula for c in mine if c.formula)
        now = f"(now {_shown(variable, value_of(job, variable))})"
        lines.append(f"{word}: {text} {now}" + (f"; {solved}" if solved else ""))
    return lines


def _shown(variable: str, value: float) -> str:
    return f"{value:.0f}" if variable in WHOLE else show(value, "bytes_per_s")
