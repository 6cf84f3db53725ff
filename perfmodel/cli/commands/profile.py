"""``perfmodel profile``: the training step of a model, measured on this machine."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import InputError, whole_number
from perfmodel.cli.options import check_files, list_of, progress, read_whole, say_written


@click.command("profile")
@click.option(
    "--model",
    "spec",
    metavar="SPEC",
    required=True,
    help="torchvision:NAME, transformers:NAME, or package.module:function that returns a Module.",
)
@click.option(
    "--input-shape",
    metavar="N,N,..",
    callback=list_of(read_whole, ranges=False),
    help="Shape of one sample, for random inputs.",
)
@click.option(
    "--batch",
    metavar="MODULE:FUNCTION",
    help="Function that takes the batch size and returns (inputs, targets) or a dict.",
)
@click.option(
    "--loss",
    metavar="NAME",
    help="cross_entropy, mse_loss, l1_loss, binary_cross_entropy_with_logits, mean, or "
    "MODULE:FUNCTION of output and targets.  [default: the model's own, else cross entropy]",
)
@click.option(
    "--optimizer", metavar="NAME", default="sgd", show_default=True, help="sgd, adam or adamw."
)
@click.option(
    "--batch-size",
    metavar="N,N,..",
    default="8",
    show_default=True,
    callback=list_of(read_whole, ranges=True),
    help="Samples per step.",
)
@click.option(
    "--accumulate",
    metavar="N",
    type=int,
    default=1,
    show_default=True,
    help="Passes per update, which split the batch.",
)
@click.option(
    "--device", metavar="NAME", default="cpu", show_default=True, help="cpu, cuda or cuda:N."
)
@click.option(
    "--dtype",
    metavar="NAME",
    default="float32",
    show_default=True,
    help="float32, or bf16 by autocast.",
)
@click.option(
    "--steps", metavar="N", type=int, default=10, show_default=True, help="Steps to measure."
)
@click.option(
    "--warmup", metavar="N", type=int, default=3, show_default=True, help="Warm-up steps before."
)
@click.option("--threads", metavar="N", type=int, help="PyTorch threads on the CPU.")
@click.option("--no-overhead", is_flag=True, help="Do not measure the overhead of measuring.")
@click.option("--noise-scale", is_flag=True, help="Measure the gradient noise scale of --batch.")
@click.option(
    "--noise-steps", metavar="N", type=int, help="Estimates of the noise scale.  [default: 20]"
)
@click.option("--name", metavar="NAME", help="Name of the workload.  [default: that of the model]")
@click.option("--device-name", metavar="NAME", help="Name of the device in the file.")
@click.option("--output", metavar="FILE", help="Workload file.  [default: the name with .json]")
@click.option("--append", is_flag=True, help="Add the timings to those in the file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    spec: str,
    input_shape: Any,
    batch_size: Any,
    no_overhead: bool,
    noise_scale: bool,
    noise_steps: int | None,
    output: str | None,
    append: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the training steps of a PyTorch model, layer by layer (extra: torch).

    Trains the model for a few steps on random data, or on --batch, and writes a workload file for
    perfmodel predict --workload. Weights are random.

    \b
    perfmodel profile --model torchvision:resnet50 --batch-size 8,16 --device-name my-cpu
    perfmodel profile --model mymodels.nets:tagger --batch mymodels.data:batch --device cuda
    """
    from pathlib import Path

    from perfmodel.base import files
    from perfmodel.base.pytorch import check_device
    from perfmodel.inputs.profile import read_profile
    from perfmodel.profiler import saving
    from perfmodel.profiler.gradient_noise import STEPS
    from perfmodel.profiler.record import PAIRS, record
    from perfmodel.profiler.training import build

    if output is not None or given["name"] is not None:
        check_files(None, output or f"{given['name']}.json")
    if noise_steps is not None:
        if not noise_scale:
            raise InputError("--noise-steps: needs --noise-scale")
        whole_number("--noise-steps", noise_steps, at_least=2)
    check_device(given["device"])
    built = build(spec)
    path = output or f"{given['name'] or built.name}.json"
    check_files(None, path)
    if append and path == files.STDOUT:
        raise InputError("--append: needs a file, and --output is standard output")
    old = read_profile(path) if append and Path(path).exists() else None
    if old is not None and given["name"] not in (None, old.name):
        raise InputError(f"--name: {path} is a workload of {old.name!r}; --append keeps its name")
    with progress() as advance:
        recorded = record(
            built,
            **given,
            batch_sizes=_listed(batch_size),
            input_shape=None if input_shape is None else _listed(input_shape),
            overhead_pairs=0 if no_overhead else PAIRS,
            noise_steps=(noise_steps or STEPS) if noise_scale else 0,
            old=old,
            progress=advance,
        )
    saving.save(path, recorded.profile)
    if as_json:
        import json

        from perfmodel.cli.printing.profile import as_values

        click.echo(json.dumps(as_values(recorded), indent=2))
    else:
        from perfmodel.cli.printing.profile import show_recorded

        show_recorded(recorded)
    say_written(path, f"; perfmodel predict --workload {path}")


def _listed(value: Any) -> list[int]:
    """One number, or several, as a list."""
    return value if isinstance(value, list) else [value]
