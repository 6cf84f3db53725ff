"""Reads the output of nccl-tests, such as ``all_reduce_perf``.

It lists the devices of the ranks, and then, by size, the times of a collective out of place and in
place. The output of several runs may follow each other. Sizes are counted as in
:class:`perfmodel.measuring.measurements.Measurement`. See https://github.com/NVIDIA/nccl-tests
(``src/common.cu`` and ``doc/PERFORMANCE.md``).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.measuring.measurements import COLLECTIVES, Measurement, Measurements, Operation
from perfmodel.measuring.outputs.lines import OutputLine, measured, numbered

_NAME = re.compile(r"\b(\w+?)_perf\b")
_BEGIN = re.compile(r"#\s*nThread\s")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
_HEADER = re.compile(r"#\s+size\s+count\s")

TIMES = ("time", "algbw", "busbw")
"""Columns of the times out of place, and again of those in place; a count of errors follows."""

SPELLED = {"alltoall": "all_to_all"}
"""Names of tests that differ from those of operations."""

CLOSE = 0.02
"""Relative error within which a printed bandwidth equals another: it has three digits."""


class _TestRun(msgspec.Struct):
    """The lines of one run: its test, the hosts by rank, the columns, and the rows."""

    test: str = ""
    hosts: dict[int, str] = {}
    columns: tuple[str, ...] = ()
    rows: list[OutputLine] = []


def parse(text: str, name: str) -> Measurements:
    """Make measurements of the output of nccl-tests; ``name`` is the file's.

    Each time is a repetition: out of place and in place, both means over the iterations of a run.
    """
    runs = [run for run in _runs(text, name) if run.rows]
    if not runs:
        raise InputError(f"{name}: the output of nccl-tests has no times; is it cut?")
    known = _NAME.search(Path(name).name)
    measurements = [m for run in runs for m in _measurements(run, name, known[1] if known else "")]
    hosts = max((run.hosts for run in runs), key=len)
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts[r] for r in sorted(hosts)))}
    nodes = tuple(numbers[hosts[rank]] for rank in sorted(hosts))
    return measured(name, "nccl", "nccl-tests,", measurements, nodes=nodes)


def _runs(text: str, name: str) -> list[_TestRun]:
    """Return the runs of an output, in their order."""
    runs = [_TestRun()]
    for line in numbered(text, name):
        if _BEGIN.match(line.text) and (runs[-1].hosts or runs[-1].rows):
            runs.append(_TestRun())
        run = runs[-1]
        if named := _NAME.search(line.text):
            if run.rows:
                runs.append(run := _TestRun())
            run.test = named[1]
        if rank := _RANK.match(line.text):
            run.hosts = {**run.hosts, int(rank[1]): rank[2]}
        elif _HEADER.match(line.text):
            run.columns = tuple(line.text.lstrip("# ").split())
        elif re.match(r"\d+\s+\d+\s", line.text):
            run.rows.append(line)
    return runs


def _measurements(run: _TestRun, name: str, test: str) -> list[Measurement]:
    """Return a measurement for each row of a run; ``test`` is its name if the output lacks it."""
    place = run.rows[0].place
    if len(run.hosts) < 2:
        raise InputError(
            f"{place}: the output of nccl-tests names {len(run.hosts)} ranks (lines '# Rank ...'); "
            "expected at least 2: keep the lines above the table"
        )
    names = run.columns
    timed = len(names) - names.index("time") if "time" in names else 0  # from the first time on
    if names[-timed : -timed // 2][:3] != TIMES or names[-timed // 2 :][:3] != TIMES:
        raise InputError(
            f"{place}: the output of nccl-tests has no header (a line '# size count ...') above "
            "its table; is it cut?"
        )
    for row in run.rows:
        if len(row.cells) < timed + 2:
            raise row.unexpected(f"{len(names)} columns")
    operation = _operation(run, run.test or test, timed, name)
    measurements = []
    for row in run.rows:
        times = (row.cells[-timed], row.cells[-timed // 2])
        seconds = tuple(s for cell in times if (s := _number(cell) * 1e-6) > 0.0)
        if not seconds:
            raise row.unexpected("a time in microseconds")
        size, ranks = float(row.cells[0]), len(run.hosts)
        measurements.append(
            Measurement(operation=operation, bytes=size, ranks=ranks, seconds=seconds)
        )
    return measurements


def _operation(run: _TestRun, test: str, timed: int, name: str) -> Operation:
    """Return the operation of a run, from its name or else from its columns."""
    if not test:
        test = _test_of_columns(run, timed)
    if not test:
        raise InputError(
            f"{name}: the columns do not tell which test of nccl-tests it is: write its name into "
            "the first line, such as '# all_gather_perf'"
        )
    test = SPELLED.get(test, test)
    if test not in COLLECTIVES:
        raise InputError(
            f"{name}: {test}_perf of nccl-tests is not a collective of clusters "
            f"(known: {', '.join(COLLECTIVES)})"
        )
    return test


def _test_of_columns(run: _TestRun, timed: int) -> str:
    """Return the test that fits the columns; "" if several do.

    The ratio of bus to algorithm bandwidth is 2(n-1)/n for an all-reduce among n ranks, (n-1)/n for
    a reduce-scatter, an all-gather or an all-to-all, and 1 for those with a root.
    """
    n = len(run.hosts)
    row = max((row.cells for row in run.rows), key=lambda row: _number(row[-timed + 1]))
    cells = dict(zip(run.columns, row, strict=False))
    ratio = _number(row[-timed + 2]) / max(_number(row[-timed + 1]), 1e-12)
    if cells.get("root", "-1") != "-1":
        return "broadcast" if cells.get("redop") == "none" else "reduce"
    if cells.get("redop", "none") == "none":
        return ""
    expected = {"all_reduce": 2 * (n - 1) / n, "reduce_scatter": (n - 1) / n}
    return next((o for o, r in expected.items() if abs(ratio / r - 1.0) < CLOSE), "")


def _number(cell: str) -> float:
    """Return a cell as a number; 0 for others, such as N/A."""
    try:
        return float(cell)
    except ValueError:
        return 0.0
