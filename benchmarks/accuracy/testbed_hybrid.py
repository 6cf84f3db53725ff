"""Runs of pipelines, tensor parallelism and sharding between network namespaces.

The folder holds ``results.jsonl`` (configuration and measurement of every run), ``coll.jsonl``
(times of gloo's collectives on the same links) and ``net.jsonl`` (what single messages take).
Nothing is fitted.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

import perfmodel as pm
from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.accuracy.gloo import cluster_of, link_of
from perfmodel.base.errors import number
from perfmodel.inputs.passes import accumulated

ABOUT = about("testbed_hybrid")

SCOPES = {"microbatch": "op", "iteration": "iteration"}

COLLECTIVE_HOST_S, COPY_PER_BYTE_S = 1.5e-3, 1.37e-9
"""What FSDP2 takes on a node of two slow cores for each collective besides gloo's own time.

Measured apart from the runs, on links of 250 Mbit/s between such namespaces: an iteration of FSDP2
less the same collectives and waits without it, for units of one tensor of 64 KB to 2 MB among two
and four ranks (10 cells of 12 pairs each). The fit is 1.5 ms (standard error 0.2), and 1.4 ns
(0.3) for each byte that is copied. Processor time of the main thread alone has the same fixed part,
and 0.4 ns per byte; the rest is on gloo's threads, which find the pages of new buffers untouched.
"""

SCHEDULES = {"f1b1": "1f1b", "zb": "interleaved_zb", "zbv": "zb_v"}
"""Names of schedules here, where they differ."""


def cases(folder: Path) -> list[Case]:
    """Return every measured value of every run, with its prediction."""
    return predicted(runs(folder))


def runs(folder: Path) -> list[Run]:
    """Return the runs; those of an unknown kind are reported."""
    gloo, links = (
        [times for _, times in rows.read_json_lines(folder / name, needed=False)]
        for name in ("coll.jsonl", "net.jsonl")
    )
    made = []
    for where, row in rows.read_json_lines(folder / "results.jsonl"):
        try:
            net = link_of(links, row["config"]["rate"]) | row["net"]
            made.append(_run(row, job_of(row["config"], net, gloo)))
        except (KeyError, TypeError) as error:
            rows.say_left_out(f"{error} is unknown, missing or wrong", [where])
        except pm.InputError as error:
            rows.say_left_out(str(error), [where])
    if not made:
        raise pm.InputError(f"{folder}: no run that can be predicted")
    return made


def _run(row: dict[str, Any], job: pm.Job) -> Run:
    config, measured = row["config"], row["meas"]
    mesh, kind = config["mesh"], config["kind"]
    names = [config.get("schedule"), config.get("dp_mode"), config.get("tp_mode")]
    size = "tp{tp} dp{dp} pp{pp}".format(**mesh)
    return Run(
        group=f"testbed_hybrid/{kind}",
        name=" ".join([config["model"], size, *filter(None, names), f"{config['rate'] / 1e6:g}"]),
        job=job,
        step_s=number("iter_s_mean", measured["iter_s_mean"], above=0.0),
        idle=number("idle_frac_mean", measured["idle_frac_mean"], at_least=-math.inf),
        rank_idle=tuple(number("idle_frac", x, at_least=-math.inf) for x in measured["idle_frac"]),
        iterations=max(round(measured["iters_measured"]), 1),
        pools=("testbed_hybrid/all",),
    )


def job_of(config: dict[str, Any], net: dict[str, Any], gloo: list[dict[str, Any]]) -> pm.Job:
    """Return the job that a run's configuration describes."""
    mesh, jitter, straggler = config["mesh"], config.get("jitter"), config.get("straggler")
    layers = [_layer(one, mesh["tp"]) for one in config["layers"]]
    one = pm.Workload.of(config["model"], layers, device="testbed")
    arch, options = _architecture(config)
    cluster = cluster_of(config, net, gloo)
    if straggler:
        slow = pm.NodeOverride(straggler["rank"], None, 1.0 / straggler["factor"])
        cluster = msgspec.structs.replace(cluster, overrides=(*cluster.overrides, slow))
    return pm.make_job(
        workload=accumulated(one, config["microbatches"]),
        cluster=cluster,
        workers=mesh["dp"],
        arch=arch,
        options=options,
        jitter=jitter and pm.Jitter(jitter["cv"], jitter["kind"], SCOPES[jitter["scope"]]),
        seed=config.get("seed", 0),
        **_replica(config),
    )


def _replica(config: dict[str, Any]) -> dict[str, Any]:
    mesh = config["mesh"]
    if mesh["tp"] * mesh["pp"] == 1:
        return {}
    given: dict[str, Any] = {"tensor": mesh["tp"], "pipeline": mesh["pp"], "transfers": "gloo"}
    if config.get("tp_mode") == "ar_overlap":
        given["overlap_sums"] = True
    if config.get("tp_mode") == "sp":
        given["sequence_parallel"] = True
    if mesh["pp"] > 1:
        given["schedule"] = SCHEDULES.get(config["schedule"], config["schedule"])
        given["virtual_stages"] = config["virtual"]
        given["stage_layers"] = "+".join(str(len(stage)) for stage in config["stages"])
    return given


def _layer(one: dict[str, Any], tensor: int) -> pm.WorkloadLayer:
    return pm.WorkloadLayer(
        one["name"],
        one["fwd_s"],
        one["bwd_s"],
        (one["bytes"] * tensor,),
        one["act_bytes"],
        weight_gradient_s=one["bwd_w_s"],
        forward_summed_bytes=one["act_bytes"] if tensor > 1 else 0.0,
        backward_summed_bytes=one["act_bytes"] if tensor > 1 else 0.0,
    )


def _architecture(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if config.get("prefetch") is not None:
        sharded = {"unit_bytes": 0, "prefetch": int(config["prefetch"] == "async")}
        sharded |= {"blocking_reduce": True, "reshard_after_backward": True}
        sharded |= {"reshard_after_forward": config.get("reshard", True)}
        sharded |= {"copy_per_byte_s": COPY_PER_BYTE_S, "collective_host_s": COLLECTIVE_HOST_S}
        return "fsdp", sharded | ({"shard_group": config["shard"]} if config.get("shard") else {})
    match config.get("dp_mode"):
        case "overlap":
            return "ring", {"bucketing": "layer"}
        case "end":
            return "ring", {"bucketing": "one", "overlap": False}
        case _:
            names = ("bucket_cap_bytes", "first_bucket_bytes")
            return "ring", {name: config[name] for name in names if config.get(name)}
