"""``perfmodel import``: a workload file from a profiler's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError, plain
from perfmodel.cli import types
from perfmodel.cli.options import Outputs, option, outputs

if TYPE_CHECKING:
    from perfmodel.traces.workload import ImportedTrace


@click.command("import")
@click.argument("trace", type=types.INPUT)
@option("--output", types.OUTPUT, "Write a workload file.")
@option("--name", types.TEXT, "Name of the workload.  [default: that of the file]")
@option("--device-name", types.TEXT, "Name of the device.  [default: that in the trace]")
@option("--batch-size", types.WHOLE, "Samples per step.  [default: from recorded shapes]")
@option("--precision", types.PRECISION, "Its precision.  [default: the gradients' type]")
@option("--gradient-bytes", types.SIZE, "Size of all gradients, if the trace does not tell.")
@option("--pid", types.Text(name="ID"), "Process to read.  [default: that with most operators]")
@option("--gpu", types.WHOLE, "GPU to read.  [default: that with most kernels]")
@outputs("json")
def import_(trace: str, output: str | None, out: Outputs, **values: Any) -> None:
    """Reports what the device does in a step, and how much of it is communication.

    The workload leaves communication out: it is what one worker does by itself. TRACE may also be
    the output of DeepSpeed's flops profiler.

    \b
    perfmodel import trace.json.gz
    perfmodel import trace.json --output mine.json --name mine --batch-size 64
    perfmodel predict --workload mine.json --arch ring --workers 8
    """
    import msgspec

    from perfmodel.inputs.profile_files import dumped
    from perfmodel.traces.workload import SCHEMA, import_trace

    out.check(output)
    result = import_trace(trace, **values)
    written = []
    if output is not None:
        if result.workload is None:
            raise InputError(f"{trace}: no workload can be made: it lacks {result.lacks}")
        hint = f"; perfmodel predict --workload {output}"
        written.append((output, dumped(result.workload), hint))
    if out.put(result, written, {"schema": SCHEMA, **msgspec.to_builtins(result)}):
        _show(result)


def _show(result: ImportedTrace) -> None:
    """Print where a step's time goes, the gradients found, and notes."""
    from perfmodel.base.units import show as quantity
    from perfmodel.cli.printing.tables import print_table
    from perfmodel.cli.printing.text import bold, show

    count = f"{result.steps} step{'s' if result.steps > 1 else ''}"
    spread = f" ± {quantity(result.step_std_s, 's')}" if result.step_std_s is not None else ""
    show(
        f"{bold(plain(result.trace))} on {result.device}: {count} ({result.steps_by}) of "
        f"{quantity(result.step_s, 's')}{spread}"
    )
    computing_s = sum(result.compute_s.values()) or 1.0
    print_table(
        ("", "", ""),
        [
            *(
                (name.replace("_", " "), quantity(s, "s"), f"{s / result.step_s:.1%}")
                for name, s in result.parts_s.items()
            ),
            ("together", quantity(sum(result.parts_s.values()), "s"), ""),
            ("", "", ""),
            *(
                (name, quantity(s, "s"), f"{s / computing_s:.1%} of computing")
                for name, s in result.compute_s.items()
            ),
        ],
    )
    g = result.gradients
    tensors = f"{g.tensors} tensors"
    if g.bytes is not None:
        tensors += f", {g.bytes:.0f} bytes ({g.source})"
    messages = "none of known size"
    if g.message_bytes is not None:
        messages = f"{g.messages} per step, {g.message_bytes:.0f} bytes"
    show(f"\n{bold('gradients')}: {tensors}; messages: {messages}")
    if result.workload is not None:
        show(
            f"{bold('workload')}: {result.workload.name}, {result.layers or 'no'} layers, "
            f"batch size {result.batch_size}; its parts are {result.timing_per_step_fraction:.2%} "
            "of the step without exposed communication"
        )
    else:
        show(f"{bold('no workload')}: the trace lacks {result.lacks}")
    for note in result.notes:
        show(f"{bold('note')}: {note}")
