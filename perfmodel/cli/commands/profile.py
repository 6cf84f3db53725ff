"""``perfmodel profile``: the training step of a model, measured on this machine."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import InputError, whole_number
from perfmodel.cli import types
from perfmodel.cli.options import Outputs, outputs, progress, say_written, whole_option


@click.command("profile")
@click.option(
    "--model",
    "spec",
    type=types.suggested("torchvision:", "transformers:"),
    metavar="SPEC",
    required=True,
    help="torchvision:NAME, transformers:NAME, or package.module:function that returns a Module.",
)
@click.option(
    "--input-shape",
    type=types.Several(types.WHOLE, always=True),
    metavar="N,N,..",
    help="Shape of one sample, for random inputs; of a language model, its number of tokens.",
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
    "--optimizer",
    type=types.Words(["sgd", "adam", "adamw"]),
    default="sgd",
    show_default=True,
    help="Optimizer; sgd has momentum 0.9.",
)
@click.option(
    "--batch-size",
    type=types.Several(types.WHOLE, always=True),
    metavar="N,N,..",
    default="8",
    show_default=True,
    help="Samples per step, over all its passes.",
)
@whole_option(
    "--accumulation", "Passes per update, which split the batch.", default=1, show_default=True
)
@click.option(
    "--device",
    type=types.suggested("cpu", "cuda"),
    default="cpu",
    show_default=True,
    help="cpu, cuda or cuda:N.",
)
@click.option(
    "--dtype",
    type=types.Words(["float32", "bf16"]),
    default="float32",
    show_default=True,
    help="Data type; bf16 is by autocast.",
)
@whole_option("--steps", "Steps to measure.", default=10, show_default=True)
@whole_option("--warmup", "Warm-up steps before.", default=3, show_default=True)
@whole_option("--threads", "PyTorch threads on the CPU.")
@click.option("--no-overhead", is_flag=True, help="Do not measure the overhead of measuring.")
@click.option("--noise-scale", is_flag=True, help="Measure the gradient noise scale of --batch.")
@whole_option("--noise-steps", "Estimates of the noise scale.  [default: 20]")
@click.option("--name", metavar="NAME", help="Name of the workload.  [default: that of the model]")
@click.option("--device-name", metavar="NAME", help="Name of the device in the file.")
@click.option("--output", type=types.OUTPUT, help="Workload file.  [default: the name with .json]")
@click.option("--append", is_flag=True, help="Add the timings to those in the file.")
@outputs("json")
def profile(
    spec: str,
    input_shape: Any,
    batch_size: Any,
    accumulation: int,
    no_overhead: bool,
    noise_scale: bool,
    noise_steps: int | None,
    output: str | None,
    append: bool,
    out: Outputs,
    **values: Any,
) -> None:
    """Trains the model for a few steps on random data, or on --batch (extra: torch).

    Writes a workload file for perfmodel predict --workload. Weights are random.

    \b
    perfmodel profile --model torchvision:resnet50 --batch-size 8,16 --device-name my-cpu
    perfmodel profile --model mymodels.nets:tagger --batch mymodels.data:batch --device cuda
    """
    from pathlib import Path

    from perfmodel.base import files
    from perfmodel.foreign.pytorch import check_device
    from perfmodel.inputs import profile_files
    from perfmodel.inputs.profile import read_profile
    from perfmodel.profiler.gradient_noise import STEPS
    from perfmodel.profiler.record import PAIRS, record
    from perfmodel.profiler.training import build

    if output is not None or values["name"] is not None:
        out.check(output or f"{values['name']}.json")
    if noise_steps is not None:
        if not noise_scale:
            raise InputError("--noise-steps: needs --noise-scale")
        whole_number("--noise-steps", noise_steps, at_least=2)
    check_device(values["device"])
    built = build(spec)
    path = output or f"{values['name'] or built.name}.json"
    out.check(path)
    if append and path == files.STDOUT:
        raise InputError("--append: needs a file, and --output is standard output")
    old = read_profile(path) if append and Path(path).exists() else None
    if old is not None and values["name"] not in (None, old.name):
        raise InputError(f"--name: {path} is a workload of {old.name!r}; --append keeps its name")
    with progress() as advance:
        recorded = record(
            built,
            **values,
            accumulate=accumulation,
            batch_sizes=batch_size,
            input_shape=input_shape,
            overhead_pairs=0 if no_overhead else PAIRS,
            noise_steps=(noise_steps or STEPS) if noise_scale else 0,
            old=old,
            progress=advance,
        )
    profile_files.save(path, recorded.profile)
    if out.as_json:
        import json

        from perfmodel.cli.printing.profile import as_values

        click.echo(json.dumps(as_values(recorded), indent=2))
    else:
        from perfmodel.cli.printing.profile import show_recorded

        show_recorded(recorded)
    say_written(path, f"; perfmodel predict --workload {path}")
