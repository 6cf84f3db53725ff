"""``perfmodel measure network``: network performance between processes on its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli import rendezvous, types
from perfmodel.cli.options import Outputs, option, outputs, progress
from perfmodel.cli.types import NUMBER, SECONDS, SIZE, TEXT, WHOLE, Several
from perfmodel.cli.verbosity import remark

if TYPE_CHECKING:
    from perfmodel.measuring.measurements import Measurement, Measurements

SIZES = Several(SIZE, always=True)


@click.command("network")
@rendezvous.PROCESSES
@option("--output", types.OUTPUT, "Measurement file, written by rank 0.", required=True)
@outputs("plot")
@option("--backend", types.BACKEND, "Backend.", default="gloo")
@option("--operations", Several(TEXT, always=True), "ping_pong, all_reduce, ...  [default: all]")
@option("--sizes", SIZES, "Sizes, such as 1KB,64KB,1MB.  [default: 4 B to 67 MB]")
@option("--repetitions", WHOLE, "Most repetitions of each size.", default=20)
@option("--seconds", NUMBER, "Approximate time of all measurements.", default=20, metavar="S")
@option("--pause", types.time("100ms"), "Idle time before each repetition.", name="pause_s")
@option("--timeout", SECONDS, "Longest wait for other ranks.", name="timeout_s", default="60s")
def network(
    processes: int | None,
    output: str,
    sizes: list[float] | None,
    operations: list[str] | None,
    pause_s: float | None,
    out: Outputs,
    **values: Any,
) -> None:
    """Measure a network between processes, with torch.distributed.

    On one machine --processes starts them; on several machines torchrun does.

    \b
    perfmodel measure network --processes 2 --output network.json
    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 \\
        -m perfmodel measure network --output network.json
    """
    from pathlib import Path

    from perfmodel.base import files
    from perfmodel.measuring.network.measure import NetworkPlan, measure, to_json

    plan = NetworkPlan(
        sizes_bytes=None if sizes is None else tuple(sizes),
        operations=None if operations is None else tuple(operations),
        pause_s=pause_s or 0.0,
        **values,
    )
    out.check(output)
    place = rendezvous.place_or_launch(processes)
    name = "network" if output == files.STDOUT else Path(output).stem
    if place.rank:
        measure(plan, place)
        return
    notes: list[str] = []
    with progress() as advance:
        measured = measure(plan, place, name=name, say=notes.append, progress=advance)
    if measured is None:
        return
    _show(measured)
    for note in notes:
        remark(note)
    hint = f"; next: perfmodel calibrate network {output}"
    out.put(measured, [(output, to_json(measured), hint)])


def _show(measured: Measurements) -> None:
    """Print a line for each operation, size and number of ranks."""
    from perfmodel.cli.printing.console import print_table
    from perfmodel.cli.printing.text import show

    show(measured.source.text)
    heads = ("operation", "ranks", "bytes", "repetitions", "median", "fastest", "rate")
    print_table(heads, map(_cells, measured.measurements), justify="right")


def _cells(measurement: Measurement) -> tuple[str, ...]:
    from statistics import median

    from perfmodel.base.units import show

    middle_s = median(measurement.seconds)
    return (
        measurement.operation,
        str(measurement.ranks),
        show(measurement.bytes, "bytes"),
        str(len(measurement.seconds)),
        show(middle_s, "s"),
        show(min(measurement.seconds), "s"),
        show(measurement.bytes * measurement.count / middle_s, "bytes_per_s"),
    )
