"""``python -m benchmarks.startup [--runs N]``: how long commands take, beside importing numpy.

Whole processes are timed, from start to exit. The commands take turns, so that a slow moment of
the machine meets all of them; the first turn is a warm-up and does not count.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import click

JOB = ("predict", "--model", "resnet18", "--arch", "ps", "--workers", "8")


def command() -> tuple[str, ...]:
    """The installed ``perfmodel`` of this interpreter, else the module."""
    script = shutil.which("perfmodel", path=str(Path(sys.executable).parent))
    return (script,) if script else (sys.executable, "-m", "perfmodel")


def seconds(words: tuple[str, ...]) -> float:
    """Wall time of one process."""
    start = perf_counter()
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - start


def measure(commands: dict[str, tuple[str, ...]], runs: int) -> dict[str, float]:
    """Median wall time of each command."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, words in commands.items():
            taken = seconds(words)
            if turn:
                times[name].append(taken)
    return {name: median(values) for name, values in times.items()}


@click.command()
@click.option("--runs", type=click.IntRange(min=11), default=21, show_default=True)
def main(runs: int) -> None:
    """Print the medians, and their ratios to ``import numpy`` beside the targets."""
    tool = command()
    commands = {
        'python -c "import numpy"': (sys.executable, "-c", "import numpy"),
        "perfmodel --help": (*tool, "--help"),
        " ".join(("perfmodel", *JOB)): (*tool, *JOB),
    }
    targets = (None, 0.6, 1.7)
    medians = measure(commands, runs)
    base, *_ = medians.values()
    width = max(map(len, commands))
    click.echo(f"{f'median of {runs} runs':{width}}  {'time':>8}  {'ratio':>6}  {'target':>6}")
    for (name, taken), target in zip(medians.items(), targets, strict=True):
        line = f"{name:{width}}  {taken * 1e3:5.0f} ms"
        if target is not None:
            line += f"  {taken / base:5.2f}x  {target:5.1f}x"
        click.echo(line)


if __name__ == "__main__":
    main()
