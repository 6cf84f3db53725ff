"""``python -m benchmarks.startup [--runs N] [--python PATH]``: measure how long commands take.

It times whole processes, from start to exit, and compares each with importing the packages that it
needs: the help loads Click, a prediction NumPy too. So both do work of one kind, and their ratio
depends little on the machine; NumPy loads large libraries, where Click loads many small modules.
The commands take turns, so a slow moment of the machine affects all of them; the first turn is a
warm-up and does not count. The shortest time of all turns counts, since load only adds; a missed
target is measured again, up to three times in all. Before that, one large job is simulated as the
first action of an installation, and repeated: nothing may be left to compile. With ``--check``, a
missed target sets the exit status.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from time import perf_counter

import click

JOB = ("predict", "--model", "resnet18", "--arch", "ps", "--workers", "8")
LARGE_JOB = (
    *("predict", "--model", "resnet50", "--arch", "ps", "--sync", "asp", "--workers", "64"),
    *("--jitter", "0.05", "--rel-ci", "1%"),
)
MOST_FIRST = 2.5
"""Target for the time of the first large job, as a multiple of later ones."""
TRIES = 3
"""How often a target is measured before it counts as missed."""
MOST_HELP = 1.2
"""Target for the help, as a multiple of importing Click."""
MOST_PREDICTION = 1.75
"""Target for a prediction, as a multiple of importing Click and NumPy."""


def command(python: str) -> tuple[str, ...]:
    """Return the command of an interpreter's installed ``perfmodel``, else of the module."""
    script = shutil.which("perfmodel", path=str(Path(python).parent))
    return (script,) if script else (python, "-m", "perfmodel")


def seconds(words: tuple[str, ...]) -> float:
    """Return the wall time of one process."""
    start = perf_counter()
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - start


def measure(commands: Iterable[tuple[str, ...]], runs: int) -> list[tuple[float, ...]]:
    """Return the wall times of the commands in each turn."""
    return [tuple(map(seconds, commands)) for _ in range(runs + 1)][1:]


@click.command()
@click.option("--runs", type=click.IntRange(min=11), default=21, show_default=True)
@click.option("--python", default=sys.executable, help="Interpreter of another installation.")
@click.option("--check", is_flag=True, help="Exit with 1 if a target is missed.")
def main(runs: int, python: str, check: bool) -> None:
    """Print the times, their ratios to ``import numpy``, and the targets."""
    tool = command(python)
    first, *later = (seconds((*tool, *LARGE_JOB)) for _ in range(4))
    ratio = first / median(later)
    click.echo(
        f"perfmodel {' '.join(LARGE_JOB)}\n"
        f"the first time {first:.2f} s, {ratio:.2f}x of later times (target {MOST_FIRST}x)\n"
    )
    help_page, prediction = (*tool, "--help"), (*tool, *JOB)
    compared = (
        (help_page, (python, "-c", "import click"), MOST_HELP),
        (prediction, (python, "-c", "import click, numpy"), MOST_PREDICTION),
    )
    missed = ratio > MOST_FIRST
    width = len(" ".join(("perfmodel", *JOB)))
    click.echo(f"{f'shortest of {runs} runs':{width}}  {'time':>8}  {'ratio':>6}  {'target':>6}")
    for words, reference, target in compared:
        multiple, tries = math.inf, 0
        while multiple > target and tries < TRIES:
            reference_s, taken_s = map(min, zip(*measure((reference, words), runs), strict=True))
            multiple, tries = taken_s / reference_s, tries + 1
        name = " ".join(("perfmodel", *words[len(tool) :]))
        click.echo(f"{f'python -c {reference[-1]!r}':{width}}  {reference_s * 1e3:5.0f} ms")
        click.echo(f"{name:{width}}  {taken_s * 1e3:5.0f} ms  {multiple:5.2f}x  {target:5.2f}x")
        missed |= multiple > target
    sys.exit(int(check and missed))


if __name__ == "__main__":
    main()
