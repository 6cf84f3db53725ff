"""``perfmodel import``: a workload file from a profiler's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError, plain
from perfmodel.cli import types
from perfmodel.cli.options import Outputs, outputs, whole_option

if TYPE_CHECKING:
    from perfmodel.traces.workload import ImportedTrace


@click.command("import")
@click.argument("trace", type=types.INPUT)
@click.option("--output", type=types.OUTPUT, help="Write a workload file.")
@click.option("--name", metavar="NAME", help="Name of the workload.  [default: that of the file]")
@click.option(
    "--device-name", metavar="NAME", help="Name of the device.  [default: that in the trace]"
)
@whole_option("--batch-size", "Samples per step.  [default: from recorded shapes]")
@click.option(
    "--precision",
    type=types.PRECISION,
    help="float32, tf32 or mixed.  [default: the gradients' type]",
)
@click.option(
    "--gradient-bytes",
    type=types.SIZE,
    metavar="SIZE",
    help="Size of all gradients, if the trace does not tell.",
)
@click.option("--pid", metavar="ID", help="Process to read.  [default: that with most operators]")
@whole_option("--gpu", "GPU to read.  [default: that with most kernels]")
@outputs("json")
def import_(trace: str, output: str | None, out: Outputs, **given: Any) -> None:
    """Reports what the device does in a step, and how much of it is communication.

    The workload leaves communication out: it is what one worker does by itself. TRACE may also be
    the output of DeepSpeed's flops profiler.

    \b
    perfmodel import trace.json.gz
    perfmodel import trace.json --output mine.json --name mine --batch-size 64
    perfmodel predict --workload mine.json --arch ring --workers 8
    """
    import json

    import msgspec

    from perfmodel.traces import workload

    out.check(output)
    found = workload.import_trace(trace, **given)
    written = []
    if output is not None:
        if found.workload is None:
            raise InputError(f"{trace}: no workload can be made: it lacks {found.lacks}")
        hint = f"; perfmodel predict --workload {output}"
        written.append((output, workload.to_json(found.workload), hint))
    if out.put(found, written, lambda: json.dumps(msgspec.to_builtins(found), indent=2)):
        _show(found)


def _show(found: ImportedTrace) -> None:
    """Print where a step's time goes, the gradients found, and notes."""
    from rich.markup import escape

    from perfmodel.base.units import show
    from perfmodel.cli.printing.console import new_console, new_table

    out = new_console()
    count = f"{found.steps} step{'s' if found.steps > 1 else ''}"
    spread = f" ± {show(found.step_std_s, 's')}" if found.step_std_s is not None else ""
    out.print(
        f"[bold]{escape(plain(found.trace))}[/] on {escape(found.device)}: {count} "
        f"({escape(found.steps_by)}) of {show(found.step_s, 's')}{spread}"
    )
    table = new_table("", "", "")
    for name, seconds in found.parts_s.items():
        part = f"{seconds / found.step_s:.1%}"
        table.add_row(name.replace("_", " "), show(seconds, "s"), part)
    table.add_row("together", show(sum(found.parts_s.values()), "s"), "")
    table.add_row()
    whole = sum(found.compute_s.values()) or 1.0
    for name, seconds in found.compute_s.items():
        table.add_row(name, show(seconds, "s"), f"{seconds / whole:.1%} of computing")
    out.print(table)
    out.print()
    g = found.gradients
    own = f"{g.tensors} tensors"
    if g.bytes is not None:
        own += f", {g.bytes:.0f} bytes ({g.source})"
    sent = "none of known size"
    if g.message_bytes is not None:
        sent = f"{g.messages} per step, {g.message_bytes:.0f} bytes"
    out.print(f"[bold]gradients[/]: {own}; messages: {sent}")
    if found.workload is not None:
        out.print(
            f"[bold]workload[/]: {escape(found.workload.name)}, {found.layers or 'no'} layers, "
            f"batch size {found.batch_size}; its parts are {found.timing_per_step_fraction:.2%} "
            "of the step without exposed communication"
        )
    else:
        out.print(f"[bold]no workload[/]: the trace lacks {escape(found.lacks or '')}")
    for note in found.notes:
        out.print(f"[bold]note[/]: {escape(note)}")
