"""``python -m benchmarks.accuracy.losses DATA``: learn the usual losses of machines and frameworks.

DATA holds ``lambda_tf/throughput.csv``: images per second by machine (``system``), ``data``,
``variable_update``, ``precision``, ``model``, ``batch_per_gpu`` and ``num_gpus``, and
``gpu_operators/nccl.csv.gz``: times of NCCL's collectives by ``device``, ``op``, ``devices`` and
``bytes``. Neither is a source of the accuracy page. Prints the constants of
``perfmodel.inputs.usual_losses``: what a step on several devices of a machine takes longer than on
one, where they reach each other's memory, and the rate of copies through the host where they do
not.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy import optimize

from benchmarks.accuracy import rows
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.usual_losses import DEVICE_SPREAD
from perfmodel.theory.order_statistics import normal_maximum

PEERS: Mapping[str, tuple[str, int]] = {
    "3970X-GeForce_RTX_3090": ("rtx3090", 2),
    "7502-A100-PCIE": ("a100-pcie", 4),
    "7502-RTX_A6000": ("a6000", 4),
    "2080_Ti_NVLink": ("rtx2080ti", 2),
    "RTX_8000_NVLink": ("rtx8000", 4),
}
"""Device of each machine whose devices reach each other, by part of its name, and how many do."""

HOSTS: Mapping[str, tuple[str, int]] = {
    "3960X-GeForce_RTX_3080": ("rtx3080", 2),
    "7502-GeForce_RTX_3070": ("rtx3070", 2),
    "7662-GeForce_RTX_3090": ("rtx3090", 2),
    "3970X-GeForce_RTX_3090": ("rtx3090", 3),
    "LambdaCloud-RTX_A6000": ("a6000", 4),
}
"""Device of each machine whose devices copy through the host if there are at least so many."""

FITTED = {"T4 on AWS (Pollux)": 4 * 1.8e9, "RTX 2080 Ti (HKBU)": 4 * 4.55e9}
"""Rates of all devices of a node through the host, from the fits of these sources."""

MODELS = {"alexnet": "alexnet", "vgg16": "vgg16", "resnet50": "resnet50",
          "resnet152": "resnet152", "inception3": "inception_v3"}  # fmt: skip

LARGE_BYTES = 200e6
"""Gradients from which a step through the host tells the rate."""


class Measured(NamedTuple):
    """A step on several devices, and on one, of a machine."""

    machine: str
    device: str
    model: str
    devices: int
    alone_s: float
    step_s: float

    @property
    def size(self) -> tuple[int, float]:
        """Tensors and bytes of the gradients."""
        profile = catalogue.model(MODELS[self.model])
        tensors = [tensor for layer in profile.layers for tensor in layer.tensors]
        return len(tensors), sum(tensor.bytes for tensor in tensors)


def read(folder: Path, machines: Mapping[str, tuple[str, int]]) -> list[Measured]:
    """Return the steps of machines with synthetic data in float32."""
    path = folder / "lambda_tf" / "throughput.csv"
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with path.open(encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file)
                 if (row["data"], row["variable_update"], row["precision"])
                 == ("syn", "replicated", "fp32") and row["model"] in MODELS]  # fmt: skip

    def step_s(row: Mapping[str, str]) -> float:
        return int(row["num_gpus"]) * float(row["batch_per_gpu"]) / float(row["images_per_s"])

    def setup(row: Mapping[str, str]) -> tuple[str, str, str]:
        return row["system"], row["model"], row["batch_per_gpu"]

    alone_s = {setup(row): step_s(row) for row in table if row["num_gpus"] == "1"}
    found = []
    for row in table:
        devices = int(row["num_gpus"])
        for name, (device, count) in machines.items():
            fits = devices >= count if machines is HOSTS else 1 < devices <= count
            if name in row["system"] and fits and setup(row) in alone_s:
                machine = re.sub(r"_(XLA|trt2?|TF\d_\d+)", "", row["system"])
                found.append(Measured(machine, device, row["model"], devices,
                                      alone_s[setup(row)], step_s(row)))  # fmt: skip
    return found


class Losses(NamedTuple):
    """Device time per tensor (s), bytes of memory traffic per gradient byte, and slowdown per
    neighbour."""

    per_tensor_s: float
    memory_passes: float
    per_neighbour: float

    def step_s(self, run: Measured) -> float:
        """Return the step of a run without any wait for links."""
        tensors, size_bytes = run.size
        bandwidth = catalogue.device(run.device).memory_bandwidth_bytes_per_s
        beside = 1.0 + self.per_neighbour * (run.devices - 1)
        pace = 1.0 + DEVICE_SPREAD * normal_maximum(run.devices)
        handover_s = self.per_tensor_s * tensors + self.memory_passes * size_bytes / bandwidth
        return run.alone_s * beside * pace + handover_s


def learn(runs: Sequence[Measured]) -> Losses:
    """Return the losses with the least sum of absolute logarithmic misses, with the same weight for
    each machine."""
    count = {run.machine: sum(r.machine == run.machine for r in runs) for run in runs}
    measured = np.array([run.step_s for run in runs])
    weight = np.array([1.0 / count[run.machine] for run in runs])

    def cost(logs: np.ndarray) -> float:
        steps = np.array([Losses(*np.exp(logs)).step_s(run) for run in runs])
        return float(weight @ np.abs(np.log(measured / steps)))

    starts = ([20e-6, 28.0, 0.005], [5e-6, 10.0, 0.01], [50e-6, 5.0, 0.001])
    best = min(
        (optimize.minimize(cost, np.log(start), method="Nelder-Mead") for start in starts),
        key=lambda found: found.fun,
    )
    return Losses(*np.exp(best.x))


def through_host(runs: Sequence[Measured], losses: Losses) -> dict[str, float]:
    """Return the rate (bytes/s) of all devices of each machine together: the geometric mean over
    models with large gradients."""
    logs: dict[str, list[float]] = {}
    for run in runs:
        _, size_bytes = run.size
        exposed_s = run.step_s - losses.step_s(run)
        if size_bytes >= LARGE_BYTES and exposed_s > 0.0:
            moved = 2 * (run.devices - 1) * size_bytes  # by all devices in a ring
            logs.setdefault(run.machine, []).append(math.log(moved / exposed_s))
    return {machine: math.exp(float(np.mean(some))) for machine, some in logs.items()}


def of_nccl(folder: Path, device: str, fewest: int) -> float:
    """Return the rate (bytes/s) of all devices of a node in NCCL's largest all-reduces, the
    geometric mean over numbers of devices from ``fewest``."""
    path = folder / "gpu_operators" / "nccl.csv.gz"
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    best: dict[int, float] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            devices, size = int(row["devices"]), float(row["bytes"])
            if (row["device"], row["op"]) == (device, "all_reduce") and devices >= fewest:
                rate = 2 * (devices - 1) * size / (float(row["ms"]) * 1e-3)
                best[devices] = max(rate, best.get(devices, 0.0))
    return math.exp(float(np.mean(np.log(list(best.values())))))


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(data: Path) -> None:
    """Learn the usual losses from public tables."""
    peers = read(data, PEERS)
    if not peers:
        rows.say_left_out("no run of", PEERS)
        raise InputError(f"{data}: nothing to learn from")
    losses = learn(peers)
    click.echo(
        f"per tensor {losses.per_tensor_s * 1e6:.1f} us, memory passes {losses.memory_passes:.1f}, "
        f"per neighbour {losses.per_neighbour:.4f} ({len(peers)} runs)"
    )
    for machine in dict.fromkeys(run.machine for run in peers):
        misses = [math.log(r.step_s / losses.step_s(r)) for r in peers if r.machine == machine]
        click.echo(f"    {machine:40} median miss {np.median(misses):+.3f}")
    rates = through_host(read(data, HOSTS), losses) | FITTED
    rates["L40S (NCCL)"] = of_nccl(data, "l40s", 4)
    logs = np.log(list(rates.values()))
    for machine, rate in rates.items():
        click.echo(f"    {machine:40} {rate / 1e9:5.1f} GB/s through the host")
    rate = math.exp(float(logs.mean()))
    click.echo(f"through the host {rate / 1e9:.1f} GB/s, spread {logs.std(ddof=1):.2f}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
