"""Further contents of a prediction: training time, memory, texts, trace, data frame."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import (
    InputError,
    Jitter,
    Link,
    NodeOverride,
    PredictOptions,
    Server,
    Straggler,
    effects,
    make_job,
    predict,
    read_job,
)
from perfmodel.api import Fidelity, PredictArguments
from perfmodel.cli.printing.prediction import workers_of
from perfmodel.results.prediction import Prediction, percentile
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)


def test_epochs_are_whole_iterations() -> None:
    result = predict(job(WORK, cluster(), 2, "ps"), dataset_size=81, epochs=3)
    assert result.iteration_s == 14.0
    training = result.training
    assert training.iterations_per_epoch == 11
    assert training.epoch_s == pytest.approx(11 * 14.0)
    assert training.training_s == pytest.approx(3 * 11 * 14.0)


def test_epochs_need_a_dataset() -> None:
    with pytest.raises(InputError, match="epochs: needs dataset_size too"):
        predict(job(WORK, cluster(), 2, "ps"), epochs=3)


def test_the_bottleneck_moves_from_the_network_to_computation() -> None:
    slow = predict(job(WORK, cluster(1.0), 2, "ps")).bottleneck
    fast = predict(job(WORK, cluster(1e6), 2, "ps")).bottleneck
    assert "server 0" in slow.resource
    assert fast.resource.startswith("device")
    assert fast.share > 0.99
    assert fast.text.startswith("computation on the workers' devices takes 100%")


def test_the_bottleneck_can_be_the_server_or_latency() -> None:
    where = cluster(1e6, update_per_tensor_s=10.0)
    assert predict(job(WORK, where, 3, "ps")).bottleneck.resource == "update threads of server 0"
    far = predict(job(WORK, cluster(1e6, 30.0), 2, "ring")).bottleneck
    assert far.resource == "latency"


def test_the_second_part_of_a_bottleneck_is_named_from_one_per_cent_on() -> None:
    def text(bandwidth: float, fidelity: Fidelity) -> str:
        return predict(job(WORK, cluster(bandwidth), 2, "ps"), fidelity=fidelity).bottleneck.text

    for fidelity in ("fine", "coarse"):
        assert "; next: " not in text(1e6, fidelity)
        assert "; next: " in text(100.0, fidelity)  # canary


def test_the_bottleneck_names_the_straggler_and_the_slow_link() -> None:
    lame = predict(job(WORK, cluster(1e6), 3, "ring", stragglers=[Straggler(1, 5.0)]))
    assert lame.bottleneck.resource == "device of worker 1"
    override = cluster(10.0, overrides=(NodeOverride(1, cluster(0.1).nic),))
    assert "node 1" in predict(job(WORK, override, 3, "ps")).bottleneck.resource


def test_critical_shares_of_a_compute_bound_ring_add_up() -> None:
    result = predict(job(WORK, cluster(3.0), 2, "ring", {"overlap": False}))
    assert result.bottleneck.share == pytest.approx(4.0 / 5.0)


def test_utilisation_of_links_servers_and_workers() -> None:
    result = predict(job(WORK, cluster(update_per_tensor_s=0.5), 2, "ps", {"overlap": False}))
    period = result.iteration_s
    assert result.utilisation.workers["worker 0"] == pytest.approx(4.0 / period)
    assert result.utilisation.servers["update threads of server 0"] == pytest.approx(2.0 / period)
    assert result.utilisation.links["link into node 2 (server 0)"] == pytest.approx(6.0 / period)
    assert result.utilisation.links["link out of node 0"] == pytest.approx(3.0 / period)


def test_memory_counts_parameters_gradients_optimizer_and_activations() -> None:
    ring = predict(make_job(model="resnet18", arch="ring", workers=2)).memory
    ps = predict(make_job(model="resnet18", arch="ps", workers=2)).memory
    parameters = 4 * 11_689_512
    more = ring.worker_bytes - ps.worker_bytes
    assert more == 2 * parameters  # momentum lives on the server, and buckets are all-reduce's
    assert ps.server_bytes >= 3 * parameters
    assert ring.server_bytes is None


def test_a_batch_too_large_for_memory_is_noted() -> None:
    job_ = make_job(model="vgg16", device="v100", arch="ring", batch_size=2000)
    assert "times the 17.18 GB of v100" in predict(job_).notes[0]


def test_a_trace_has_a_process_per_node_and_a_thread_per_resource() -> None:
    trace = predict(job(WORK, cluster(), 2, "ps")).to_chrome_trace()
    json.dumps(trace)
    events = trace["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    nodes = {"node 0 (worker 0)", "node 1 (worker 1)", "node 2 (server 0)"}
    assert set(names.values()) == {"network", *nodes}
    assert {e["args"]["iteration"] for e in spans} >= {2, 3}
    assert all((e["pid"], e["tid"]) in threads for e in spans)
    forward = next(e for e in spans if e["args"].get("operation") == "forward worker 1, layer0")
    assert forward["dur"] == pytest.approx(1e6)
    assert threads[forward["pid"], forward["tid"]] == "device of worker 1"


@pytest.mark.parametrize(
    ("arch", "options", "threads"),
    [
        ("ring", {"bucket_cap_bytes": 0, "first_bucket_bytes": 0, "concurrent": 2}, 1),
        ("ps", {}, 2),
        ("ps", {"duplex": True, "servers": 2}, 1),
    ],
)
def test_no_two_slices_of_a_trace_overlap_on_one_thread(
    arch: str, options: dict[str, Any], threads: int
) -> None:
    """Viewers nest or drop slices that overlap on a thread, and take process ids from 0 on."""
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 3.0])
    where = cluster(server=Server(update_per_tensor_s=3.0, threads=threads))
    events = predict(job(work, where, 3, arch, options)).to_chrome_trace()["traceEvents"]
    spans = sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"])
    busy_until: dict[tuple[int, int], float] = {}
    for event in spans:
        key = (event["pid"], event["tid"])
        assert event["ts"] >= busy_until.get(key, 0.0) - 1e-6, event["name"]
        busy_until[key] = event["ts"] + event["dur"]
    assert min(e["pid"] for e in events) >= 0


@pytest.mark.draws
def test_a_plot_is_an_image_and_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    result = predict(job(WORK, cluster(), 2, "ps"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"plots need matplotlib: pip install 'perfmodel\[plot\]'"):
        result.plot()
    monkeypatch.undo()
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    assert result.to_image("png").startswith(b"\x89PNG")
    assert result.to_image("svg").startswith(b"<?xml")
    labels = [text.get_text() for text in result.plot().axes[1].get_yticklabels()]
    assert "worker 1" in labels
    with pytest.raises(InputError, match="cannot write 'doc' files"):
        result.to_image("doc")


def test_a_collective_crosses_an_oversubscribed_core_once_per_node() -> None:
    free = predict(job(WORK, cluster(), 4, "ring", {"overlap": False}))
    blocked = predict(job(WORK, cluster(core_oversubscription=3.0), 4, "ring", {"overlap": False}))
    exposed = free.exposed_communication_s
    assert blocked.exposed_communication_s == pytest.approx(3 * exposed)


def test_a_frame_has_a_row_per_worker() -> None:
    result = predict(job(WORK, cluster(), 3, "ps", jitter=Jitter(0.2)))
    frame = result.to_frame()
    assert list(frame["worker"]) == [0, 1, 2]
    assert frame["idle_fraction"].mean() == pytest.approx(result.idle_fraction.mean)
    assert frame.attrs["iteration_s"] == result.iteration_s


def test_percentiles_of_counts() -> None:
    counts = {0: 50, 1: 40, 9: 10}
    assert [percentile(counts, q) for q in (0.5, 0.51, 0.9, 0.91, 1.0)] == [0, 1, 1, 9, 9]


def test_clock_gap_of_a_free_running_straggler_grows() -> None:
    lame = job(
        WORK,
        cluster(1e6),
        2,
        "ps",
        {"sync": "asp"},
        stragglers=[Straggler(0, 2.0)],
        start="staggered",
    )
    assert predict(lame).clock_gap.max > 10
    equal = job(WORK, cluster(1e6), 2, "ps")
    assert predict(equal).clock_gap.max == 0


def test_a_job_file_is_the_same_as_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'schema = "perfmodel.job/1"\nmodel = "vgg16"\ndevice = "v100"\nworkers = 4\n'
        'arch = "ring"\nbandwidth_bytes_per_s = "25Gbps"\njitter = "gamma:0.1"\nseed = 3\n'
        "stragglers = [{worker = 1, factor = 1.5}]\n[options]\nbucket_cap_bytes = '50MiB'\n"
    )
    from_file = predict(make_job(**read_job(path)))
    given = make_job(
        model="vgg16",
        device="v100",
        workers=4,
        arch="ring",
        bandwidth_bytes_per_s=25e9 / 8,
        jitter=Jitter(0.1, "gamma"),
        seed=3,
        stragglers=[Straggler(1, 1.5)],
        options={"bucket_cap_bytes": 50 * 2**20},
    )
    assert from_file.to_json() == predict(given).to_json()


def test_files_named_in_a_job_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'schema = "perfmodel.job/1"\nworkload = "net.json"\ncluster = "lab.toml"\n'
    )
    arguments = read_job(tmp_path / "job.toml")
    assert arguments == {"workload": tmp_path / "net.json", "cluster": tmp_path / "lab.toml"}


@pytest.mark.slow
def test_a_random_job_is_simulated_until_its_interval_is_narrow() -> None:
    """Little jitter needs the fewest runs; much jitter needs more, and the width is reported."""
    calls: list[tuple[int, int]] = []

    def runs(cv: float) -> int:
        calls.clear()
        jittered = job(WORK, cluster(1e6), 2, "ring", jitter=Jitter(cv))
        predict(jittered, progress=lambda done, of: calls.append((done, of)))
        assert all(0 < done <= of for done, of in calls)
        return len(calls)

    assert runs(2.0) > 2 * runs(0.001)


@pytest.mark.slow
def test_the_confidence_interval_covers_the_long_run() -> None:
    """Over 40 seeds, the 95 % interval rarely misses the mean of all of them."""
    results = [
        predict(job(WORK, cluster(2.0), 2, "ring", jitter=Jitter(0.5), seed=seed), rel_ci=0.03)
        for seed in range(40)
    ]
    mean = sum(r.throughput_samples_per_s for r in results) / len(results)
    missed = sum(
        abs(r.throughput_samples_per_s - mean)
        > r.throughput_ci_fraction * r.throughput_samples_per_s
        for r in results
    )
    assert missed <= 6


def test_a_job_may_be_made_of_numpy_numbers() -> None:
    job = make_job(
        model="resnet18",
        arch="asp",
        workers=2,
        jitter=Jitter(np.float64(0.1)),
        stragglers=[Straggler(0, np.float64(1.5))],
    )
    inputs = predict(job, rel_ci=0.1).to_dict()["provenance"]["inputs"]
    assert inputs["jitter"]["cv"] == 0.1
    assert inputs["stragglers"][0]["factor"] == 1.5


@functools.cache
def answered(fidelity: Fidelity) -> Prediction:
    job = make_job(model="resnet18", arch="asp", workers=2)
    return predict(job, fidelity=fidelity, tolerance=1e-6)


@functools.cache
def traced(fidelity: Fidelity) -> dict[str, Any]:
    return answered(fidelity).to_chrome_trace()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("fidelity", ["fine", "auto"])
def test_a_copy_still_gives_its_trace(
    copied: Callable[[Prediction], Prediction], fidelity: Fidelity
) -> None:
    answer = answered(fidelity)
    again = copied(answer)
    assert again is not answer
    assert again == answer
    assert again.to_json() == answer.to_json()
    assert again.to_chrome_trace() == traced(fidelity)


UNEVEN = {"devices_per_node": 4, "devices_on_nodes": (2,)}


@pytest.mark.parametrize(
    ("workers", "fields", "islands", "nodes", "line"),
    [
        (1, {}, None, (1, 1), "1 x gpu"),
        (3, {}, None, (3, 1), "3 x gpu (3 nodes)"),
        (8, {"devices_per_node": 8}, None, (1, 8), "8 x gpu (1 node of 8)"),
        (16, {"devices_per_node": 8}, None, (2, 8), "16 x gpu (2 nodes of 8)"),
        (12, {"devices_per_node": 8}, None, (2, None), "12 x gpu (2 nodes)"),
        (
            6,
            {"devices_per_node": 4, "devices_on_nodes": (2,)},
            None,
            (2, None),
            "6 x gpu (2 nodes)",
        ),
        (2, {"devices_per_node": 8}, 4, (1, 8), "2 islands of 4 x gpu (1 node of 8)"),
        (2, {"devices_per_node": 4}, 8, (4, 4), "2 islands of 8 x gpu (4 nodes of 4)"),
        (2, {"devices_per_node": 4}, "4+2", (2, None), "islands of 4+2 x gpu (2 nodes)"),
    ],
)
def test_nodes_of_a_job(
    workers: int,
    fields: dict[str, Any],
    islands: int | str | None,
    nodes: tuple[int, int | None],
    line: str,
) -> None:
    where = cluster(1e9, intra_node=Link(1e10, 0.0), **fields)
    given = {} if islands is None else {"island_devices": islands, "island_arch": "ring"}
    one = make_job(workload=WORK, cluster=where, workers=workers, arch="easgd", **given)
    found = predict(one, fidelity="coarse")
    assert (found.nodes, found.devices_per_node) == nodes
    assert (found.to_dict()["nodes"], found.to_dict()["devices_per_node"]) == nodes
    assert workers_of(msgspec.structs.replace(found, device="gpu")) == line


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_a_prediction_has_the_effects_of_its_assumptions(fidelity: Fidelity) -> None:
    job = make_job(model="resnet50", device="v100", cluster="ethernet-10g", workers=8)
    answer = predict(job, fidelity=fidelity)
    assert answer.effects == effects(job)
    assert answer.effects is answer.effects  # computed once
    matter = answer.assumptions_that_matter
    assert matter == tuple(effect for effect in answer.effects if effect.matters)
    assert {"bandwidth", "servers"} <= {effect.assumption.name for effect in matter}
    assert "effects" not in answer.to_dict()


def test_a_prediction_read_from_json_has_no_effects() -> None:
    answer = msgspec.structs.replace(predict(make_job(model="resnet18")), predicted_job=None)
    with pytest.raises(InputError, match="effects: a prediction read from JSON has no job"):
        _ = answer.effects


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_one_value_holds_all_uncertainty(fidelity: Fidelity) -> None:
    one = job(WORK, cluster(), 3, "ps", {"sync": "asp"}, jitter=Jitter(0.2))
    answer = predict(one, fidelity=fidelity, rel_ci=0.1)
    uncertainty = answer.uncertainty
    assert uncertainty.interval == answer.interval
    assert uncertainty.error_band == answer.error_band
    assert (uncertainty.error_band is None) == (fidelity == "fine")
    assert uncertainty.ci_fraction == answer.throughput_ci_fraction
    assert (uncertainty.ci_fraction > 0.0) == (fidelity == "fine")


def test_options_are_the_arguments_of_predict() -> None:
    one = job(WORK, cluster(), 2, "ps")
    options = PredictOptions(fidelity="coarse", dataset_size=81)
    assert predict(one, options) == predict(one, fidelity="coarse", dataset_size=81)
    assert predict(one, options, epochs=3) == predict(
        one, fidelity="coarse", dataset_size=81, epochs=3
    )
    assert PredictOptions.__struct_fields__ == tuple(PredictArguments.__annotations__)
    with pytest.raises(InputError, match="fidelity"):
        predict(one, options, fidelity="finer")  # type: ignore[arg-type]
