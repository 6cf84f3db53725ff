"""``python -m benchmarks.engine [--quick] [--json] [--check]``: a table, growth, targets.

Each measurement runs in its own process and counts the CPU seconds of its thread; the best of
several runs counts, separately for building, simulating and memory. The simulators take turns, so a
slow moment of the machine affects all of them. Compiled code is loaded before the clock starts. The
ratio is the simulation time over that of perfmodel; the peak is that of the whole process. For
``predict`` the wall time counts. N is the number of workers, or of layers in ``ps_layers``; the
growth is the time per op as N grows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isnan, nan
from typing import Any

import click

from benchmarks.engine.measure import COMMAND, deviation, measure, missing, predict
from benchmarks.engine.targets import PREDICT, RACKS, Best, Runs, Target, errors, targets
from benchmarks.engine.tasks import TASKS

GRAPHS = ("perfmodel", "perfmodel-plain")
"""Simulators that build a graph of ops; the others know the task, or use another one's graph."""
QUICK = 64
"""Maximum number of workers of a quick run, unless one represents all."""

HEADER = (
    f"{'task':11} {'N':>4} {'ops':>7}  {'simulator':15} {'makespan':>15} {'error':>6}"
    f" {'build':>8} {'ops/s':>10} {'simulate':>9} {'ops/s':>10} {'ratio':>8} {'peak':>7}"
)


class Benchmark:
    """Runs measurements, and continues if one fails."""

    def __init__(self, runs: int, optim: str) -> None:
        self.runs, self.optim = runs, optim
        self.failed: list[str] = []

    def fails(self, what: str, reason: Exception) -> None:
        self.failed.append(what)
        click.echo(f"failed: {what}: {type(reason).__name__}: {reason}", err=True)

    def case(self, task: str, n: int, tools: Sequence[str]) -> Runs:
        """Return the best run of each tool; tools take turns."""
        best: Runs = {}
        left = list(tools)
        for _ in range(self.runs):
            for tool in tuple(left):
                try:
                    run = predict() if task == PREDICT else measure(tool, task, n, self.optim)
                except Exception as reason:
                    left.remove(tool)
                    self.fails(f"{task} {n} {tool}", reason)
                else:
                    known = best.get(tool, run)
                    best[tool] = replace(
                        run,
                        build_s=min(run.build_s, known.build_s),
                        simulate_s=min(run.simulate_s, known.simulate_s),
                        peak_mb=min(run.peak_mb, known.peak_mb),
                    )
        return best

    def deviation(self) -> float:
        """See :func:`benchmarks.engine.measure.deviation`; NaN if it cannot be measured."""
        try:
            return deviation(*RACKS)
        except Exception as reason:
            self.fails("the ends of racks", reason)
            return nan


def rows(task: str, n: int, runs: Runs) -> list[dict[str, Any]]:
    """Return the results of one task at one size, by simulator."""
    ops, wrong, found = TASKS[task].ops(n), errors(task, n, runs), []
    own = runs["perfmodel"].simulate_s if "perfmodel" in runs else nan
    for tool, run in runs.items():
        row = {"task": task, "n": n, "ops": ops, "simulator": tool, **asdict(run)}
        row["build_ops_per_s"] = ops / run.build_s if tool in GRAPHS else nan
        row["ops_per_s"] = ops / run.simulate_s
        found.append({**row, "error": wrong[tool], "ratio": run.simulate_s / own})
    return found


def line(row: dict[str, Any]) -> str:
    """Format a row."""

    def figure(name: str, form: str, unit: str, width: int) -> str:
        return f"{'-' if isnan(row[name]) else f'{row[name]:{form}}{unit}':>{width}}"

    return (
        f"{row['task']:11} {row['n']:4} {row['ops']:7}  {row['simulator']:15}"
        f" {figure('makespan_s', '.10f', ' s', 15)} {figure('error', '.0e', '', 6)}"
        f" {figure('build_s', '.3f', ' s', 8)} {figure('build_ops_per_s', ',.0f', '', 10)}"
        f" {figure('simulate_s', '.4f', ' s', 9)} {figure('ops_per_s', ',.0f', '', 10)}"
        f" {figure('ratio', '.2f', 'x', 8)} {figure('peak_mb', '.0f', ' MB', 7)}"
    )


def growth(task: str, best: Best) -> str:
    """Format the time per op as a task grows; empty if only one size was measured."""
    found = [
        f"{n:>6}: {runs['perfmodel'].simulate_s / TASKS[task].ops(n) * 1e9:4.0f} ns/op"
        for (name, n), runs in best.items()
        if name == task and "perfmodel" in runs
    ]
    return f"{task:11} {' '.join(found)}" if len(found) > 1 else ""


def verdict(target: Target) -> str:
    """Format a target."""
    met = {True: "met", False: "MISSED", None: "not measured"}[target.met]
    measured = "-" if target.met is None else f"{target.measured:.3g}"
    return f"{target.text:54} {measured:>8}  {target.relation} {target.bound:<6g}  {met}"


def without_nan(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the value for JSON, which has no NaN."""
    return {k: None if isinstance(v, float) and isnan(v) else v for k, v in fields.items()}


def numbers(_: click.Context, __: click.Parameter, text: str | None) -> set[int]:
    try:
        return {int(word) for word in text.split(",")} if text else set()
    except ValueError:
        raise click.BadParameter("expected whole numbers, such as 8,64") from None


@click.command()
@click.option(
    "--task",
    "only",
    multiple=True,
    type=click.Choice([*TASKS, PREDICT]),
    help="Run only this one; repeatable.",
)
@click.option("--workers", metavar="N,N", callback=numbers, help="Use only these sizes of a task.")
@click.option("--quick", is_flag=True, help="Use only sizes that take seconds; skips some targets.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--simgrid",
    "optim",
    type=click.Choice(["Full", "Lazy"]),
    default="Full",
    show_default=True,
    help="How SimGrid updates its transfers; Full is faster on these tasks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Exit with status 1 if a target is missed.")
def main(
    only: tuple[str, ...],
    workers: set[int],
    quick: bool,
    runs: int,
    optim: str,
    as_json: bool,
    check: bool,
) -> None:
    """Compare the engine with other simulators; print a line for each, and the targets."""

    def say(text: str) -> None:
        if not as_json:
            click.echo(text)

    bench, absent = Benchmark(runs, optim), missing()
    for tool, reason in absent.items():
        say(f"without {tool}: {reason}")
    wanted = only or (*TASKS, PREDICT)
    cases = [
        (name, n)
        for name, task in TASKS.items()
        for n in task.sizes
        if name in wanted and (not workers or n in workers)
        if not quick or n <= QUICK or len(task.sizes) == 1
    ]
    whole = PREDICT in wanted and not workers
    if not cases and not whole:
        raise click.UsageError("no task has one of these sizes")
    best: Best = {}
    table = []
    say(HEADER)
    for name, n in cases:
        largest = TASKS[name].largest
        tools = [tool for tool, most in largest.items() if n <= most and tool not in absent]
        best[name, n] = bench.case(name, n, tools)
        for row in rows(name, n, best[name, n]):
            table.append(row)
            say(line(row))
    if whole:
        best[PREDICT, 64] = bench.case(PREDICT, 64, ["perfmodel"])
        for run in best[PREDICT, 64].values():
            say(f"perfmodel {' '.join(COMMAND)}: {run.simulate_s:.2f} s, {run.peak_mb:.0f} MB")
    grown = [text for name in ("ps_iter", "ps_layers") if (text := growth(name, best))]
    if grown:
        say("\ngrowth with N")
    for text in grown:
        say(text)
    far = bench.deviation() if RACKS in best and "simgrid" not in absent else nan
    verdicts = targets(best, far)
    say("\ntargets")
    for target in verdicts:
        say(verdict(target))
    if as_json:
        found = [without_nan({**asdict(target), "met": target.met}) for target in verdicts]
        document = {"rows": [without_nan(row) for row in table], "targets": found}
        click.echo(json.dumps({**document, "absent": absent, "failed": bench.failed}, indent=2))
    if check and (bench.failed or any(target.met is False for target in verdicts)):
        sys.exit(1)


if __name__ == "__main__":
    main()
