"""``perfmodel profile``: the training step of a model, measured on this machine."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError, whole_number
from perfmodel.cli import types
from perfmodel.cli.options import Outputs, option, outputs, progress, source_of, switch
from perfmodel.cli.types import TEXT, WHOLE, Several, Text

NUMBERS = Several(WHOLE, always=True)
DESCRIBING = ("spec", "input_shape", "batch", "loss", "optimizer", "name", "output", "meta", "out")
"""Values that have a meaning with --meta."""
MODELS = types.suggested("torchvision:", "transformers:", name="SPEC")


@click.command("profile")
@option(
    "--model",
    MODELS,
    "torchvision:NAME, transformers:NAME, or package.module:function that returns a Module.",
    "spec",
    required=True,
)
@option("--input-shape", NUMBERS, "Shape of one random sample; of a language model, its tokens.")
@option(
    "--batch",
    Text(name="MODULE:FUNCTION"),
    "Function that takes the batch size and returns (inputs, targets) or a dict.",
)
@option(
    "--loss",
    TEXT,
    "cross_entropy, mse_loss, l1_loss, binary_cross_entropy_with_logits, mean, or "
    "MODULE:FUNCTION of output and targets.  [default: the model's own, else cross entropy]",
)
@option(
    "--optimizer",
    types.Words(["sgd", "adam", "adamw"]),
    "Optimizer; sgd has momentum 0.9.",
    default="sgd",
)
@option("--batch-size", NUMBERS, "Samples per step, over all its passes.", default="8")
@option("--accumulation", WHOLE, "Passes per update, which split the batch.", default=1)
@option("--device", types.TORCH_DEVICE, "cpu, cuda or cuda:N.", default="cpu")
@option(
    "--dtype",
    types.Words(["float32", "bf16"]),
    "Data type; bf16 is by autocast.",
    default="float32",
)
@option("--steps", WHOLE, "Steps to measure.", default=10)
@option("--warmup", WHOLE, "Warm-up steps before.", default=3)
@option("--threads", WHOLE, "PyTorch threads on the CPU.")
@switch("--no-overhead", "Do not measure the overhead of measuring.")
@switch("--noise-scale", "Measure the gradient noise scale of --batch.")
@option("--noise-steps", WHOLE, "Estimates of the noise scale.  [default: 20]")
@option("--name", TEXT, "Name of the workload.  [default: that of the model]")
@option("--device-name", TEXT, "Name of the device in the file.")
@option("--output", types.OUTPUT, "Workload file.  [default: the name with .json]")
@switch("--append", "Add the timings to those in the file.")
@switch("--meta", "Compute nothing: record layers and operators, without timings.")
@outputs("json")
def profile(
    spec: str,
    input_shape: list[int] | None,
    batch_size: list[int],
    accumulation: int,
    no_overhead: bool,
    noise_scale: bool,
    noise_steps: int | None,
    output: str | None,
    append: bool,
    meta: bool,
    out: Outputs,
    **values: Any,
) -> None:
    """Trains the model for a few steps on random data, or on --batch (extra: torch).

    Writes a workload file for perfmodel predict --workload. Weights are random. With --meta no
    device is needed, and times are estimated.

    \b
    perfmodel profile --model torchvision:resnet50 --batch-size 8,16 --device-name my-cpu
    perfmodel profile --model mymodels.nets:tagger --batch mymodels.data:batch --device cuda
    perfmodel profile --model mymodels.nets:tagger --input-shape 3,64,64 --meta
    """
    from pathlib import Path

    if meta:
        _describe(spec, input_shape, output, values, out)
        return
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
    from perfmodel.cli.printing.profile import as_values, show_recorded

    hint = f"; perfmodel predict --workload {path}"
    written = [(path, profile_files.dumped(recorded.profile), hint)]
    if out.put(recorded, written, as_values(recorded)):
        show_recorded(recorded)


def _describe(
    spec: str,
    input_shape: list[int] | None,
    output: str | None,
    values: dict[str, Any],
    out: Outputs,
) -> None:
    """Record a model without timings."""
    import msgspec

    from perfmodel.inputs import profile_files
    from perfmodel.profiler.unmeasured import describe

    for parameter in click.get_current_context().command.params:
        given = source_of(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name not in (*DESCRIBING, "as_json"):
            raise InputError(f"{parameter.opts[0]}: has no meaning with --meta")
    names = ("batch", "loss", "optimizer", "name")
    described = describe(spec, input_shape=input_shape, **{name: values[name] for name in names})
    path = output or f"{described.name}.json"
    out.check(path)
    hint = f"; perfmodel predict --workload {path} --device h100"
    written = [(path, profile_files.dumped(described), hint)]
    if out.put(described, written, msgspec.to_builtins(described)):
        from perfmodel.cli.printing.profile import show_described

        show_described(described)
