"""The bottleneck of a simulated job, described in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from perfmodel.communication.words import ACTIVITIES, OWNERS, TOGETHER
from perfmodel.engine.measures import CriticalOp, Measures
from perfmodel.graph.op_graph import SPENT, OpGraph, OpUse
from perfmodel.predicting.coarse import SHOWN_SHARE
from perfmodel.results.prediction import Bottleneck, CriticalStep

LATENCY = "latency"

DEVICES = "device of"
"""Label of devices, each of a worker or of a stage of it."""

_WHOLE = {name: name for name in (*TOGETHER.values(), *SPENT)}
_WHOLE |= {DEVICES: "computation on the workers' devices", LATENCY: "message latency"}
"""Words for what takes time on the critical path, whichever resource it is on."""


def bottleneck(graph: OpGraph, measures: Measures) -> Bottleneck:
    """Find the kind of resource that takes most of the critical path, and its busiest member.

    The critical path leads back from the end of an iteration through the event that let each op
    start: its last input, or the release of its slot. A transfer counts towards the busiest link
    on its route; fixed delays per message count as latency, unless they are known to be spent on
    something else. Of computation in a pipeline, the stage that takes most is named.
    """
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    stages: dict[str, float] = defaultdict(float)
    critical = list(_critical_ops(measures))
    known = graph.uses([op for op, _, _ in critical], measures.link_utilisation)
    several = len({block.part for block in graph.slots if block.label == DEVICES}) > 1
    for op, total, count in critical:
        use = known[op]
        fixed_s = min(total, use.fixed_s * count)
        if total > fixed_s:
            family = TOGETHER.get(use.operation, use.family) or _fixed(use)[0][0]
            member = use.resource if family == use.family else ""
            seconds[family][member or f"{family}{_owners(family)}"] += total - fixed_s
            if several and family == DEVICES:
                stages[use.part] += total - fixed_s
        for name, part in _fixed(use) if fixed_s > 0.0 else ():
            seconds[name][name] += part * fixed_s
    totals = {family: sum(members.values()) for family, members in seconds.items()}
    if not totals:
        return Bottleneck("none", 0.0, "nothing takes time", {}, ())
    whole_s = sum(totals.values())
    ranked = sorted(totals, key=lambda name: -totals[name])
    shares = {name: totals[name] / whole_s for name in ranked}
    family = ranked[0]
    member, most = max(seconds[family].items(), key=lambda item: item[1])
    resource = member if most > 0.5 * totals[family] else f"{family}{_owners(family)}"
    text = _words(family, resource, shares)
    if family == DEVICES and stages:
        text = _of_stages({name: part_s / whole_s for name, part_s in stages.items()}, shares)
    return Bottleneck(resource, shares[family], text, shares, _steps(graph, known, measures))


def _critical_ops(measures: Measures) -> Iterator[tuple[int, float, float]]:
    """Yield the ops of the critical cycle, or of the average path: id, seconds, count."""
    if measures.critical_cycle:
        for step in measures.critical_cycle:
            yield step.op, step.seconds, float(step.count)
    else:
        for op in np.flatnonzero(measures.critical_s).tolist():
            yield op, float(measures.critical_s[op]), float(measures.critical_count[op])


def _steps(
    graph: OpGraph, known: Mapping[int, OpUse], measures: Measures
) -> tuple[CriticalStep, ...]:
    """Return the critical cycle, with consecutive ops on one resource merged."""
    rows: list[tuple[OpUse, list[CriticalOp]]] = []
    for part in measures.critical_cycle:
        use = known[part.op]
        last = rows[-1][0] if rows else None
        if last and (last.operation, last.resource) == (use.operation, use.resource):
            rows[-1][1].append(part)
        elif part.seconds > 0.0:
            rows.append((use, [part]))
    return tuple(
        CriticalStep(
            operation=use.operation,
            resource=use.resource or _fixed(use)[0][0],
            first=graph.op_name(parts[0].op),
            last=graph.op_name(parts[-1].op),
            count=sum(part.count for part in parts),
            seconds=sum(part.seconds for part in parts),
            waited=parts[0].waited,
        )
        for use, parts in rows
    )


def _fixed(use: OpUse) -> list[tuple[str, float]]:
    """Return what the fixed time of an op is spent on, in fractions, largest first."""
    latency = TOGETHER.get(use.operation, LATENCY)
    return [(name or latency, part) for name, part in use.fixed_for]


def _owners(family: str) -> str:
    """Return the owners of all resources of a family, if its label asks for them."""
    if not family.endswith((" of", " into", " inside")):
        return ""
    return " the " + next(OWNERS[start] for start in OWNERS if family.startswith(start))


def _of_stages(stages: Mapping[str, float], shares: Mapping[str, float]) -> str:
    """Say which stage's computation takes most of the critical path, given each stage's share."""
    name, most = max(stages.items(), key=lambda item: item[1])
    both = " and " in name  # two copies of each are on the same devices
    name = name.replace("stage", "stages") if both else name
    text = f"computation on {name} takes {most:.0%} of the critical path"
    rest = shares[DEVICES] - most
    if rest >= SHOWN_SHARE:
        others = "the other stage" if len(stages) == 2 and not both else "other stages"
        text += f", and {rest:.0%} on {others}"
    return text + _next(DEVICES, shares)


def _words(family: str, resource: str, shares: Mapping[str, float]) -> str:
    what = _WHOLE.get(family, f"work on the {resource}")
    if "link" in family or family == "core":
        verb = ACTIVITIES.get(family, "sending").partition(" ")[0]
        what = f"{verb} over the {resource}"
    takes = "take" if what.partition(" ")[0].endswith("s") else "takes"
    return f"{what} {takes} {shares[family]:.0%} of the critical path{_next(family, shares)}"


def _next(family: str, shares: Mapping[str, float]) -> str:
    """Name the kind of resource that takes most of the rest, if it is worth it."""
    second = next((name for name in shares if name != family), None)
    if second is not None and shares[second] >= SHOWN_SHARE:
        name = ACTIVITIES.get(second, second.removesuffix(" of"))
        return f"; next: {name} ({shares[second]:.0%})"
    return ""
