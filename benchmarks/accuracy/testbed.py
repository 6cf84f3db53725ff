"""Runs of real frameworks between network namespaces, predicted from their configuration alone.

The folder holds ``results.jsonl`` (configuration and measurement of every run, and the performance
of the bare network) and, if there are rings, ``gloo.jsonl`` (times of gloo's all-reduce on the same
links). Only the errors of predictions are fitted, by architecture: see :mod:`.residuals`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import perfmodel as pm
from benchmarks.accuracy import fitted, residuals, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.base.errors import number
from perfmodel.inputs.calibration import Calibration

ABOUT = about("testbed")

MXNET = {"duplex": True, "sharding": "hash", "pull": "request"}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ring_ddp bsp": ("ring", "ring", {"concurrent": 2}),  # gloo's two threads
    "ps bsp": ("ps_bsp", "ps", {"duplex": True}),
    "ps async": ("ps_async", "asp", {"duplex": True}),
    "ps ssp": ("ps_ssp", "ssp", {"duplex": True}),
    "mxnet_ps bsp": ("mxnet_bsp", "ps", MXNET),
    "mxnet_ps async": ("mxnet_async", "asp", MXNET),
    "p2p bsp": ("p2p", "p2p", {}),
    "dpsgd bsp": ("dpsgd", "d_psgd", {"overlap": True}),
    "adpsgd async": ("adpsgd", "ad_psgd", {"overlap": True, "passive": "odd"}),
}
"""For each kind of run: its group, architecture, and common options."""

TCP_EFFICIENCY = 0.956
"""Fraction of a link that one TCP transfer gets, if not measured."""


def cases(folder: Path) -> list[Case]:
    """Return every measured value of every run, with its prediction."""
    return predicted(runs(folder, fitted.read("testbed", Calibration)))


def fit(folder: Path) -> None:
    """Learn the errors of predictions."""
    fitted.write("testbed", residuals.learnt(runs(folder)))


def runs(folder: Path, fits: Mapping[str, Calibration] | None = None) -> list[Run]:
    """Return the runs of known kinds, with calibrations of ``fits``; others are reported."""
    gloo = list(rows.read_json_lines(folder / "gloo.jsonl", needed=False))
    found = []
    for where, row in rows.read_json_lines(folder / "results.jsonl"):
        try:
            job = job_of(row["config"], row.get("net") or {}, [times for _, times in gloo])
            run = _run(row["config"], row["meas"], job)
            found.append(residuals.calibrated(run, fits or {}))
        except (KeyError, TypeError) as error:
            rows.say_left_out(f"{error} is unknown, missing or wrong", [where])
        except pm.InputError as error:
            raise pm.InputError(f"{where}: {error}") from None
    if not found:
        raise pm.InputError(f"{folder}: no run of a known architecture")
    return found


def _run(config: dict[str, Any], measured: dict[str, Any], job: pm.Job) -> Run:
    kind, rate = f"{config['arch']} {config['sync']}", f"{config['rate'] / 1e6:g} Mbit/s"
    idle, count = measured.get("idle_frac_mean"), measured.get("iters_measured")
    some = [name for name in ("jitter", "straggler") if config.get(name)]
    some += ["slow link"] if job.cluster.overrides else []
    size = f"{job.workers} workers {config.get('n_servers', 0)} servers {rate}"
    return Run(
        group=f"testbed/{KINDS[kind][0]}",
        name=f"{config['model']} {config.get('tag', '')} {size}",
        job=job,
        step_s=number("iter_s_mean", measured["iter_s_mean"], above=0.0),
        idle=None if idle is None else number("idle_frac_mean", idle, at_least=-math.inf),
        staleness=(measured.get("staleness") or {}).get("mean"),
        iterations=max(round(count), 1) if count else None,
        pools=("testbed/all",),
        setting=" ".join([config["model"], config["arch"], rate, *some]),
    )


def job_of(config: dict[str, Any], net: dict[str, Any], gloo: list[dict[str, Any]]) -> pm.Job:
    """Return the job that a run's configuration describes."""
    number("rate", config["rate"], above=0.0)
    _, arch, options = KINDS[f"{config['arch']} {config['sync']}"]
    jitter, straggler = config.get("jitter"), config.get("straggler")
    layers = [_layer(one, config["arch"]) for one in config["layers"]]
    work = pm.Workload.of(config["model"], layers, batch_size=config["batch"], device="testbed")
    return pm.make_job(
        workload=work,
        cluster=_cluster(config, net, gloo),
        workers=config["n_workers"],
        arch=arch,
        options=options | _options(config),
        jitter=pm.Jitter(jitter["cv"], jitter["kind"]) if jitter else None,
        stragglers=[pm.Straggler(straggler["rank"], straggler["factor"])] if straggler else [],
        seed=config.get("seed", 0),
    )


def _layer(one: dict[str, Any], arch: str) -> pm.WorkloadLayer:
    sent = one["elements"] if arch in ("mxnet_ps", "ring_ddp") else [one["bytes"] / 4]
    return pm.WorkloadLayer(one["name"], one["fwd_s"], one["bwd_s"], tuple(4.0 * n for n in sent))


def _options(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if config["arch"] == "ring_ddp":
        found = {name: config[name] for name in ("bucket_cap_bytes", "first_bucket_bytes")}
    if config["arch"] in ("ps", "mxnet_ps"):
        found = {"servers": config["n_servers"], "split_above_bytes": math.inf}
    if config["arch"] in ("ps", "p2p"):
        found["overlap"] = config.get("push", "layer") == config["pull"] == "layer"
    if config["arch"] == "mxnet_ps":  # arrays of exactly this size are split
        found["split_above_bytes"] = config["bigarray_bound_elements"] * 4 - 1
    if config["arch"] == "ps" and config["sharding"] == "split":
        found["split_above_bytes"] = config["split_bound_bytes"]
    if config["sync"] == "ssp":
        found["staleness_bound"] = config["ssp_bound"]
    return found


def _cluster(config: dict[str, Any], net: dict[str, Any], gloo: list[dict[str, Any]]) -> pm.Cluster:
    rate, latency_s, efficiency = config["rate"], net.get("rtt_s", 0.0) / 2.0, TCP_EFFICIENCY
    if config["arch"] == "ring_ddp" and gloo:  # a step of the smallest all-reduce
        like = config["n_workers"]
        near = min(gloo, key=lambda r: (abs(r["n_workers"] - like), abs(r["rate"] - rate)))
        smallest = min(near["allreduce_s"], key=int)
        latency_s = near["allreduce_s"][smallest] / (2 * (near["n_workers"] - 1))
    if "tcp_goodput_bps" in net:
        efficiency = min(net["tcp_goodput_bps"] / rate, 1.0)
    rates = (rate, *config.get("rates_bps", ()))
    nic, *nics = [pm.Link(bits_per_s / 8, latency_s, efficiency) for bits_per_s in rates]
    return pm.Cluster(
        name="testbed",
        nic=nic,
        nodes=config.get("n_nodes"),
        overrides=tuple(pm.NodeOverride(i, own) for i, own in enumerate(nics) if own != nic),
        server=pm.Server(placement=config.get("placement", "dedicated")),
        queue_bytes=net.get("queue"),
        source=pm.Source("measured", "net.jsonl and gloo.jsonl of the same cluster"),
    )
