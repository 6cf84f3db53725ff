"""About 500 varied jobs with their recorded predictions: guards refactorings.

``corpus.jsonl`` has a job on each line: the arguments of :func:`perfmodel.make_job`, and for either
route a digest of every number of the prediction, and the throughput to show how far it moved.
``python -m tests.corpus`` predicts them again and records the results; with ``--draw`` it also
draws new jobs."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfmodel import (
    Cluster,
    InputError,
    Job,
    Straggler,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
)

PATH = Path(__file__).with_suffix(".jsonl")
COUNT = 500
MOST_OPS = 1e6
"""Largest number of operations of a simulation; jobs that need more are redrawn."""

REL_CI = 0.05
TEXTS = frozenset({"provenance", "assumptions", "notes", "schema", "interval"})
"""Text fields on the origin or certainty of figures, which are not compared."""


class Entry(msgspec.Struct, frozen=True):
    """A job: its arguments, those of ``predict``, and by route (digest, samples/s)."""

    job: dict[str, Any]
    predict: dict[str, Any]
    found: dict[str, tuple[str, float]]


def read() -> list[Entry]:
    """Read all entries."""
    lines = PATH.read_bytes().splitlines()[1:]
    return [msgspec.json.decode(line, type=Entry) for line in lines]


def same_arithmetic() -> bool:
    """Return whether this machine's last digits can be compared with the recorded ones."""
    recorded = json.loads(PATH.read_bytes().partition(b"\n")[0])
    return bool(recorded["arithmetic"] == arithmetic())


def job_of(given: Mapping[str, Any]) -> Job:
    """The job with these arguments; workload and cluster may be given in full."""
    arguments = dict(given)
    if isinstance(arguments.get("cluster"), dict):
        arguments["cluster"] = msgspec.convert(arguments["cluster"], Cluster)
    if isinstance(arguments.get("workload"), dict):
        inline = arguments["workload"]
        layers = [msgspec.convert(layer, WorkloadLayer) for layer in inline["layers"]]
        rest = {name: value for name, value in inline.items() if name != "layers"}
        arguments["workload"] = Workload.of("drawn", layers, **rest)
    late = [msgspec.convert(each, Straggler) for each in arguments.pop("stragglers", [])]
    return make_job(**arguments, stragglers=late)


def predicted(entry: Entry) -> dict[str, tuple[str, float]]:
    """Current predictions of both routes."""
    job = job_of(entry.job)
    long_run = {name: value for name, value in entry.predict.items() if name != "iterations"}
    fine = predict(job, fidelity="fine", max_ops=MOST_OPS, rel_ci=REL_CI, **entry.predict)
    coarse = predict(job, fidelity="coarse", **long_run)
    return {
        answer.fidelity: (digest(answer.to_dict()), answer.throughput_samples_per_s)
        for answer in (fine, coarse)
    }


def digest(answer: Mapping[str, Any]) -> str:
    """Digest of all numbers of a prediction, to the last digit, with their keys."""
    named = {name: value for name, value in answer.items() if name not in TEXTS}
    lines = [f"{place}={value!r}" for place, value in numbers(named, "")]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """All numbers in JSON-like values, with their paths."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from numbers(inner, f"{place}/{name}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from numbers(inner, f"{place}/{index}")
    elif isinstance(value, (int, float)):
        yield place, value


def arithmetic() -> str:
    """Digest of results of this machine's mathematical functions, which differ in the last
    digits."""
    at = np.random.default_rng(0).lognormal(0.0, 2.0, 2000)
    vectors = [np.exp(-at), np.log(at), at**0.37, np.sqrt(at), np.log1p(at)]
    plain = [[f(x) for x in at.tolist()] for f in (math.exp, math.log, math.sin, math.lgamma)]
    every = np.array([*vectors, *plain]).tobytes()
    return hashlib.sha256(every).hexdigest()[:16]


# -- drawing ---------------------------------------------------------------------------------------

ARCHITECTURES = (
    *("ps", "asp", "ssp", "ps", "allreduce", "allreduce", "fsdp", "p2p"),
    *("local_sgd", "easgd", "gosgd", "d_psgd", "ad_psgd"),
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "passive": ("even", "odd"),
    "overlap": (False, True),
    "compression": ("none", "top_k", "dgc", "quantised"),
    "density": (0.001, 0.05),
    "quantised_bits": (8, 4),
    "encode_per_byte_s": (0.0, 3e-11),
    "decode_per_byte_s": (0.0, 2e-11),
    "algorithm": ("auto", "ring", "halving_doubling", "tree", "double_tree", "hierarchical"),
    "chunks": (16, 4),
    "reduce_per_byte_s": (0.0, 5e-11),
    "bucketing": ("ddp", "one", "layer", "horovod", "mg_wfbp"),
    "bucket_cap_bytes": (25e6, 5e6),
    "first_bucket_bytes": (1e6, 2e5),
    "fusion_cycle_s": (1e-3, 5e-3),
    "fusion_threshold_bytes": (64e6, 4e6),
    "partition_bytes": ("inf", 4e6),
    "priority": (False, True),
    "credit_bytes": (0.0, 8e6),
    "cross_barrier": (False, True),
    "concurrent": (1, 2),
    "each_send": (False, True),
    "period": (1, 4, 8),
    "moving_rate": (0.1, 0.5),
    "servers": (1, 2, 3),
    "stage": (1, 2, 3),
    "shard_group": (0, 2, 4),
    "unit_bytes": (25e6, 0.0, 2e6),
    "prefetch": (1, 0, 2),
    "reshard_after_forward": (True, False),
    "probability": (0.1, 0.5, 1.0),
    "queue": (8, 1),
    "merge_per_model_s": (0.0, 2e-3),
    "transmission": ("fifo", "quantum", "shared", "priority"),
    "quantum_bytes": (65536.0, 1e6),
    "exchange": ("full", "sharded"),
    "staleness_bound": (3.0, 0.0, 1.0, 8.0),
    "duplex": (False, True),
    "pull": ("reply", "request"),
    "sharding": ("bytes", "hash"),
    "split_above_bytes": (4e6, 1e6, "inf"),
    "local_aggregation": (False, True),
    "backup_workers": (0, 1),
    "softsync": (1, 2),
}


def drawn(number: int) -> Entry:
    """Job ``number``, without its predictions."""
    from perfmodel.architectures.registry import find

    draw = np.random.default_rng([16, number])
    name = ARCHITECTURES[number % len(ARCHITECTURES)]
    has = find(name)[0].options.__struct_fields__
    while True:
        job = _arguments(draw, name, [option for option in CHOICES if option in has])
        entry = Entry(job, _questions(draw), {})
        try:
            return Entry(entry.job, entry.predict, predicted(entry))
        except InputError:
            continue


def _questions(draw: np.random.Generator) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if draw.random() < 0.1:
        asked["iterations"] = int(draw.integers(1, 30))
    elif draw.random() < 0.2:
        asked |= {"dataset_size": int(draw.integers(1000, 10**6)), "epochs": 3}
    return asked


def _arguments(draw: np.random.Generator, arch: str, options: list[str]) -> dict[str, Any]:
    def one_of(values: tuple[Any, ...]) -> Any:
        return values[int(draw.integers(len(values)))]

    def chance(part: float) -> bool:
        return bool(draw.random() < part)

    workers = int(draw.integers(1, 17)) if chance(0.9) else int(draw.integers(17, 65))
    job: dict[str, Any] = {"arch": arch, "workers": workers, "seed": int(draw.integers(1000))}
    if chance(0.5):
        job["model"] = one_of(("alexnet", "resnet18", "resnet50", "vgg16", "inception_v1"))
        job["device"] = one_of(("v100", "cpu-epyc-2core", "a100", "k80"))
    else:
        job["workload"] = _workload(draw)
    if chance(0.3):
        job["cluster"] = one_of(("ethernet-10g", "ethernet-1g", "infiniband-56g", "dgx-a100"))
        if chance(0.5):
            job["bandwidth_bytes_per_s"] = float(f"{10 ** draw.uniform(8, 10):.3g}")
    else:
        job["cluster"] = _cluster(draw, workers)
    if chance(0.4):
        cv = float(f"{10 ** draw.uniform(-2, -0.5):.2g}")
        job["jitter"] = f"{one_of(('lognormal', 'gamma'))}:{cv}{one_of(('', ':op'))}"
    if chance(0.25):
        factor = float(f"{draw.uniform(1.05, 2.5):.3g}")
        job["stragglers"] = [{"worker": int(draw.integers(workers)), "factor": factor}]
    if chance(0.15):
        job["start"] = one_of(("together", "staggered"))
    some = [option for option in options if chance(2.5 / len(options))]
    job["options"] = {option: one_of(CHOICES[option]) for option in some}
    return job


def _workload(draw: np.random.Generator) -> dict[str, Any]:
    layers = []
    for index in range(int(draw.integers(1, 9))):
        tensors = int(draw.integers(0, 3)) if index else 1
        layers.append(
            {
                "name": f"layer{index}",
                "forward_s": _digits(draw, -3.0, -1.5),
                "backward_s": _digits(draw, -3.0, -1.3),
                "tensor_bytes": [_digits(draw, 4.5, 7.5) for _ in range(tensors)],
            }
        )
    found: dict[str, Any] = {"layers": layers}
    if draw.random() < 0.3:
        found["optimizer_s"] = _digits(draw, -3.5, -2.0)
    if draw.random() < 0.15:
        found["data_loading_s"] = _digits(draw, -2.5, -1.0)
    return found


def _cluster(draw: np.random.Generator, workers: int) -> dict[str, Any]:
    def chance(part: float) -> bool:
        return bool(draw.random() < part)

    devices = int(draw.choice([1, 2, 4])) if chance(0.4) else 1
    nic = {
        "bandwidth_bytes_per_s": _digits(draw, 8.0, 10.3),
        "latency_s": _digits(draw, -6.0, -3.5),
        "efficiency": float(f"{draw.uniform(0.7, 1.0):.3g}"),
    }
    cluster: dict[str, Any] = {
        "name": "drawn",
        "nic": nic,
        "source": {"kind": "measured" if chance(0.3) else "estimated", "text": "drawn"},
        "devices_per_node": devices,
        "server": {
            "placement": "colocated" if chance(0.2) else "dedicated",
            "update_per_tensor_s": _digits(draw, -6.0, -3.5),
            "update_per_byte_s": _digits(draw, -11.0, -9.5),
            "threads": 2 if chance(0.2) else 1,
        },
    }
    if devices > 1:
        if chance(0.6):
            cluster["intra_node"] = {
                "bandwidth_bytes_per_s": _digits(draw, 9.5, 11.0),
                "latency_s": _digits(draw, -6.0, -5.0),
                "kind": "bus" if chance(0.5) else "per_device",
            }
        if chance(0.2):
            cluster["nics_per_node"] = devices
        if chance(0.2):
            cluster["slowdown_per_neighbour"] = 0.05
            cluster["loaders_per_node"] = 2.0
    if chance(0.1):
        cluster["core_oversubscription"] = _digits(draw, 0.0, 0.8)
    if chance(0.1):
        cluster["handover"] = {"per_tensor_s": 2e-5, "per_byte_s": 1e-11}
    if chance(0.05):
        cluster |= {"cpu_cores": 16, "worker_threads": 8}
    if chance(0.05):
        cluster["queue_bytes"] = 1e6
    if chance(0.2):
        node = int(draw.integers(-(-workers // devices)))
        slow = {**nic, "bandwidth_bytes_per_s": nic["bandwidth_bytes_per_s"] / 2.0}
        cluster["overrides"] = [{"node": node, "nic": slow, "speed": 0.8 if chance(0.5) else 1.0}]
    return cluster


def _digits(draw: np.random.Generator, low: float, high: float) -> float:
    """A number of three digits whose logarithm is uniform between powers of ten."""
    return float(f"{10 ** draw.uniform(low, high):.3g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the corpus; the arguments of the command line unless others are given."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus",
        description="Predict the jobs of tests/corpus.jsonl again, and record the results there.",
    )
    parser.add_argument("--draw", action="store_true", help="draw new jobs first")
    if parser.parse_args(arguments).draw:
        entries = [drawn(number) for number in range(COUNT)]
    else:
        entries = [Entry(each.job, each.predict, predicted(each)) for each in read()]
    lines = [json.dumps({"arithmetic": arithmetic()})]
    lines += [msgspec.json.encode(entry).decode() for entry in entries]
    PATH.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
