"""Traces: the rules of the format, with a canary for each, and the contents of a trace."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from perfmodel import Straggler, predict
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import accumulated
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
Trace = dict[str, Any]

RESERVED = {
    "thread_state_iowait",
    "thread_state_running",
    "generic_work",
    "rail_animation",
    "terrible",
    "grey",
}
"""The viewers' reserved colour names that traces use."""


def synchronous() -> Job:
    return job(WORK, cluster(), 2, "ps")


def asynchronous(**how: Any) -> Job:
    return job(WORK, cluster(), 3, "ps", {"sync": "asp"}, start="staggered", **how)


def ns(microseconds: float) -> int:
    whole = round(microseconds * 1e3)
    assert microseconds * 1e3 == pytest.approx(whole, rel=1e-12), "no whole nanosecond"
    return whole


def by_phase(trace: Trace, phase: str) -> list[Trace]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def check_slices(trace: Trace) -> None:
    named = {(e["pid"], e.get("tid"), e["name"]) for e in trace["traceEvents"] if e["ph"] == "M"}
    processes = {e["pid"] for e in trace["traceEvents"]}
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for e in by_phase(trace, "X"):
        assert e["pid"] > 0, "process that viewers take for the idle one"
        assert e["tid"] not in processes | {0}, "thread that viewers take for a main thread"
        assert (e["pid"], None, "process_name") in named, "process without a name"
        assert (e["pid"], e["tid"], "thread_name") in named, "thread without a name"
        assert e["cname"] in RESERVED, "colour that viewers do not know"
        begin, end = ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])
        assert end >= begin >= 0, "slice backwards"
        threads[e["pid"], e["tid"]].append((begin, end))
    for slices in threads.values():
        for (_, end), (begin, _) in pairwise(sorted(slices)):
            assert begin >= end, "slices overlap"


def check_order(trace: Trace) -> None:
    seen: dict[int, set[int]] = defaultdict(set)
    for e in trace["traceEvents"]:
        if e["name"] == "thread_sort_index":
            rank = e["args"]["sort_index"]
            assert rank not in seen[e["pid"]], "two threads of one rank"
            seen[e["pid"]].add(rank)


def check_arrows(trace: Trace) -> None:
    slices = defaultdict(list)
    for e in by_phase(trace, "X"):
        slices[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])))
    starts = {e["id"]: e for e in by_phase(trace, "s")}
    ends = {e["id"]: e for e in by_phase(trace, "f")}
    assert len(starts) == len(by_phase(trace, "s")), "arrow that starts twice"
    assert starts.keys() == ends.keys(), "arrow with one end"
    for number, start in starts.items():
        end = ends[number]
        assert ns(start["ts"]) < ns(end["ts"]), "arrow back in time"
        for at in (start, end):
            assert at["bp"] == "e", "arrow to the next slice"
            inside = [b <= ns(at["ts"]) < e for b, e in slices[at["pid"], at["tid"]]]
            assert any(inside), "arrow at no slice"


def check_counters(trace: Trace) -> None:
    for e in by_phase(trace, "C"):
        ((measure, value),) = e["args"].items()
        assert value >= 0.0, "counter below 0"
        if measure == "use (%)":
            assert value <= 100.0 + 1e-3, "link used beyond its capacity"
        elif measure == "queue (operations)":
            assert value == int(value), "part of an operation in a queue"
        else:
            assert measure == "staleness (updates)", "unknown counter"


def check(trace: Trace) -> None:
    json.dumps(trace, allow_nan=False)
    assert {e["ph"] for e in trace["traceEvents"]} <= set("MXsfC"), "unknown phase"
    check_slices(trace)
    check_order(trace)
    check_arrows(trace)
    check_counters(trace)
    times = [e["ts"] for e in trace["traceEvents"] if e["ph"] != "M"]
    assert times == sorted(times), "out of order"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arch", "options", "how"),
    [
        ("ring", {"bucket_cap_bytes": 0, "first_bucket_bytes": 0, "concurrent": 2}, {}),
        ("ps", {"duplex": True, "servers": 2}, {}),
        ("ps", {"sync": "asp"}, {"start": "staggered"}),
        ("p2p", {}, {}),
        ("fsdp", {}, {}),
        ("local_sgd", {}, {}),
        ("easgd", {}, {"start": "staggered"}),
        ("ad_psgd", {}, {"start": "staggered"}),
        ("gosgd", {}, {"start": "staggered"}),
    ],
)
def test_traces_keep_the_rules_of_the_format(
    arch: str, options: dict[str, Any], how: dict[str, Any]
) -> None:
    check(predict(job(WORK, cluster(), 3, arch, options, **how)).to_chrome_trace())


def test_traces_of_pipelines_keep_the_rules_and_say_the_micro_batch() -> None:
    work = accumulated(workload([1.0, 1.0], [2.0, 2.0], [4.0, 4.0]), 3)
    trace = predict(job(work, cluster(), 2, "ring", pipeline=2)).to_chrome_trace()
    check(trace)
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert "device of stage 1, worker 0" in named
    assert "iterations of stage 0, worker 1" in named
    slices = {e["name"] for e in by_phase(trace, "X")}
    assert {"forward 0", "forward 2", "backward 1", "send", "all-reduce"} <= slices
    assert "forward 3" not in slices


def first(trace: Trace, phase: str, **values: Any) -> Trace:
    return next(
        e
        for e in trace["traceEvents"]
        if e["ph"] == phase and all(e.get(name) == value for name, value in values.items())
    )


CANARIES: dict[str, Callable[[Trace], Any]] = {
    "slices overlap": lambda t: first(t, "X", name="forward").update(dur=1e9),
    "no whole nanosecond": lambda t: first(t, "X", name="forward").update(dur=1.00055),
    "slice backwards": lambda t: first(t, "X", name="forward").update(dur=-1.0),
    "colour that viewers do not know": lambda t: first(t, "X").update(cname="#ff0000"),
    "process without a name": lambda t: first(t, "M", name="process_name", pid=2).update(pid=99),
    "process that viewers take for the idle one": lambda t: first(t, "X").update(pid=0),
    "thread that viewers take for a main thread": lambda t: first(t, "X").update(tid=2),
    "thread without a name": lambda t: first(t, "M", name="thread_name").update(tid=99),
    "two threads of one rank": lambda t: [
        e["args"].update(sort_index=0) for e in t["traceEvents"] if e["name"] == "thread_sort_index"
    ],
    "arrow with one end": lambda t: t["traceEvents"].remove(first(t, "f")),
    "arrow that starts twice": lambda t: t["traceEvents"].append(
        {**first(t, "s"), "ts": t["traceEvents"][-1]["ts"]}
    ),
    "arrow at no slice": lambda t: first(t, "s").update(tid=99),
    "arrow back in time": lambda t: first(t, "f").update(ts=first(t, "s")["ts"]),
    "arrow to the next slice": lambda t: first(t, "f").update(bp=""),
    "link used beyond its capacity": lambda t: first(t, "C")["args"].update({"use (%)": 120.0}),
    "counter below 0": lambda t: first(t, "C")["args"].update({"use (%)": -1.0}),
    "out of order": lambda t: t["traceEvents"].append(first(t, "C")),
    "unknown phase": lambda t: first(t, "X").update(ph="Q"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("error", CANARIES)
def test_canary_each_rule_notices_a_violation(error: str) -> None:
    """A canary for each rule."""
    trace = copy.deepcopy(predict(synchronous()).to_chrome_trace())
    check(trace)
    CANARIES[error](trace)
    with pytest.raises(AssertionError, match=error):
        check(trace)


def arrows(trace: Trace) -> set[tuple[str, str]]:
    """Operations at both ends of each arrow."""
    slices = by_phase(trace, "X")

    def at(event: Trace) -> str:
        where = event["pid"], event["tid"]
        return next(
            s["args"]["operation"]
            for s in slices
            if (s["pid"], s["tid"]) == where
            and ns(s["ts"]) <= ns(event["ts"]) < ns(s["ts"]) + ns(s["dur"])
        )

    ends = {e["id"]: e for e in by_phase(trace, "f")}
    return {(at(e), at(ends[e["id"]])) for e in by_phase(trace, "s")}


def test_arrows_lead_from_a_push_to_its_update_to_the_pull() -> None:
    where = cluster(update_per_tensor_s=0.5)
    found = arrows(predict(job(WORK, where, 2, "ps", {"sync": "asp"})).to_chrome_trace())
    for worker in ("worker 0", "worker 1"):
        for layer in ("layer0", "layer1"):
            assert (f"push {worker}, {layer}", f"update {worker}, {layer}") in found
        # all of the model is pulled when its last update is done, that of the first layer
        assert (f"update {worker}, layer0", f"pull {worker}, layer0") in found


def test_arrows_pass_operations_that_take_no_time() -> None:
    """A pull of synchronous workers waits for the last update, through the barrier between."""
    found = arrows(predict(job(WORK, cluster(update_per_tensor_s=0.5), 2, "ps")).to_chrome_trace())
    assert any(a.startswith("update") and b.startswith("pull") for a, b in found)
    assert not any("applied" in a + b for a, b in found)


def test_link_utilisation_agrees_with_the_prediction() -> None:
    result = predict(synchronous())
    trace = result.to_chrome_trace()
    begin, end = (1e6 * trace["otherData"][key] for key in ("begin_s", "end_s"))
    used: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for e in by_phase(trace, "C"):
        if "use (%)" in e["args"]:
            used[e["name"]].append((e["ts"], e["args"]["use (%)"]))
    assert used.keys() == result.utilisation.links.keys()
    for link, steps in used.items():
        assert steps[0][0] == begin
        assert steps[-1][0] == end
        mean = sum((b - a) * use for (a, use), (b, _) in pairwise(steps)) / (end - begin)
        assert mean == pytest.approx(100.0 * result.utilisation.links[link], rel=1e-5)


def test_the_staleness_of_each_worker_is_shown() -> None:
    trace = predict(asynchronous()).to_chrome_trace()
    stale = [e for e in by_phase(trace, "C") if "staleness (updates)" in e["args"]]
    assert {e["name"] for e in stale} == {"worker 0", "worker 1", "worker 2"}
    assert max(e["args"]["staleness (updates)"] for e in stale) >= 1.0
    none = predict(synchronous()).to_chrome_trace()
    assert not [e for e in by_phase(none, "C") if "staleness (updates)" in e["args"]]


def test_queue_counters_end_at_zero() -> None:
    where = cluster(1e6, update_per_tensor_s=3.0)
    trace = predict(job(WORK, where, 3, "ps")).to_chrome_trace()
    queue = [
        e["args"]["queue (operations)"]
        for e in by_phase(trace, "C")
        if e["name"] == "update threads of server 0"
    ]
    assert max(queue) >= 2
    assert queue[-1] == 0


def test_a_trace_names_the_steady_state_iterations_it_shows() -> None:
    result = predict(synchronous())
    trace = result.to_chrome_trace()
    said = trace["otherData"]
    assert said["first_iteration"] >= said["steady_state_from"] >= 1
    assert said["iterations"] == (
        f"iterations {said['first_iteration']} to {said['last_iteration']} of worker 0 "
        f"(steady state from {said['steady_state_from']} on)"
    )
    labels = [e for e in by_phase(trace, "M") if e["name"] == "process_labels"]
    assert {e["args"]["labels"] for e in labels} == {said["iterations"]}
    shown = [e for e in by_phase(trace, "X") if e["cat"] == "iteration" and e["pid"] == 2]
    named = [e["name"] for e in shown if e["ts"] < 1e6 * said["end_s"]]
    assert {f"iteration {said[key]}" for key in ("first_iteration", "last_iteration")} <= set(named)
    assert all(e["dur"] == pytest.approx(1e6 * result.iteration_s) for e in shown)
    assert said["end_s"] - said["begin_s"] == pytest.approx(2 * result.iteration_s)


def test_workers_of_different_speed_are_shown_at_the_same_time() -> None:
    """The faster one is iterations ahead by then, and has more of them in the window."""
    lame = asynchronous(stragglers=[Straggler(0, 4.0)])
    trace = predict(lame).to_chrome_trace()
    said = trace["otherData"]
    shown: dict[int, list[int]] = defaultdict(list)
    for e in by_phase(trace, "X"):
        if e["cat"] == "forward":
            shown[e["pid"]].append(e["args"]["iteration"])
            assert e["ts"] <= 1e6 * said["end_s"]
            assert e["ts"] + e["dur"] >= 1e6 * said["begin_s"] - 1e-3
    assert "of worker 0 " in said["iterations"]
    slow, fast = shown[2], shown[3]
    assert min(fast) > max(slow)
    assert len(fast) > 2 * len(slow)


def test_rare_exchanges_are_in_the_window() -> None:
    trace = predict(job(WORK, cluster(), 2, "local_sgd", {"period": 8})).to_chrome_trace()
    moving = [e for e in by_phase(trace, "X") if e["args"].get("bytes", 0.0) > 0.0]
    assert moving
    assert all(e["name"] == "average" for e in moving)
