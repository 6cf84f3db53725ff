"""``perfmodel measure network``: network performance between processes on its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli import rendezvous
from perfmodel.cli.options import (
    check_files,
    drawn,
    items,
    progress,
    read_quantity,
    remark,
    write_files,
)

if TYPE_CHECKING:
    from perfmodel.measuring.measurements import Measurement, Measurements


@click.command("network")
@rendezvous.PROCESSES
@click.option(
    "--output", metavar="FILE", required=True, help="Measurement file, written by rank 0."
)
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@click.option("--backend", default="gloo", metavar="gloo|nccl", help="Backend.  [default: gloo]")
@click.option("--operations", metavar="LIST", help="Such as ping_pong,all_reduce.  [default: all]")
@click.option("--sizes", metavar="LIST", help="Such as 1KB,64KB,1MB.  [default: 4 B to 67 MB]")
@click.option(
    "--repetitions",
    type=int,
    default=20,
    metavar="N",
    help="Most repetitions of each size.  [default: 20]",
)
@click.option(
    "--seconds",
    type=float,
    default=20.0,
    metavar="S",
    help="Approximate time of all measurements.  [default: 20]",
)
@click.option("--pause", metavar="TIME", help="Idle time before each repetition, such as 100ms.")
@click.option(
    "--timeout",
    type=float,
    default=60.0,
    metavar="S",
    help="How long to wait for other ranks.  [default: 60]",
)
def network(
    processes: int | None, output: str, plot: str | None, sizes: str | None,
    operations: str | None, pause: str | None, timeout: float, **values: Any,
) -> None:  # fmt: skip
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

    read = read_quantity("bytes")
    plan = NetworkPlan(
        sizes_bytes=None if sizes is None else _listed(items(sizes, "--sizes", read)),
        operations=None if operations is None else _listed(items(operations, "--operations")),
        pause_s=0.0 if pause is None else read_quantity("s")(pause, "--pause"),
        timeout_s=timeout,
        **values,
    )
    check_files(plot, output)
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
    _table(measured)
    for note in notes:
        remark(note)
    written = (output, to_json(measured), f"; next: perfmodel calibrate network {output}")
    write_files([written, *drawn(measured, plot)])


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _table(measured: Measurements) -> None:
    """A line for each operation, size and number of ranks."""
    from perfmodel.cli.printing.console import new_console, new_table
    from perfmodel.cli.printing.text import show

    show(measured.source.text)
    heads = ("operation", "ranks", "bytes", "repetitions", "median", "fastest", "rate")
    table = new_table(*heads)
    for column in table.columns[1:]:
        column.justify = "right"
    for measurement in measured.measurements:
        table.add_row(*_cells(measurement))
    new_console().print(table)


def _cells(one: Measurement) -> tuple[str, ...]:
    from statistics import median

    from perfmodel.base.units import show

    middle_s = median(one.seconds)
    return (
        one.operation,
        str(one.ranks),
        show(one.bytes, "bytes"),
        str(len(one.seconds)),
        show(middle_s, "s"),
        show(min(one.seconds), "s"),
        show(one.bytes * one.count / middle_s, "bytes_per_s"),
    )
