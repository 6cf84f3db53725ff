"""``perfmodel measure network``: what a network does, seen by processes on its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.meeting import WHO, logged, take_place
from perfmodel.cli.options import (
    all_of,
    check_files,
    drawn,
    items,
    progress,
    read_quantity,
    write_files,
)

if TYPE_CHECKING:
    from perfmodel.measuring.measurements import Measurement, Measurements

LINE = "{:<14} {:>5} {:>10} {:>11} {:>10} {:>10} {:>11}"


@click.command("network")
@all_of(WHO)
@click.option("--output", metavar="FILE", required=True, help="Measurement file rank 0 writes.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@click.option("--backend", default="tcp", metavar="NAME", help="tcp (default), gloo or nccl.")
@click.option("--operations", metavar="LIST", help="Such as ping_pong,all_reduce; default: all.")
@click.option("--sizes", metavar="LIST", help="Such as 1KB,64KB,1MB; default: 4 B to 67 MB.")
@click.option(
    "--repetitions", type=int, default=20, metavar="N", help="Of each size, at most (20)."
)
@click.option(
    "--seconds", type=float, default=20.0, metavar="S", help="For everything, about (20)."
)
@click.option("--pause", metavar="TIME", help="Idle time before each repetition, such as 100ms.")
@click.option("--congestion", default="", metavar="NAME", help="Of TCP, such as cubic.")
@click.option("--node", type=int, metavar="N", help="Node of this rank; default: by its address.")
@click.option(
    "--timeout", type=float, default=60.0, metavar="S", help="Wait so long for others (60)."
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
    """Measure a network: run this on each of its nodes, with another --rank.

    \b
    perfmodel measure network --rank 0 --ranks 2 --address 10.0.0.1:29500 --output network.json
    torchrun --nproc-per-node 2 --no-python perfmodel measure network --output network.json
    """
    from pathlib import Path

    from perfmodel.measuring.network.measure import measure, to_json

    here = take_place(who)
    if here.rank == 0:
        check_files(plot, output)
    read = read_quantity("bytes")
    notes: list[str] = []
    with logged(), progress() as advance:
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
            name=Path(output).stem,
            say=notes.append,
            progress=advance if here.rank == 0 else None,
        )
    if found is None:
        return
    _table(found)
    for note in notes:
        click.echo(note, err=True)
    written = (output, to_json(found), f"; next: perfmodel calibrate network {output}")
    write_files([written, *drawn(found, plot)])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _table(found: Measurements) -> None:
    """A line for each operation, size and number of ranks."""
    heads = ("operation", "ranks", "bytes", "repetitions", "median", "fastest", "rate")
    click.echo(found.source.text)
    for cells in (heads, *map(_cells, found.measurements)):
        click.echo(LINE.format(*cells))


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
