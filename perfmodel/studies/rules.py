"""The rules of :mod:`perfmodel.studies.advice`: when to try a change, and which changes to try.

A rule states, with predicted numbers, why it applies to a job, and makes the changed jobs. The
speed-up is predicted, never asserted; published observations of such changes are quoted beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from perfmodel.catalogue.job_workload import anchored
from perfmodel.inputs.job import Job
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import (
    Change,
    of_architecture,
    of_arguments,
    of_cluster,
    of_options,
)
from perfmodel.studies.divisions import recomputations, splits
from perfmodel.sweeping.comparison import WORDS

LEAST_WAITING = 0.05
"""Smallest fraction of the time lost to a cause at which a rule looks for a remedy."""

PIECE_BYTES = 4e6
"""Partition size with which priority scheduling is tried; ByteScheduler uses 2 to 8 MB."""

LONG_PERIOD = 1024
"""Longest exchange period that is tried."""

SCHEDULES = (("interleaved_1f1b", 2), ("zb_h1", 1), ("zb_v", 2), ("1f1b", 1))
"""Schedules of pipelines that are tried, with chunks per stage."""


class Situation(NamedTuple):
    """A job before any change, and its prediction."""

    job: Job
    prediction: Prediction

    def option(self, name: str) -> Any:
        """The value of an option; None if the architecture has no option of that name."""
        return getattr(self.job.options, name, None)

    def waiting(self, *causes: str) -> float:
        """Fraction of the time that devices wait for any of these causes."""
        by_cause = self.prediction.idle_fraction.by_cause
        return sum(by_cause.get(cause, 0.0) for cause in causes)

    @property
    def has_servers(self) -> bool:
        """Whether the job has parameter servers."""
        return self.job.options.server_count > 0


class Rule(NamedTuple):
    """A change to try.

    Attributes
    ----------
    name : name of the rule.
    why : explains with predicted numbers why the rule applies; empty text if it does not.
    changes : the changed jobs to try; none if the rule does not apply.
    observed, source : what was published about such a change, and where.
    hardware : whether the change is to the hardware rather than to options.
    """

    name: str
    why: Callable[[Situation], str]
    changes: Callable[[Situation], Iterator[Change]]
    observed: str
    source: str
    hardware: bool = False


def _waits_for(*causes: str, link: bool = False) -> Callable[[Situation], str]:
    """Say how much time is spent waiting for causes, if it is enough, and which link is busiest."""

    def why(now: Situation) -> str:
        lost = now.waiting(*causes)
        if lost < LEAST_WAITING:
            return ""
        words = [WORDS[cause] for cause in causes if now.waiting(cause) > 0.0]
        text = f"{lost:.0%} of the time is {' and '.join(words)}"
        use = now.prediction.utilisation.links
        if link and use:
            busiest = max(use, key=lambda name: use[name])
            text += f"; {busiest} is in use {use[busiest]:.0%} of the time"
        return text

    return why


def _servers(now: Situation) -> Iterator[Change]:
    count = now.job.options.server_count
    if now.has_servers:
        for servers in sorted({2 * count, now.job.workers, max(count // 2, 1)} - {count}):
            yield of_options(
                f"{servers} server{'s' * (servers > 1)} instead of {count}", servers=servers
            )


def _placement(now: Situation) -> Iterator[Change]:
    server = now.job.of_devices.cluster.server
    there = {"dedicated": "colocated", "colocated": "dedicated"}[server.placement]
    where = "dedicated nodes" if there == "dedicated" else "the workers' nodes"
    if now.has_servers:
        moved = msgspec.structs.replace(server, placement=there, site=None)
        yield of_cluster(f"servers on {where}", server=moved)


def _overlap(now: Situation) -> Iterator[Change]:
    if now.option("overlap") is False:
        yield of_options("overlap communication with computation", overlap=True)


def _buckets(now: Situation) -> Iterator[Change]:
    if now.option("bucketing") is not None:
        for bucketing in ("ddp", "mg_wfbp", "layer", "one"):
            if bucketing != now.option("bucketing"):
                yield of_options(f"bucketing={bucketing}", bucketing=bucketing)


def _priority(now: Situation) -> Iterator[Change]:
    name = "send first what the next forward pass needs first, in 4 MB pieces"
    if now.option("transmission") in ("fifo", "shared"):
        yield of_options(name, transmission="priority", partition_bytes=PIECE_BYTES)
    elif now.option("transmission") is None and now.option("priority") is False:
        yield of_options(name, priority=True, partition_bytes=PIECE_BYTES, cross_barrier=True)


def _compression(now: Situation) -> Iterator[Change]:
    if now.option("compression") == "none":
        yield of_options("8-bit gradients", compression="quantised")
        yield of_options("only the largest 0.1 % of gradient elements", compression="dgc")


def _batch(now: Situation) -> Iterator[Change]:
    batch = now.job.of_devices.workload.batch_size
    arguments = now.job.given or {}
    if "batch_size" not in arguments and "model" not in arguments:
        return
    measured = anchored(arguments, batch).get("one_device_batch_size")
    for size in (2 * batch, 4 * batch):
        each = "device" if now.job.islands else "worker"
        name = f"batch size {size} per {each} instead of {batch}"
        flags = f"--batch-size {size}"
        flags += "" if measured is None else f" --one-device-batch-size {measured}"
        yield of_arguments(name, flags, batch_size=size)


def _sync(now: Situation) -> Iterator[Change]:
    names = {
        "bsp": "synchronous updates",
        "ssp": "asynchronous updates with a staleness bound",
        "asp": "fully asynchronous updates",
    }
    for sync, name in names.items():
        if now.option("sync") not in (None, sync):
            yield of_architecture(sync, name)


def _without_servers(now: Situation) -> Iterator[Change]:
    if now.job.workers > 1 and now.has_servers:
        yield of_architecture("ring", "a ring all-reduce instead of servers")
    elif now.job.workers > 1:
        name = "synchronous parameter servers, one per worker"
        yield of_architecture("bsp", name, servers=now.job.workers)


def _gossip(now: Situation) -> Iterator[Change]:
    names = {
        "ad_psgd": "averaging between random pairs of workers",
        "d_psgd": "averaging with two neighbours",
        "gosgd": "gossip: send models to random workers",
    }
    for arch, name in names.items():
        if now.job.architecture.name != arch and now.job.workers > 2:
            yield of_architecture(arch, name)


def _period(now: Situation) -> Iterator[Change]:
    period = now.option("period")
    if period is not None and period < LONG_PERIOD:
        name = f"exchange every {2 * period} steps instead of {period}"
        yield of_options(name, period=2 * period)
    elif now.option("probability"):
        half = now.option("probability") / 2.0
        name = f"send a model every {1.0 / half:g} steps on average"
        yield of_options(name, probability=half)
    elif now.job.workers > 1:
        yield of_architecture("local_sgd", "average models every 8 steps", period=8)
        yield of_architecture("easgd", "elastic averaging every 4 steps", period=4)


def _stragglers(now: Situation) -> Iterator[Change]:
    slow = now.job.stragglers
    if now.option("backup_workers") == 0 and now.option("sync") == "bsp" and now.job.workers > 2:
        spare = max(len(slow), 1)
        slowest = f"{spare} slowest workers" if spare > 1 else "slowest worker"
        name = f"do not wait for the {slowest}"
        yield of_options(name, backup_workers=spare)
    if slow:
        workers = "workers" if len(slow) > 1 else "worker"
        name = f"{workers} {', '.join(str(s.worker) for s in slow)} as fast as the others"
        yield of_arguments(name, stragglers=())


def _hardware(now: Situation) -> Iterator[Change]:
    nic, measured = now.job.of_devices.cluster.nic, bool(now.job.of_devices.cluster.collectives)
    if now.job.workers > 1 and not measured:  # measured collectives hold for this network only
        twice, half = 2.0 * nic.bandwidth_bytes_per_s, nic.latency_s / 2.0
        flags = f"--bandwidth {twice * 8e-9:g}Gbps"
        yield of_arguments("twice the bandwidth", flags, bandwidth_bytes_per_s=twice)
        yield of_arguments("half the latency", f"--latency {half * 1e6:g}us", latency_s=half)
    if now.job.crosses_sites:
        wider = tuple(
            msgspec.structs.replace(link, bandwidth_bytes_per_s=2.0 * link.bandwidth_bytes_per_s)
            for link in now.job.of_devices.cluster.site_links
        )
        yield of_cluster("twice the bandwidth between sites", site_links=wider)
    if now.has_servers:
        more = now.job.options.server_count + 1
        yield of_options("one more server", servers=more)
    faster = now.job.of_devices.workload.scaled("compute_s", 0.5)
    yield of_arguments("devices twice as fast", workload=faster)


def _micro_batches(now: Situation) -> Iterator[Change]:
    """More micro-batches of the same batch, or of larger batches if each has one sample."""
    if now.job.replica is None:
        return
    batch, passes = now.job.workload.batch_size, now.job.workload.accumulation
    for more in (2 * passes, 4 * passes):
        size = batch if batch % more == 0 else batch * more // passes
        name = f"{more} micro-batches instead of {passes}"
        flags = f"--micro-batches {more}"
        if size != batch:
            name, flags = f"{name}, of batch {size}", f"{flags} --batch-size {size}"
        yield of_arguments(name, flags, micro_batches=more, batch_size=size)


def _schedules(now: Situation) -> Iterator[Change]:
    """Other schedules of the same stages, and stages of equal time."""
    replica = now.job.replica
    if replica is None or replica.pipeline == 1:
        return
    for schedule, chunks in SCHEDULES:
        if (schedule, chunks) != (replica.schedule, replica.virtual_stages):
            flags = f"--schedule {schedule} --virtual-stages {chunks}"
            name = f"the schedule {schedule}"
            name += f" with {chunks} chunks per stage" * (chunks > 1)
            yield of_arguments(
                name, flags, schedule=schedule, virtual_stages=chunks, stage_layers=None
            )
    if not replica.balance:
        name = "layers divided among stages by their times"
        yield of_arguments(name, "--balance", balance=True, stage_layers=None)


JIA = "Jia and others, IPCCC 2020"
KO = "Ko, Choi, Seo, Kim, IPDPS 2021"

RULES: tuple[Rule, ...] = (
    Rule(
        "servers",
        _waits_for("network", "server", link=True),
        _servers,
        "idle time falls as the number of servers per worker grows; with one server, step time "
        "grows in proportion to the number of workers",
        f"{JIA}; Alqahtani, Demirbas, ICCCN 2019",
    ),
    Rule(
        "placement of servers",
        _waits_for("network", "server", "cpu"),
        _placement,
        "more servers on the workers' machines made training slower, because both compete for "
        "CPU cores",
        JIA,
    ),
    Rule(
        "overlap",
        _waits_for("network", "server"),
        _overlap,
        "sending layers during the backward pass hid most of the communication of deep CNNs",
        "Zhang and others (Poseidon), USENIX ATC 2017",
    ),
    Rule(
        "buckets",
        _waits_for("network"),
        _buckets,
        "merging tensors according to collective latency was faster than sending them one by one "
        "or all at once",
        "Shi, Chu, Li (MG-WFBP), INFOCOM 2019",
    ),
    Rule(
        "priority",
        _waits_for("network", "server"),
        _priority,
        "sending pieces by priority hides communication behind the next forward pass",
        "Peng and others (ByteScheduler), SOSP 2019; Jayarajan and others (P3), MLSys 2019",
    ),
    Rule(
        "compression",
        _waits_for("network"),
        _compression,
        "0.1 % of the gradients gave the same accuracy in the authors' tasks; compression time "
        "counts only if it is given (encode_per_byte_s)",
        "Lin and others (deep gradient compression), ICLR 2018",
    ),
    Rule(
        "batch size",
        _waits_for("network", "server", "straggler"),
        _batch,
        "larger batches made epochs shorter, with diminishing returns; accuracy after the same "
        "number of epochs fell",
        JIA,
    ),
    Rule(
        "synchronisation",
        _waits_for("straggler", "network", "server"),
        _sync,
        "asynchronous epochs were never longer than synchronous ones; ResNet-50 on 24 workers "
        "reached 75.1 % accuracy with BSP, 74.6 % with ASP, and 72.8 % with SSP and a bound of 3",
        f"{JIA}; {KO}",
    ),
    Rule(
        "all-reduce or servers",
        _waits_for("network", "server"),
        _without_servers,
        "algorithms with servers scaled poorly; those without servers avoided the bottleneck",
        KO,
    ),
    Rule(
        "gossip",
        _waits_for("network", "server"),
        _gossip,
        "training without servers avoided the bottleneck; ResNet-50 on 24 workers reached 74.1 % "
        "accuracy with AD-PSGD, 75.1 % with BSP, and at most 46.4 % with GoSGD",
        KO,
    ),
    Rule(
        "period of exchanges",
        _waits_for("network", "server", "straggler"),
        _period,
        "exchanging less often cost much accuracy: ResNet-50 on 24 workers reached 47.1 % with "
        "EASGD at period 4, 45.3 % at period 8, and 75.1 % with BSP",
        KO,
    ),
    Rule(
        "stragglers",
        _waits_for("straggler"),
        _stragglers,
        "synchronous training with a few backup workers reached a given accuracy sooner than both "
        "plain synchronous and asynchronous training",
        "Chen, Pan, Monga, Bengio, Jozefowicz, 2016, arXiv 1604.00981",
    ),
    Rule(
        "micro-batches",
        _waits_for("pipeline"),
        _micro_batches,
        "the bubble was negligible from four times as many micro-batches as stages on",
        "Huang and others (GPipe), NeurIPS 2019, arXiv 1811.06965",
    ),
    Rule(
        "schedule of the pipeline",
        _waits_for("pipeline"),
        _schedules,
        "interleaved stages made training of a model with 175 billion parameters faster by about a "
        "tenth, and schedules without a bubble more",
        "Narayanan and others, SC 2021, arXiv 2104.04473; Qi and others, ICLR 2024, "
        "arXiv 2401.10241",
    ),
    Rule(
        "division of the model",
        _waits_for("pipeline", "network"),
        lambda now: splits(now.job),
        "tensor parallelism up to the devices of a node and pipelines between nodes were best; "
        "other divisions of the same devices were up to twice as slow",
        "Narayanan and others, SC 2021, arXiv 2104.04473",
    ),
    Rule(
        "recomputation",
        lambda now: (
            f"the backward pass computes again what it needs ({now.job.workload.recompute})"
            if now.job.workload.recompute != "none"
            else ""
        ),
        lambda now: recomputations(now.job),
        "recomputing only what takes much memory and little time saved more than 90 % of the time "
        "of recomputing whole blocks",
        "Korthikanti and others, MLSys 2023, arXiv 2205.05198",
    ),
    Rule(
        "hardware",
        lambda now: now.prediction.bottleneck.text,
        _hardware,
        "VGG-16 was more communication-bound than ResNet-50, and both more at 10 Gbps than at 56",
        KO,
        hardware=True,
    ),
)
