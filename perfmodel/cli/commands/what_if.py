"""``perfmodel what-if``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from perfmodel.cli import types
from perfmodel.cli.options import Outputs, option, outputs

if TYPE_CHECKING:
    from perfmodel.calibration.exchange_times import Overlap


@click.command("what-if")
@click.argument("traces", type=types.INPUT, nargs=-1, required=True)
@option("--compute-speed", types.NUMBER, "Speed of devices, over the traced one.", default=1.0)
@option("--communication-speed", types.NUMBER, "Speed of exchanges, likewise.", default=1.0)
@option("--bandwidth", types.RATE, "Bandwidth of a rank's link.  [default: as traced]")
@option("--latency", types.time("5us"), "Latency of it.  [default: as traced]")
@option(
    "--group",
    types.TEXT,
    "Exchanges whose links change: kind, group, operation or p2p. Repeatable.  [default: all]",
    multiple=True,
)
@option("--group-ranks", types.WHOLE, "Ranks of each --group of replicas.  [default: as traced]")
@option(
    "--overlap",
    types.suggested("traced", "none", "full"),
    "Computing waits for collectives as traced, at once, or never.",
    default="traced",
)
@option(
    "--as-others",
    types.whole("RANK"),
    "Rank that computes like others that do the same. Repeatable.",
    multiple=True,
)
@outputs("json")
def what_if(
    traces: tuple[str, ...],
    bandwidth: float | None,
    latency: float | None,
    group: tuple[str, ...],
    overlap: str,
    as_others: tuple[int, ...],
    out: Outputs,
    **values: Any,
) -> None:
    """TRACES are of ranks of one job, by torch.profiler; the job may divide its model. First they
    are replayed as they are: how far that is from the recorded step is the first line.

    \b
    perfmodel what-if rank*.json
    perfmodel what-if rank*.json --as-others 5
    perfmodel what-if rank*.json --group p2p --bandwidth 200Gbps --compute-speed 2
    """
    from perfmodel.calibration.exchange_times import TraceChange
    from perfmodel.calibration.what_if import what_if as answered

    out.check()
    change = TraceChange(
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency,
        groups=group,
        overlap=cast("Overlap", overlap),
        as_others=as_others,
        **values,
    )
    result = answered(traces, change)
    if out.put(result):
        from perfmodel.cli.printing.what_if import show_what_if

        show_what_if(result)
