"""Language models on A100 and H100 with sharded data parallelism, each predicted from others.

How much longer training takes than its operators is fitted to all models but the one predicted, by
chip; the factors of all models are those of the catalogue.

``throughput.csv`` has tokens per second of all GPUs by ``model``, ``seq_len``, ``num_gpus``,
``gpu``, ``micro_batch`` (of a pass), ``grad_accum``, ``precision``, ``sharding``, ``act_ckpt``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

import perfmodel as pm
from benchmarks.accuracy import fitted, rows, stacks
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.catalogue import catalogue
from perfmodel.inputs.decoder_layers import with_layers

FILE = "throughput.csv"

DEVICES = {"a100_40gb": "a100", "a100_80gb": "a100-80", "h100_80gb": "h100"}
CLUSTERS = {"a100": "dgx-a100", "a100-80": "dgx-a100", "h100": "dgx-h100"}
STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}

PRECISIONS = {"amp_bf16": "mixed", "bf16": "mixed", "amp_fp8": "fp8"}

SOURCE = "llm_foundry"
ABOUT = about("llm_foundry")


class Row(msgspec.Struct, frozen=True):
    """A row of the table."""

    model: str
    seq_len: int
    num_gpus: int
    gpu: str
    micro_batch: int
    grad_accum: int
    tokens_per_s: float
    precision: str
    sharding: str
    act_ckpt: str

    def __post_init__(self) -> None:
        number("tokens_per_s", self.tokens_per_s, above=0.0)
        for name in ("seq_len", "num_gpus", "micro_batch", "grad_accum"):
            whole_number(name, getattr(self, name))

    @property
    def name(self) -> str:
        """Identifies the run."""
        again = ", checkpointing" if self.act_ckpt == "True" else ""
        batch = f"batch {self.micro_batch} x {self.grad_accum}"
        return f"{self.model} of {self.seq_len}, {self.num_gpus} {self.gpu}, {batch}{again}"

    @property
    def step_s(self) -> float:
        """Seconds per pass: gradients are reduced in every pass, updates are less frequent."""
        return self.num_gpus * self.micro_batch * self.seq_len / self.tokens_per_s

    @property
    def split(self) -> str:
        """Whether products have 16 bits, or 8, to which nothing is fitted."""
        return "fp8" if PRECISIONS[self.precision] == "fp8" else "models"

    @property
    def chip(self) -> str:
        """The chip, whatever its memory."""
        return self.gpu.partition("_")[0]

    @property
    def why_not(self) -> str:
        """Return why there is no job for this row; "" if there is one."""
        if self.precision not in PRECISIONS:
            return f"precision {self.precision}"
        if self.sharding not in STAGES:
            return f"sharding {self.sharding}"
        if self.gpu not in DEVICES:
            return self.gpu
        return "" if f"mpt-{self.model}" in catalogue.model_names() else f"model {self.model}"


def block_bytes(model: str) -> float:
    """Return the bytes of the matrices of a block, which close a unit."""
    layers = with_layers(catalogue.model(f"mpt-{model}"), "mixed").layers
    first = [layer for layer in layers if layer.name.startswith("blocks.0.")]
    return sum(tensor.bytes for layer in first for tensor in layer.tensors)


def job(row: Row) -> pm.Job:
    """Return the job of a pass. Blocks are the units that are gathered."""
    device = DEVICES[row.gpu]
    made = pm.make_job(
        model=f"mpt-{row.model}",
        device=device,
        precision=PRECISIONS[row.precision],
        batch_size=row.micro_batch,
        sequence_length=row.seq_len,
        activation_checkpointing=row.act_ckpt == "True",
        cluster=CLUSTERS[device],
        workers=row.num_gpus,
        arch="fsdp", stack="as_found",
        options={"stage": STAGES[row.sharding], "unit_bytes": block_bytes(row.model)},
    )  # fmt: skip
    update_s = made.workload.optimizer_s / row.grad_accum
    return msgspec.structs.replace(
        made, workload=msgspec.structs.replace(made.workload, optimizer_s=update_s)
    )


def fit(folder: Path) -> None:
    """Fit the factors of each chip to all rows, and to those of all models but one."""
    steps: dict[str, dict[str, list[stacks.Step]]] = {}
    for row in _table(folder):
        if row.split == "models":
            models = steps.setdefault(row.chip, {})
            models.setdefault(row.model, []).append(stacks.step_of(job(row), row.step_s))
    fitted.write(SOURCE, stacks.folds("models", steps))


def cases(folder: Path) -> list[Case]:
    """Return every row for which there is a job."""
    fits = fitted.read(SOURCE, stacks.StackFit)
    runs = [
        Run(
            f"{SOURCE}/{row.split}/{row.gpu}",
            row.name,
            stacks.with_factors(job(row), stacks.without(fits, "models", row.chip, row.model)),
            step_s=row.step_s,
            pools=(f"{SOURCE}/{row.split}",),
            setting=f"{row.model} of {row.seq_len}, {row.num_gpus} GPUs",
        )
        for row in _table(folder)
    ]
    if not runs:
        raise InputError(f"{folder / FILE}: no row that there is a job of")
    return predicted(runs)


def _table(folder: Path) -> list[Row]:
    """Return the rows for which there is a job."""
    table = rows.read(folder / FILE, Row)
    rows.say_left_out("no job", [row.why_not for row in table if row.why_not])
    return [row for row in table if not row.why_not]
