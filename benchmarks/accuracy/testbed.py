"""Runs of real frameworks between network namespaces, predicted from their configuration alone.

The folder holds ``results.jsonl`` (configuration and measurement of every run), ``net.jsonl`` and
``gloo.jsonl`` (what TCP and gloo achieve on the same links). Nothing is fitted to a run's outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cases import Case
from perfmodel import (
    Cluster,
    InputError,
    Jitter,
    Job,
    Link,
    NodeOverride,
    Server,
    Source,
    Straggler,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
)

GROUPS = {
    ("ring_ddp", "bsp"): "testbed/ring",
    ("ps", "bsp"): "testbed/ps_bsp",
    ("ps", "async"): "testbed/ps_async",
    ("ps", "ssp"): "testbed/ps_ssp",
    ("mxnet_ps", "bsp"): "testbed/mxnet_bsp",
    ("mxnet_ps", "async"): "testbed/mxnet_async",
    ("p2p", "bsp"): "testbed/p2p",
    ("dpsgd", "bsp"): "testbed/dpsgd",
    ("adpsgd", "async"): "testbed/adpsgd",
}
"""Group of each kind of run."""

GLOO_COLLECTIVES_AT_ONCE = 2
"""gloo's process group runs two collectives at a time (its two threads)."""


def cases(folder: Path) -> list[Case]:
    """Every measured figure of every run, with its prediction."""
    results = _lines(folder / "results.jsonl")
    gloo = _lines(folder / "gloo.jsonl")
    found: list[Case] = []
    for run in results:
        config, measured = run["config"], run["meas"]
        group = GROUPS.get((config["arch"], config["sync"]))
        if group is None:
            continue
        prediction = predict(job_of(config, run["net"], gloo))
        name = _name(config)
        found.append(Case(group, name, prediction.iteration_s, measured["iter_s_mean"]))
        found.append(
            Case(
                f"{group}:idle",
                name,
                prediction.idle_fraction.mean,
                measured["idle_frac_mean"],
                relative=False,
            )
        )
        stale = measured.get("staleness", {}).get("mean")
        if stale is not None and prediction.staleness is not None:
            found.append(
                Case(f"{group}:staleness", name, prediction.staleness.mean, stale, relative=False)
            )
    if not found:
        raise InputError(f"{folder}: no run of a known architecture")
    return found


def job_of(config: dict[str, Any], net: dict[str, Any], gloo: list[dict[str, Any]]) -> Job:
    """The job that a run's configuration describes."""
    jitter = config.get("jitter")
    straggler = config.get("straggler")
    hop_s = _ring_hop_s(config, gloo) if config["arch"] == "ring_ddp" else net["rtt_s"] / 2
    arch, options = ARCHITECTURES[config["arch"]]
    return make_job(
        workload=_workload(config),
        cluster=_cluster(config, net, hop_s),
        workers=config["n_workers"],
        arch=arch,
        options=options(config),
        jitter=Jitter(jitter["cv"], jitter["kind"]) if jitter else None,
        stragglers=[Straggler(straggler["rank"], straggler["factor"])] if straggler else [],
        seed=config["seed"],
    )


def _workload(config: dict[str, Any]) -> Workload:
    layers = [
        WorkloadLayer(layer["name"], layer["fwd_s"], layer["bwd_s"], _tensors(config, layer))
        for layer in config["layers"]
    ]
    return Workload.of(config["model"], layers, batch_size=config["batch"], device="testbed")


def _tensors(config: dict[str, Any], layer: dict[str, Any]) -> tuple[float, ...]:
    """Bytes of a layer's tensors; the frameworks of the testbed itself send it as one."""
    if config["arch"] in ("mxnet_ps", "ring_ddp"):
        return tuple(4.0 * elements for elements in layer["elements"])
    return (float(layer["bytes"]),)


def _cluster(config: dict[str, Any], net: dict[str, Any], latency_s: float) -> Cluster:
    efficiency = net["tcp_goodput_bps"] / config["rate"]

    def link(bits_per_s: float) -> Link:
        return Link(bits_per_s / 8, latency_s, efficiency)

    return Cluster(
        name="testbed",
        nic=link(config["rate"]),
        nodes=config["n_nodes"],
        overrides=tuple(
            NodeOverride(node, link(rate))
            for node, rate in enumerate(config["rates_bps"])
            if rate != config["rate"]
        ),
        server=Server(placement=config["placement"]),
        source=Source("measured", "net.jsonl and gloo.jsonl of the same cluster"),
    )


def _ring_hop_s(config: dict[str, Any], gloo: list[dict[str, Any]]) -> float:
    """Latency of one of the ring's 2(n-1) steps: that of the smallest all-reduce measured."""
    workers, rate = config["n_workers"], config["rate"]
    nearest = min(gloo, key=lambda r: (abs(r["n_workers"] - workers), abs(r["rate"] - rate)))
    smallest = min(nearest["allreduce_s"], key=int)
    return float(nearest["allreduce_s"][smallest]) / (2 * (nearest["n_workers"] - 1))


def _ring_options(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "bucket_cap_bytes": config["bucket_cap_bytes"],
        "first_bucket_bytes": config["first_bucket_bytes"],
        "concurrent": GLOO_COLLECTIVES_AT_ONCE,
    }


def _ps_options(config: dict[str, Any]) -> dict[str, Any]:
    options = {
        "sync": "asp" if config["sync"] == "async" else config["sync"],
        "servers": config["n_servers"],
        "duplex": True,
    }
    if config["sync"] == "ssp":
        options["staleness_bound"] = config["ssp_bound"]
    if config["arch"] == "mxnet_ps":
        bound = config["bigarray_bound_elements"] * 4 - 1  # arrays of the bound itself are split
        return options | {"sharding": "hash", "split_above_bytes": bound}
    split = config.get("sharding") == "split"
    return options | {
        "overlap": config["push"] == "layer" and config["pull"] == "layer",
        "split_above_bytes": config["split_bound_bytes"] if split else math.inf,
    }


def _p2p_options(config: dict[str, Any]) -> dict[str, Any]:
    return {"overlap": config["pull"] == "layer"}


def _d_psgd_options(config: dict[str, Any]) -> dict[str, Any]:
    return {"overlap": True}


def _ad_psgd_options(config: dict[str, Any]) -> dict[str, Any]:
    return {"overlap": True, "passive": "odd"}


ARCHITECTURES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "ring_ddp": ("ring", _ring_options),
    "ps": ("ps", _ps_options),
    "mxnet_ps": ("ps", _ps_options),
    "p2p": ("p2p", _p2p_options),
    "dpsgd": ("d_psgd", _d_psgd_options),
    "adpsgd": ("ad_psgd", _ad_psgd_options),
}
"""Architecture and options of each kind of run."""


def _name(config: dict[str, Any]) -> str:
    megabits = config["rate"] / 1e6
    return (
        f"{config['model']} {config['tag']} {config['n_workers']} workers "
        f"{config['n_servers']} servers {megabits:g} Mbit/s"
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
