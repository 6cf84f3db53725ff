"""Schedules computed by rules alone, slowly: what the fast functions must equal."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from perfmodel.pipelines import Action, Schedule

Spans = dict[Action, tuple[float, float]]

OPTIONS: Mapping[str, Callable[[int, int], tuple[int, int]]] = {
    "dualpipe": lambda p, m: (2 * p, 4 * p + 2 * m),
    "dualpipe_v": lambda p, m: (p, 2 * p + m),
    "interleaved_1f1b": lambda p, m: (p, p * m),
    "interleaved_zb": lambda p, m: (p, p * m),
    "pipedream_2bw": lambda p, m: (p, p * m),
}
"""Ranks and micro-batches that a schedule can have, from any two numbers; others take any."""

SEVERAL = ("interleaved_1f1b", "looped_bfs", "interleaved_zb")
"""Schedules with any number of chunks."""


def source(action: Action, there: Container[Action], stages: int) -> Action | None:
    """The action whose result an action needs, by the rules of back-propagation, if so many stages
    have the actions that are ``there``."""
    kind, stage, micro_batch = action
    if kind == "W":
        return Action("I", stage, micro_batch)
    if kind == "F":
        return Action("F", stage - 1, micro_batch) if stage else None
    if stage == stages - 1:
        return Action("F", stage, micro_batch)
    whole = Action("B", stage + 1, micro_batch)
    return whole if whole in there else Action("I", stage + 1, micro_batch)


def simulated(
    schedule: Schedule,
    times: Mapping[str, list[float]],
    send_s: list[float],
    blocking: bool = False,
    overlap: float = 0.0,
) -> Spans:
    """Start and end of each action: ranks run what they can, over and over, until all is done."""
    orders = [list(schedule.order(rank)) for rank in range(schedule.ranks)]
    holder = {a: rank for rank, order in enumerate(orders) for a in order}
    sources = {a: source(a, holder, schedule.stages) for a in holder}
    flags = iter(schedule.joined.tolist())
    steps: list[list[list[Action]]] = []
    for order in orders:
        steps.append([])
        alone = True
        for action in order:
            if alone:
                steps[-1].append([action])
            else:
                steps[-1][-1].append(action)
            alone = not next(flags)

    def crossing(giver: Action, taker: Action) -> float:
        if holder[giver] == holder[taker]:
            return 0.0
        return send_s[min(giver.stage, taker.stage)]

    leaving: dict[Action, float] = {}
    for taker, giver in sources.items():
        if giver is not None:
            leaving[giver] = max(leaving.get(giver, 0.0), crossing(giver, taker))
    spans: Spans = {}
    moved = True
    while moved:
        moved = False
        for mine in steps:
            done = sum(step[0] in spans for step in mine)
            if done == len(mine):
                continue
            step = mine[done]
            needs = [(n, a) for a in step if (n := sources[a]) is not None]
            needs = [(n, a) for n, a in needs if n not in step]
            if any(n not in spans for n, _ in needs):
                continue
            start = 0.0
            if done:
                start = spans[mine[done - 1][0]][1]
            arrivals = [spans[n][1] + crossing(n, a) for n, a in needs]
            if blocking:
                before = [leaving.get(a, 0.0) for a in mine[done - 1]] if done else [0.0]
                start += max([*before, *(crossing(n, a) for n, a in needs)])
            start = max([start, *arrivals])
            seconds = [times[a.kind][a.stage] for a in step]
            cost = sum(seconds) - (overlap * min(seconds) if len(seconds) == 2 else 0.0)
            spans.update(dict.fromkeys(step, (start, start + cost)))
            moved = True
    assert len(spans) == len(schedule)
    return spans
