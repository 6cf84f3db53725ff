"""Schedules by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from perfmodel.base.errors import InputError, spelling, suggestion, unknown_name
from perfmodel.pipelines.actions import Schedule
from perfmodel.pipelines.dual import dualpipe, dualpipe_v
from perfmodel.pipelines.orders import (
    gpipe,
    interleaved_1f1b,
    looped_bfs,
    one_forward_one_backward,
    pipedream,
    pipedream_2bw,
)
from perfmodel.pipelines.zero_bubble import interleaved_zb, zb_h1, zb_h2, zb_v

SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved_1f1b,
    "looped_bfs": looped_bfs,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "interleaved_zb": interleaved_zb,
    "zb_v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
    "pipedream": pipedream,
    "pipedream_2bw": pipedream_2bw,
}
"""Functions that make them, from the numbers of ranks and micro-batches."""

ALIASES: Mapping[str, str] = {
    "one_forward_one_backward": "1f1b",
    "pipedream_flush": "1f1b",
    "dapple": "1f1b",
    "interleaved": "interleaved_1f1b",
    "vpp": "interleaved_1f1b",
    "breadth_first": "looped_bfs",
    "bfs": "looped_bfs",
    "zb1p": "zb_h1",
    "interleaved_zero_bubble": "interleaved_zb",
    "zbv_zero_bubble": "zb_v",
    "2bw": "pipedream_2bw",
}
"""Other names that papers and frameworks use, PyTorch's also with ``Schedule`` before."""


def names() -> tuple[str, ...]:
    """Return the names of all schedules."""
    return tuple(SCHEDULES)


def canonical(name: str) -> str:
    """Return the name of a schedule that may be spelled in another way.

    >>> canonical("ScheduleInterleaved1F1B"), canonical("ZB-H1"), canonical("DAPPLE")
    ('interleaved_1f1b', 'zb_h1', '1f1b')

    Raises
    ------
    InputError : there is none; the text lists all, and suggests the nearest.
    """
    spellings = {spelling(known): known for known in SCHEDULES}
    spellings |= {spelling(alias): known for alias, known in ALIASES.items()}
    word = spelling(name)
    known_name = spellings.get(word) or spellings.get(word.removeprefix("schedule"))
    if known_name is None:
        raise unknown_name("pipeline schedule", name, SCHEDULES)
    return known_name


def schedule(name: str, ranks: int, micro_batches: int, **options: int | None) -> Schedule:
    """Return a schedule by its name.

    ``chunks`` is the number of stages that each rank holds, for schedules with several (2 by
    default). Others options are those of the functions in :data:`SCHEDULES`: ``group`` of
    ``interleaved_1f1b``, and ``batch`` of ``pipedream_2bw``.

    >>> schedule("gpipe", 2, 3)
    Schedule('gpipe', 2 ranks, 2 stages, 3 micro-batches)

    Raises
    ------
    InputError : no such schedule or option, or numbers that the schedule cannot have; the text says
        which are possible.
    """
    known = canonical(name)
    make = SCHEDULES[known]
    allowed = list(inspect.signature(make).parameters)[2:]
    for option, value in options.items():
        if option == "chunks" and value == 1 and option not in allowed:
            continue
        if option == "chunks" and option not in allowed:
            several = ", ".join(n for n, f in SCHEDULES.items() if "chunks" in f.__annotations__)
            raise InputError(
                f"chunks: {known} has one stage a rank, got {value!r} (with more: {several})"
            )
        if option not in allowed:
            choices = ", ".join(allowed) or "none"
            hint = suggestion(option, allowed)
            raise InputError(f"{known} has no option {option!r}{hint} (allowed: {choices})")
    return make(ranks, micro_batches, **{o: v for o, v in options.items() if o in allowed})
