"""``perfmodel measure network``: network performance between processes on its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli import rendezvous
from perfmodel.cli.options import (
    all_of,
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
@all_of(rendezvous.OPTIONS)
@click.option(
    "--output", metavar="FILE", required=True, help="Measurement file, written by rank 0."
)
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@click.option("--backend", default="tcp", metavar="NAME", help="tcp, gloo or nccl.  [default: tcp]")
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
    "--congestion",
    default="",
    metavar="NAME",
    help="TCP congestion control, such as cubic.  [default: the system's]",
)
@click.option("--node", type=int, metavar="N", help="Node of this rank.  [default: by its address]")
@click.option(
    "--timeout",
    type=float,
    default=60.0,
    metavar="S",
    help="How long to wait for other ranks.  [default: 60]",
)
def network(
    output: str,
    plot: str | None,
    backend: str,
    operations: str | None,
    sizes: str | None,
    repetitions: int,
    seconds: float,
    pause: str | None,
    congestion: str,
    node: int | None,
    timeout: float,
    **who: Any,
) -> None:
    """Measure a network: run this on every node, each with its own --rank.

    \b
    perfmodel measure network --rank 0 --ranks 2 --address 10.0.0.1:29500 --output network.json
    torchrun --nproc-per-node 2 --no-python perfmodel measure network --output network.json
    """
    from pathlib import Path

    from perfmodel.base import files
    from perfmodel.measuring.network.measure import measure, to_json

    here = rendezvous.take_place(who)
    if here.rank == 0:
        check_files(plot, output)
    read = read_quantity("bytes")
    notes: list[str] = []
    with rendezvous.logged(), progress() as advance:
        found = measure(
            here,
            backend=backend,
            sizes_bytes=None if sizes is None else _listed(items(sizes, "--sizes", read)),
            operations=None if operations is None else _listed(items(operations, "--operations")),
            repetitions=repetitions,
            seconds=seconds,
            pause_s=0.0 if pause is None else read_quantity("s")(pause, "--pause"),
            congestion=congestion,
            node=node,
            timeout_s=timeout,
            name="network" if output == files.STDOUT else Path(output).stem,
            say=notes.append,
            progress=advance if here.rank == 0 else None,
        )
    if found is None:
        return
    _table(found)
    for note in notes:
        remark(note)
    written = (output, to_json(found), f"; next: perfmodel calibrate network {output}")
    write_files([written, *drawn(found, plot)])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _table(found: Measurements) -> None:
    """A line for each operation, size and number of ranks."""
    from perfmodel.cli.printing.console import new_console, new_table
    from perfmodel.cli.printing.text import show

    show(found.source.text)
    heads = ("operation", "ranks", "bytes", "repetitions", "median", "fastest", "rate")
    table = new_table(*heads)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in found.measurements:
        table.add_row(*_cells(each))
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
