"""Runs of real frameworks between network namespaces, predicted from their configuration alone.

The folder holds ``results.jsonl`` (configuration and measurement of every run, and what the bare
network achieves) and, if there are rings, ``gloo.jsonl`` (times of gloo's all-reduce on the same
links). Nothing is fitted to a run's outcome but the intervals: what the predictions of all DNNs but
one left unexplained is in ``fitted/testbed.json``, and is what the runs of that one are expected to
be off by. *all* is for DNNs that were never seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import (
    Cluster,
    InputError,
    Jitter,
    Job,
    Link,
    NodeOverride,
    Prediction,
    Server,
    Source,
    Straggler,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
)
from perfmodel.base.errors import number
from perfmodel.base.uncertainty import COVERAGE, WIDTH, Uncertainty

ABOUT = About(
    title="Testbed: real frameworks on a small emulated cluster",
    citation="This project's own runs: PyTorch 2.13 over gloo, MXNet 1.9.1, and programs over TCP "
    "sockets, between network namespaces",
    folder="testbed",
    splits={
        "runs": Split(
            "nothing: configuration, bare TCP and gloo, and for the intervals the other DNNs",
            "every run",
        )
    },
    remarks="""\
Nodes are network namespaces of one machine, joined by a software switch, with links of 150 or 300
Mbit/s and queues of 512 KiB. TCP, the frameworks, their threads and messages are real; the
computation of a layer is a wait of known length. There are 2 to 8 workers, jitter, stragglers, one
and two servers, servers on the workers' nodes, with and without overlap. It tests the model of
communication and of waiting, not computation times, GPUs, fast networks or hundreds of workers.

*Mechanisms.* Buckets of DDP, two collectives at a time in gloo, a queue for each connection,
replies that overlap pushes, random starts of asynchronous workers
([why](decisions/0005-random-start-of-asynchronous-jobs.md)), and losses where several workers push
to one server: with `queue_bytes` the parts of its link are as
[unequal as TCP makes them](explanation/engine.md#where-many-send-to-one). Predictions
of 8 and 6 synchronous workers with many small layers were 11 and 12 % too low without it, and
that of a bounded-staleness run with jitter 25 %. It takes the size of the queue and constants of
RFC 9438, nothing else; that windows are equal when a step's pushes begin was chosen among two
derivations (the other: drawn from the long run) when the runs were known. So was that
asynchronous workers have unequal parts as well, which leaves errors as they were: it is there for
servers hotter than those of these runs.

*Worst cases.* MXNet's worker asks for a parameter once its push has been acknowledged, and the
request waits behind the pushes that are queued by then. `pull=request` simulates that: synchronous
runs come out 0 to 6 % too fast then, asynchronous ones between 13 % too fast and 11 % too slow.
Which of both describes MXNet is not to be chosen by the outcome, so the default is used. An
asynchronous server whose link is always busy in the simulation reaches 90 % of it in reality
(AlexNet with 4 workers); 111 packets were lost in that run. AlexNet in step with 2 to 8 workers is
2 to 7 % faster than predicted. Pulls that share the server's link unevenly would explain that, as
who is served first computes while others still wait; nothing was measured that tells how unevenly.

*Intervals* use Student's t with as many degrees of freedom as there are DNNs learnt from; that was
chosen when without it 84 % of the runs were inside.

*Not covered*: timeouts after losses (one of ten steps of GoogLeNet with 8 workers took 0.35 s
longer); what a slow link of one node costs the others, up to 23 %: intervals are wider for it.""",
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

RUN_SPREAD = {
    "testbed/ring": 0.01,
    "testbed/ps_bsp": 0.02,
    "testbed/ps_async": 0.005,
    "testbed/ps_ssp": 0.005,
    "testbed/mxnet_bsp": 0.03,
    "testbed/mxnet_async": 0.08,
    "testbed/p2p": 0.01,
    "testbed/dpsgd": 0.004,
    "testbed/adpsgd": 0.04,
}
"""Coefficient of variation of equal runs, by group, as measured; a bound for ring, p2p, ps_bsp."""

SERVERS = ("ps", "mxnet_ps")
"""Kinds of runs where several workers send to one node."""

GLOO_COLLECTIVES_AT_ONCE = 2
"""gloo's process group runs two collectives at a time (its two threads)."""

TCP_EFFICIENCY = 0.956
"""What one TCP transfer gets of a link, where that was not measured."""

SPREADS = np.concatenate([[0.0], np.geomspace(0.0025, 0.64, 33)])
"""Standard deviations that are tried for what predictions leave unexplained."""

LEAST_ALWAYS = 0.0025
"""Of them the least that is always there."""

SLOW_LINK = 0.12
"""Standard deviation on top where one of the nodes has a slower link and several send to a server:
from none to 23 % more than max-min sharing was measured, evenly spread."""

DOUBLING = 0.03
"""Standard deviation on top for each doubling of workers, or of the rate, beyond those of the runs
that were learnt from: an assumption."""


class Learnt(msgspec.Struct, frozen=True):
    """What predictions of some runs left unexplained: standard deviations of the logarithm.

    ``always`` is there in every run; ``waiting`` is for a worker that does nothing but wait.
    """

    always: float
    waiting: float


class Fit(msgspec.Struct, frozen=True):
    """Learnt from ``rows`` runs: for each kind of run, and the range of what they had."""

    rows: int
    learnt: dict[str, Learnt]
    workers: tuple[int, int]
    rate_bits_per_s: tuple[float, float]


@dataclass(frozen=True)
class Run:
    """A measured run: its ``config``, what the ``net`` achieves, and what was ``measured``."""

    config: dict[str, Any]
    net: dict[str, Any]
    measured: dict[str, Any]
    job: Job

    @property
    def group(self) -> str:
        """Name of its kind."""
        return GROUPS[self.config["arch"], self.config["sync"]]

    @property
    def slow_link(self) -> bool:
        """Whether a node has a slower link than the others."""
        return bool(self.job.cluster.overrides)

    @property
    def setting(self) -> str:
        """DNN and cluster: what does not differ among runs that one would choose from."""
        config = self.config
        names = [config["model"], config["arch"], f"{config['rate'] / 1e6:g} Mbit/s"]
        names += [name for name in ("jitter", "straggler") if config.get(name)]
        return " ".join([*names, "slow link"] if self.slow_link else names)

    @property
    def ideal_s(self) -> float:
        """A step of one worker alone."""
        return float(sum(layer["fwd_s"] + layer["bwd_s"] for layer in self.config["layers"]))

    @property
    def plain_s(self) -> float:
        """A step without overlap: computation, then messages at the full rate of the link."""
        config, n = self.config, int(self.config["n_workers"])
        nic = self.job.cluster.nic
        latency_s = float(self.net.get("rtt_s", 0.0)) / 2.0
        once_s = self.job.workload.gradient_bytes / nic.goodput_bytes_per_s
        all_s = n * once_s / max(int(config.get("n_servers", 0)), 1)
        alone_s = self.ideal_s + 2.0 * (once_s + latency_s)
        if config["arch"] in SERVERS:
            if config["sync"] == "bsp":
                return self.ideal_s + 2.0 * (all_s + latency_s)
            return max(alone_s, all_s)
        if config["arch"] == "ring_ddp":
            return self.ideal_s + 2.0 * (n - 1) * (once_s / n + latency_s)
        if config["arch"] == "p2p":
            return self.ideal_s + (n - 1) * once_s + latency_s
        return alone_s


def cases(folder: Path) -> list[Case]:
    """Every measured figure of every run, with its prediction."""
    fits = fitted.read("testbed", Fit)
    found: list[Case] = []
    for run in runs(folder):
        config, measured, group = run.config, run.measured, run.group
        prediction = predict(run.job)
        name = _name(run)
        fit = fits.get(without(config["model"]), fits["all"])
        found.append(
            Case(
                group,
                name,
                prediction.iteration_s,
                measured["iter_s_mean"],
                interval=uncertainty(run, prediction, fit).interval(prediction.iteration_s),
                pools=("testbed/all",),
                others={
                    "coarse": predict(run.job, fidelity="coarse").iteration_s,
                    "ideal scaling": run.ideal_s,
                    "plain alpha-beta": run.plain_s,
                },
                setting=run.setting,
                samples=float(config["n_workers"] * config["batch"]),
            )
        )
        idle = measured.get("idle_frac_mean")
        if idle is not None:
            found.append(
                Case(f"{group}:idle", name, prediction.idle_fraction.mean, idle, relative=False)
            )
        stale = (measured.get("staleness") or {}).get("mean")
        if stale is not None and prediction.staleness is not None:
            found.append(
                Case(f"{group}:staleness", name, prediction.staleness.mean, stale, relative=False)
            )
    return found


def fit(folder: Path) -> None:
    """Learn from the runs in a folder how far predictions are off, and write it down."""
    known = [(run, predict(run.job)) for run in runs(folder)]
    models = sorted({run.config["model"] for run, _ in known})
    entries = {
        without(model): learn([one for one in known if one[0].config["model"] != model])
        for model in models
        if len(models) > 1
    }
    fitted.write("testbed", entries | {"all": learn(known)})


def without(model: str) -> str:
    """Name of the fit to the runs of all DNNs but one."""
    return f"without {model}"


def learn(known: Sequence[tuple[Run, Prediction]]) -> Fit:
    """The most likely spreads, for each kind of run; those of a kind that is missing are pooled."""
    kinds = {run.config["arch"] for run, _ in known}
    some = {kind: [one for one in known if one[0].config["arch"] == kind] for kind in kinds}
    workers = [run.config["n_workers"] for run, _ in known]
    rates = [float(run.config["rate"]) for run, _ in known]
    return Fit(
        rows=len(known),
        learnt={kind: _likely(some[kind]) for kind in sorted(kinds)} | {"any": _likely(known)},
        workers=(min(workers), max(workers)),
        rate_bits_per_s=(min(rates), max(rates)),
    )


def _likely(known: Sequence[tuple[Run, Prediction]]) -> Learnt:
    misses = np.array([math.log(r.measured["iter_s_mean"] / p.iteration_s) for r, p in known])
    waiting = np.array([p.idle_fraction.mean for _, p in known])
    equal = np.array([RUN_SPREAD[run.group] for run, _ in known])
    always, more = np.meshgrid(SPREADS[SPREADS >= LEAST_ALWAYS], SPREADS, indexing="ij")
    variance = equal**2 + always[..., None] ** 2 + (more[..., None] * waiting) ** 2
    cost = (np.log(variance) + misses**2 / variance).sum(axis=-1)
    best = np.unravel_index(int(np.argmin(cost)), cost.shape)
    wider = few(len({run.config["model"] for run, _ in known}))
    return Learnt(round(float(always[best]) * wider, 6), round(float(more[best]) * wider, 6))


def few(models: int) -> float:
    """How much wider intervals are that were learnt from so few DNNs.

    Student's t in the place of the normal distribution. Runs of one DNN are alike, so that it is
    DNNs that count, however many runs there are of each.

    >>> [round(few(n), 2) for n in (1, 2, 3, 10)]
    [3.84, 1.78, 1.43, 1.1]
    """
    from scipy import stats

    return float(stats.t.ppf(0.5 + COVERAGE / 2.0, models)) / WIDTH


def uncertainty(run: Run, prediction: Prediction, fit: Fit) -> Uncertainty:
    """How far the predicted step of a run may be off."""
    learnt = fit.learnt.get(run.config["arch"], fit.learnt["any"])
    rate = run.config["rate"]
    slow = SLOW_LINK if run.slow_link and run.config["arch"] in SERVERS else 0.0
    beyond = [
        math.log2(run.config["n_workers"] / fit.workers[1]),
        math.log2(rate / fit.rate_bits_per_s[1]),
        math.log2(fit.rate_bits_per_s[0] / rate),
    ]
    return Uncertainty(
        measurement=RUN_SPREAD[run.group],
        model=math.hypot(learnt.always, learnt.waiting * prediction.idle_fraction.mean),
        extrapolation=math.hypot(slow, *(DOUBLING * max(times, 0.0) for times in beyond)),
    )


def jobs(folder: Path) -> Iterator[tuple[str, Job, float]]:
    """The DNN, the job and the measured step (s) of every run."""
    for run in runs(folder):
        yield run.config["model"], run.job, run.measured["iter_s_mean"]


def runs(folder: Path) -> list[Run]:
    """The runs of known kinds in a folder; others are left out with a note.

    Raises
    ------
    InputError : there are no runs, or none of a known kind, or one has a wrong number.
    """
    gloo_file = folder / "gloo.jsonl"
    gloo = _lines(gloo_file) if gloo_file.is_file() else []
    found = []
    unknown: dict[str, None] = {}
    results = folder / "results.jsonl"
    for line, row in enumerate(_lines(results), start=1):
        try:
            config, net, measured = row["config"], row.get("net") or {}, row["meas"]
            kind = config["arch"], config["sync"]
            if kind in GROUPS:
                number("rate", config["rate"], above=0.0)
                number("iter_s_mean", measured["iter_s_mean"], above=0.0)
                if measured.get("idle_frac_mean") is not None:
                    number("idle_frac_mean", measured["idle_frac_mean"], at_least=-math.inf)
                found.append(Run(config, net, measured, job_of(config, net, gloo)))
            else:
                unknown[f"{kind[0]} {kind[1]}"] = None
        except (KeyError, TypeError) as error:
            unknown[f"line {line} of results.jsonl: {error} is missing or wrong"] = None
        except InputError as error:
            raise InputError(f"{results}: line {line}: {error}") from None
    for name in unknown:
        click.echo(f"left out: {name}", err=True)
    if not found:
        raise InputError(f"{folder}: no run of a known architecture")
    return found


def job_of(config: dict[str, Any], net: dict[str, Any], gloo: list[dict[str, Any]]) -> Job:
    """The job that a run's configuration describes."""
    jitter = config.get("jitter")
    straggler = config.get("straggler")
    hop_s = net.get("rtt_s", 0.0) / 2.0
    if config["arch"] == "ring_ddp" and gloo:
        hop_s = _ring_hop_s(config, gloo)
    arch, options = ARCHITECTURES[config["arch"]]
    return make_job(
        workload=_workload(config),
        cluster=_cluster(config, net, hop_s),
        workers=config["n_workers"],
        arch=arch,
        options=options(config),
        jitter=Jitter(jitter["cv"], jitter["kind"]) if jitter else None,
        stragglers=[Straggler(straggler["rank"], straggler["factor"])] if straggler else [],
        seed=config.get("seed", 0),
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
    efficiency = TCP_EFFICIENCY
    if "tcp_goodput_bps" in net:
        efficiency = min(net["tcp_goodput_bps"] / config["rate"], 1.0)

    def link(bits_per_s: float) -> Link:
        return Link(bits_per_s / 8, latency_s, efficiency)

    return Cluster(
        name="testbed",
        nic=link(config["rate"]),
        nodes=config.get("n_nodes"),
        overrides=tuple(
            NodeOverride(node, link(rate))
            for node, rate in enumerate(config.get("rates_bps", ()))
            if rate != config["rate"]
        ),
        server=Server(placement=config.get("placement", "dedicated")),
        queue_bytes=net.get("queue"),
        source=Source("measured", "net.jsonl and gloo.jsonl of the same cluster"),
    )


def _ring_hop_s(config: dict[str, Any], gloo: list[dict[str, Any]]) -> float:
    """Latency of one of the ring's 2(n-1) steps: that of the smallest all-reduce measured."""
    workers, rate = config["n_workers"], config["rate"]
    nearest = min(gloo, key=lambda r: (abs(r["n_workers"] - workers), abs(r["rate"] - rate)))
    smallest = min(nearest["allreduce_s"], key=int)
    steps = 2 * (int(nearest["n_workers"]) - 1)
    return float(nearest["allreduce_s"][smallest]) / steps


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


def _name(run: Run) -> str:
    config = run.config
    return (
        f"{config['model']} {config.get('tag', '')} {config['n_workers']} workers "
        f"{config.get('n_servers', 0)} servers {config['rate'] / 1e6:g} Mbit/s"
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found = []
    for line in filter(str.strip, path.read_text(encoding="utf-8-sig").splitlines()):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {len(found) + 1}: not JSON: {error.msg}") from None
    return found
