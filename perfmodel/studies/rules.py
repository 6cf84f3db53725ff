"""The rules of :mod:`perfmodel.studies.advice`: when to try a change, and which changes to try.

A rule states, with predicted numbers, why it applies to a job, and makes the changed jobs. The
speed-up is predicted, never asserted; published observations of such changes are quoted beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from perfmodel import api
from perfmodel.inputs.job import Job
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import (
    Change,
    of_architecture,
    of_arguments,
    of_cluster,
    of_options,
)
from perfmodel.sweeping.comparison import WORDS

LEAST_WAITING = 0.05
"""Smallest fraction of the time lost to a cause at which a rule looks for a remedy."""

PIECE_BYTES = 4e6
"""Partition size with which priority scheduling is tried; ByteScheduler uses 2 to 8 MB."""

LONG_PERIOD = 1024
"""Longest exchange period that is tried."""


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
    changes : the changed jobs to try.
    observed, source : what was published about such a change, and where.
    hardware : whether the change is to the hardware rather than to options.
    """

    name: str
    why: Callable[[Situation], str]
    changes: Callable[[Situation], Iterator[Change]]
    observed: str
    source: str
    hardware: bool = False


def _lost(now: Situation, *causes: str) -> str:
    """Describe how much time is spent waiting for causes; empty if below the threshold."""
    lost = now.waiting(*causes)
    some = [WORDS[cause] for cause in causes if now.waiting(cause) > 0.0]
    return f"{lost:.0%} of the time is {' and '.join(some)}" if lost >= LEAST_WAITING else ""


def _busiest(use: Mapping[str, float]) -> str:
    """Describe the busiest resource."""
    name, most = max(use.items(), key=lambda item: item[1], default=("", 0.0))
    return f"; {name} is in use {most:.0%} of the time" if name else ""


def _servers_why(now: Situation) -> str:
    lost = _lost(now, "network", "server") if now.has_servers else ""
    return lost and lost + _busiest(now.prediction.utilisation.links)


def _servers(now: Situation) -> Iterator[Change]:
    count = now.job.options.server_count
    for other in sorted({2 * count, now.job.workers, max(count // 2, 1)} - {count}):
        yield of_options(f"{other} server{'s' * (other > 1)} instead of {count}", servers=other)


def _placement_why(now: Situation) -> str:
    if not now.has_servers:
        return ""
    return _lost(now, "network", "server", "cpu")


def _placement(now: Situation) -> Iterator[Change]:
    cluster = now.job.of_devices.cluster
    there = {"dedicated": "colocated", "colocated": "dedicated"}[cluster.server.placement]
    server = msgspec.structs.replace(cluster.server, placement=there, site=None)
    where = "dedicated nodes" if there == "dedicated" else "the workers' nodes"
    yield of_cluster(f"servers on {where}", server=server)


def _overlap_why(now: Situation) -> str:
    return _lost(now, "network", "server") if now.option("overlap") is False else ""


def _overlap(now: Situation) -> Iterator[Change]:
    yield of_options("overlap communication with computation", overlap=True)


def _buckets_why(now: Situation) -> str:
    return _lost(now, "network") if now.option("bucketing") is not None else ""


def _buckets(now: Situation) -> Iterator[Change]:
    for each in ("ddp", "mg_wfbp", "layer", "one"):
        if each != now.option("bucketing"):
            yield of_options(f"bucketing={each}", bucketing=each)


def _priority_why(now: Situation) -> str:
    has = now.option("transmission") in ("fifo", "shared") or now.option("priority") is False
    return _lost(now, "network", "server") if has else ""


def _priority(now: Situation) -> Iterator[Change]:
    name = "send first what the next forward pass needs first, in 4 MB pieces"
    if now.option("transmission") is not None:
        yield of_options(name, transmission="priority", partition_bytes=PIECE_BYTES)
    else:
        pieces = {"partition_bytes": PIECE_BYTES, "cross_barrier": True}
        yield of_options(name, priority=True, **pieces)


def _compression_why(now: Situation) -> str:
    return _lost(now, "network") if now.option("compression") == "none" else ""


def _compression(now: Situation) -> Iterator[Change]:
    yield of_options("8-bit gradients", compression="quantised")
    yield of_options("only the largest 0.1 % of gradient elements", compression="dgc")


def _batch_why(now: Situation) -> str:
    return _lost(now, "network", "server", "straggler")


def _batch(now: Situation) -> Iterator[Change]:
    batch = now.job.of_devices.workload.batch_size
    given = now.job.given or {}
    if "batch_size" not in given and "model" not in given:
        return
    measured = api.anchored(given, batch).get("one_device_batch_size")
    for other in (2 * batch, 4 * batch):
        name = f"batch size {other} per worker instead of {batch}"
        flags = f"--batch-size {other}"
        flags += "" if measured is None else f" --one-device-batch-size {measured}"
        yield of_arguments(name, flags, batch_size=other)


def _sync_why(now: Situation) -> str:
    return _lost(now, "straggler", "network", "server") if now.option("sync") is not None else ""


def _sync(now: Situation) -> Iterator[Change]:
    names = {
        "bsp": "synchronous updates",
        "ssp": "asynchronous updates with a staleness bound",
        "asp": "fully asynchronous updates",
    }
    for sync, name in names.items():
        if sync != now.option("sync"):
            yield of_architecture(sync, name)


def _without_servers_why(now: Situation) -> str:
    return _lost(now, "network", "server") if now.job.workers > 1 else ""


def _without_servers(now: Situation) -> Iterator[Change]:
    if now.has_servers:
        yield of_architecture("ring", "a ring all-reduce instead of servers")
    else:
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


def _period_why(now: Situation) -> str:
    return _lost(now, "network", "server", "straggler")


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


def _stragglers_why(now: Situation) -> str:
    return _lost(now, "straggler")


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


def _hardware_why(now: Situation) -> str:
    return now.prediction.bottleneck.text


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


JIA = "Jia and others, IPCCC 2020"
KO = "Ko, Choi, Seo, Kim, IPDPS 2021"

RULES: tuple[Rule, ...] = (
    Rule(
        "servers",
        _servers_why,
        _servers,
        "idle time falls as the number of servers per worker grows; with one server, step time "
        "grows in proportion to the number of workers",
        f"{JIA}; Alqahtani, Demirbas, ICCCN 2019",
    ),
    Rule(
        "placement of servers",
        _placement_why,
        _placement,
        "more servers on the workers' machines made training slower, because both compete for "
        "CPU cores",
        JIA,
    ),
    Rule(
        "overlap",
        _overlap_why,
        _overlap,
        "sending layers during the backward pass hid most of the communication of deep CNNs",
        "Zhang and others (Poseidon), USENIX ATC 2017",
    ),
    Rule(
        "buckets",
        _buckets_why,
        _buckets,
        "merging tensors according to collective latency was faster than sending them one by one "
        "or all at once",
        "Shi, Chu, Li (MG-WFBP), INFOCOM 2019",
    ),
    Rule(
        "priority",
        _priority_why,
        _priority,
        "sending pieces by priority hides communication behind the next forward pass",
        "Peng and others (ByteScheduler), SOSP 2019; Jayarajan and others (P3), MLSys 2019",
    ),
    Rule(
        "compression",
        _compression_why,
        _compression,
        "0.1 % of the gradients gave the same accuracy in the authors' tasks; compression time "
        "counts only if it is given (encode_per_byte_s)",
        "Lin and others (deep gradient compression), ICLR 2018",
    ),
    Rule(
        "batch size",
        _batch_why,
        _batch,
        "larger batches made epochs shorter, with diminishing returns; accuracy after the same "
        "number of epochs fell",
        JIA,
    ),
    Rule(
        "synchronisation",
        _sync_why,
        _sync,
        "asynchronous epochs were never longer than synchronous ones; ResNet-50 on 24 workers "
        "reached 75.1 % accuracy with BSP, 74.6 % with ASP, and 72.8 % with SSP and a bound of 3",
        f"{JIA}; {KO}",
    ),
    Rule(
        "all-reduce or servers",
        _without_servers_why,
        _without_servers,
        "algorithms with servers scaled poorly; those without servers avoided the bottleneck",
        KO,
    ),
    Rule(
        "gossip",
        _without_servers_why,
        _gossip,
        "training without servers avoided the bottleneck; ResNet-50 on 24 workers reached 74.1 % "
        "accuracy with AD-PSGD, 75.1 % with BSP, and at most 46.4 % with GoSGD",
        KO,
    ),
    Rule(
        "period of exchanges",
        _period_why,
        _period,
        "exchanging less often cost much accuracy: ResNet-50 on 24 workers reached 47.1 % with "
        "EASGD at period 4, 45.3 % at period 8, and 75.1 % with BSP",
        KO,
    ),
    Rule(
        "stragglers",
        _stragglers_why,
        _stragglers,
        "synchronous training with a few backup workers reached a given accuracy sooner than both "
        "plain synchronous and asynchronous training",
        "Chen, Pan, Monga, Bengio, Jozefowicz, 2016, arXiv 1604.00981",
    ),
    Rule(
        "hardware",
        _hardware_why,
        _hardware,
        "VGG-16 was more communication-bound than ResNet-50, and both more at 10 Gbps than at 56",
        KO,
        hardware=True,
    ),
)
