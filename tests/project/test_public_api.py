"""The public interface: names of the package and JSON keys of a prediction."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

import perfmodel
from perfmodel.cli import cli
from perfmodel.graph.op_graph import CAUSES

DOCS = Path(__file__).parents[2] / "docs"

NAMES = [
    "Advice",
    "Aim",
    "Cluster",
    "Comparison",
    "Convergence",
    "Crossover",
    "DeadlockError",
    "Device",
    "Diagnosis",
    "Explanation",
    "Failures",
    "Formula",
    "Handover",
    "InputError",
    "IntraNode",
    "Jitter",
    "Job",
    "LayoutComparison",
    "Layouts",
    "Link",
    "Measured",
    "NodeOverride",
    "PerfmodelError",
    "Plan",
    "PlanLimits",
    "PredictOptions",
    "Prediction",
    "Profile",
    "Report",
    "Requirement",
    "Schedule",
    "Sensitivity",
    "Server",
    "Source",
    "Straggler",
    "Sweep",
    "TrainingSetup",
    "Variants",
    "Workload",
    "WorkloadLayer",
    "__version__",
    "advise",
    "build_graph",
    "compare",
    "compare_layouts",
    "converge",
    "diagnose",
    "effects",
    "evaluate",
    "explain",
    "formula",
    "largest_batch",
    "layouts",
    "make_job",
    "plan",
    "predict",
    "read_cluster",
    "read_job",
    "read_profile",
    "remedies",
    "report",
    "require",
    "sensitivity",
    "sweep",
]

OF_MODULES = {
    "base.units": ["parse"],
    "calibration": ["Observation", "fit_runs", "fit_servers", "read_runs"],
    "calibration.network": ["fit_network", "read"],
    "calibration.placements": ["Step", "Training", "calibrate_placements"],
    "calibration.traced": ["replay"],
    "calibration.what_if": ["TraceChange", "TracedRanks", "what_if"],
    "catalogue.catalogue": ["cluster", "model"],
    "engine": ["makespan", "simulate", "timeline"],
    "graph": ["GraphBuilder"],
    "measuring.training.run": ["read_run"],
    "profiler": ["Profiler", "describe", "measure_noise"],
    "studies.formulas": ["expressions", "symbols"],
    "validation": ["read_cases", "validate"],
}
"""Public names of modules, which pages for users call."""

NUMBER, WHOLE, TEXT = (int, float), (int,), (str,)
NOTHING = (type(None),)
NUMBERS_BY_NAME = {"*": NUMBER}
"""A mapping whose keys depend on the job, such as link names."""
LINK = {
    "bandwidth_bytes_per_s": NUMBER,
    "latency_s": NUMBER,
    "efficiency": NUMBER,
    "ceiling_bytes_per_s": NUMBER + NOTHING,
}
COLLECTIVE = {
    "operation": TEXT,
    "pieces": [
        {
            "startup_s": NUMBER,
            "per_byte_s": NUMBER,
            "above_bytes": NUMBER,
            "startup_growth": TEXT,
            "per_byte_growth": TEXT,
        }
    ],
    "ranks": [WHOLE],
    "bytes": [NUMBER],
    "uneven": [{"ranks": WHOLE, "factor": NUMBER}],
    "error_fraction": NUMBER + NOTHING,
}
SOURCE = {"kind": TEXT, "text": TEXT, "url": TEXT + NOTHING, "date": TEXT + NOTHING}

CRITICAL_STEP = {
    "operation": TEXT,
    "resource": TEXT,
    "first": TEXT,
    "last": TEXT,
    "count": WHOLE,
    "seconds": NUMBER,
    "waited": (bool,),
}
FOOTPRINT: dict[str, Any] = {
    "parameters_bytes": NUMBER,
    "gradients_bytes": NUMBER,
    "optimizer_states_bytes": NUMBER,
    "copies_bytes": NUMBER,
    "activations_bytes": NUMBERS_BY_NAME,
    "logits_bytes": NUMBER,
    "temporary_bytes": NUMBER,
    "absent_bytes": NUMBERS_BY_NAME,
    "gathered_bytes": NUMBER,
    "buckets_bytes": NUMBER,
    "module_buffers_bytes": NUMBER,
    "model_copies_bytes": NUMBERS_BY_NAME,
    "replica_buffers_bytes": NUMBER,
    "library_bytes": NUMBER,
    "host_bytes": NUMBER,
    "reserved_bytes": {"p5": NUMBER, "median": NUMBER, "p95": NUMBER},
}

TRAINING = ("--dataset-size", "1000", "--failures-per-device-day", "0.001")

PREDICTION: dict[str, Any] = {
    "schema": TEXT,
    "model": TEXT,
    "device": TEXT,
    "quality": TEXT,
    "architecture": TEXT,
    "workers": WHOLE,
    "batch_size": WHOLE,
    "global_batch_size": WHOLE,
    "island_devices": [WHOLE],
    "layout": NOTHING,
    "nodes": WHOLE,
    "devices_per_node": WHOLE,
    "sequence_length": NOTHING,
    "fidelity": TEXT,
    "error_band": NOTHING,
    "throughput_samples_per_s": NUMBER,
    "interval": {
        "coverage": NUMBER,
        "iteration_s": [NUMBER],
        "throughput_samples_per_s": [NUMBER],
        "idle_fraction": [NUMBER],
        "staleness": [NUMBER],
        "parts": {
            "measurement": NUMBER,
            "calibration": NUMBER,
            "model": NUMBER,
            "extrapolation": NUMBER,
        },
        "text": TEXT,
        "iterations": NOTHING,
    },
    "throughput_ci_fraction": NUMBER,
    "iterations": NOTHING,
    "transient_iterations": WHOLE,
    "iteration_s": NUMBER,
    "compute_s": NUMBER,
    "exposed_communication_s": NUMBER,
    "idle_fraction": {
        "mean": NUMBER,
        "per_worker": [NUMBER],
        "by_cause": NUMBERS_BY_NAME,
        "by_stage": [NUMBER],
    },
    "staleness": {
        "mean": NUMBER,
        "p50": WHOLE,
        "p90": WHOLE,
        "max": WHOLE,
        "per_worker": [NUMBER],
        "histogram": NUMBERS_BY_NAME,
        "by_stage": [NUMBER],
    },
    "model_age": NOTHING,
    "clock_gap": {"mean": NUMBER, "max": WHOLE},
    "phases_s": NUMBERS_BY_NAME,
    "operation_s": NUMBERS_BY_NAME,
    "updates_per_s": NUMBER,
    "utilisation": {
        "workers": NUMBERS_BY_NAME,
        "servers": NUMBERS_BY_NAME,
        "links": NUMBERS_BY_NAME,
        "cores": NUMBERS_BY_NAME,
    },
    "memory": {
        "worker_bytes": NUMBER,
        "server_bytes": NUMBER + NOTHING,
        "device_bytes": NUMBER + NOTHING,
        "worker": FOOTPRINT,
        "server": {**FOOTPRINT, "reserved_bytes": NOTHING},
        "fits": NUMBER + NOTHING,
        "stages": [FOOTPRINT],
    },
    "bottleneck": {
        "resource": TEXT,
        "share": NUMBER,
        "text": TEXT,
        "shares": NUMBERS_BY_NAME,
        "cycle": [CRITICAL_STEP],
    },
    "training": {
        "dataset_size": WHOLE,
        "epochs": WHOLE,
        "iterations_per_epoch": WHOLE,
        "epoch_s": NUMBER,
        "training_s": NUMBER,
        "with_failures": {
            "failures": NUMBER,
            "expected_s": NUMBER,
            "median_s": NUMBER,
            "interval_s": [NUMBER],
            "goodput_fraction": NUMBER,
            "checkpoint_bytes": NUMBER,
            "checkpoint_interval_s": NUMBER,
            "pause_s": NUMBER,
            "lost_s": NUMBERS_BY_NAME,
            "sensitivity": NUMBERS_BY_NAME,
            "interruptions": NUMBER,
            "present_fraction": NUMBER,
        },
    },
    "notes": [TEXT],
    "assumptions": [
        {"name": TEXT, "value": (str, int, float, bool, type(None)), "unit": TEXT, "source": TEXT}
    ],
    "provenance": {
        "perfmodel": TEXT,
        "python": TEXT,
        "numpy": TEXT,
        "seed": WHOLE,
        "inputs": {
            "workload": {
                "name": TEXT,
                "device": TEXT,
                "batch_size": WHOLE,
                "precision": TEXT,
                "source": SOURCE,
            },
            "cluster": {
                "schema": TEXT,
                "name": TEXT,
                "title": TEXT,
                "nic": LINK,
                "nodes": WHOLE + NOTHING,
                "devices_per_node": WHOLE,
                "nics_per_node": WHOLE,
                "nics_per_process": WHOLE,
                "devices_on_nodes": [WHOLE],
                "intra_node": NOTHING,
                "core_oversubscription": NUMBER + NOTHING,
                "pair_efficiency": NUMBER,
                "cpu_cores": WHOLE + NOTHING,
                "worker_threads": WHOLE + NOTHING,
                "core_sharing": TEXT,
                "server": {
                    "placement": TEXT,
                    "update_per_tensor_s": NUMBER,
                    "update_per_byte_s": NUMBER,
                    "threads": WHOLE,
                    "optimizer_per_byte_s": NUMBER,
                    "nic": NOTHING,
                    "site": TEXT + NOTHING,
                },
                "overrides": [{"node": WHOLE, "nic": LINK, "speed": NUMBER}],
                "collectives": [COLLECTIVE],
                "inside_collectives": [COLLECTIVE],
                "slowdown_per_neighbour": NUMBER,
                "loaders_per_node": NUMBER + NOTHING,
                "handover": {"per_tensor_s": NUMBER, "per_byte_s": NUMBER},
                "queue_bytes": NUMBER + NOTHING,
                "burst_bytes": NUMBER,
                "send_queue_bytes": NUMBER,
                "send_queue_s": NUMBER,
                "flow_bytes_per_s": NUMBER + NOTHING,
                "sites": [{"name": TEXT, "nodes": WHOLE}],
                "site_links": [
                    {
                        **LINK,
                        "between": [TEXT],
                        "connections": WHOLE,
                        "window_bytes": NUMBER + NOTHING,
                        "loss_rate": NUMBER,
                    }
                ],
                "device_spread": NUMBER,
                "losses": TEXT + NOTHING,
                "calibration": NOTHING,
                "source": SOURCE,
            },
            "workers": WHOLE,
            "architecture": TEXT,
            "options": {"*": (str, int, float, bool, type(None))},
            "jitter": {"cv": NUMBER, "kind": TEXT, "scope": TEXT},
            "stragglers": [{"worker": WHOLE, "factor": NUMBER}],
            "start": TEXT,
        },
    },
}

JOBS = {
    "deterministic": ["--arch", "ps", "--workers", "3"],
    "random": [
        "--arch",
        "ps",
        "--workers",
        "3",
        "--sync",
        "asp",
        "--jitter",
        "0.2",
        "--straggler",
        "1:1.5",
        "--seed",
        "7",
    ],
    "without servers": ["--arch", "ring", "--workers", "4", "--straggler", "0:2"],
    "alone": ["--workers", "1"],
}


def differences(value: Any, shape: Any, place: str = "") -> list[str]:
    """Differences of a JSON value from its expected shape; key order counts."""
    if isinstance(shape, tuple):
        if isinstance(value, bool) and bool not in shape:
            return [f"{place}: bool"]
        return [] if isinstance(value, shape) else [f"{place}: {type(value).__name__}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{place}: {type(value).__name__}"]
        return [
            d for i, item in enumerate(value) for d in differences(item, shape[0], f"{place}[{i}]")
        ]
    if not isinstance(value, dict):
        return [f"{place}: {type(value).__name__}"]
    if "*" in shape:
        return [
            d
            for key, item in value.items()
            for d in differences(item, shape["*"], f"{place}.{key}")
        ]
    if list(value) != list(shape):
        return [f"{place}: keys {', '.join(value)}"]
    return [d for key in shape for d in differences(value[key], shape[key], f"{place}.{key}")]


def disagreements(p: dict[str, Any]) -> list[str]:
    """Inconsistencies in a prediction's JSON."""
    idle, staleness = p["idle_fraction"], p["staleness"]
    workers = p["workers"]
    keys = list(staleness["histogram"])
    checks = {
        "schema": p["schema"] == "perfmodel.prediction/1",
        "workers": len(idle["per_worker"]) == len(staleness["per_worker"]) == workers,
        "global batch": p["global_batch_size"] == workers * p["batch_size"],
        "causes": set(idle["by_cause"]) <= set(CAUSES),
        "idle by cause": abs(sum(idle["by_cause"].values()) - idle["mean"]) <= 1e-9,
        "idle by worker": abs(sum(idle["per_worker"]) / workers - idle["mean"]) <= 1e-9,
        "shares": abs(sum(staleness["histogram"].values()) - 1.0) <= 1e-9,
        "whole staleness": all(key == str(int(key)) for key in keys),
        "staleness in order": keys == sorted(keys, key=int),
        "greatest staleness": int(keys[-1]) == staleness["max"],
    }
    return [name for name, holds in checks.items() if not holds]


@functools.cache
def printed(job: str, *more: str) -> str:
    """Output of ``predict --json`` for one of the jobs."""
    arguments = ["predict", "--model", "resnet18", *JOBS[job], *more, "--json"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def predicted(job: str, *more: str) -> Any:
    """The JSON of one of the jobs, as a fresh value."""
    return json.loads(printed(job, *more), parse_constant=no_json)


def no_json(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def test_the_package_has_the_expected_names() -> None:
    assert dir(perfmodel) == NAMES


def test_every_public_name_exists() -> None:
    for name in NAMES:
        assert getattr(perfmodel, name) is not None
    with pytest.raises(AttributeError, match="'perfmodel' has no attribute 'Predicton'"):
        perfmodel.Predicton  # noqa: B018


def test_every_public_name_of_a_module_exists_and_is_listed() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    for place, names in OF_MODULES.items():
        module = importlib.import_module(f"perfmodel.{place}")
        assert [name for name in names if not hasattr(module, name)] == []
        assert f"| `perfmodel.{place}` | {', '.join(f'`{name}`' for name in names)} |" in page


def test_pages_for_users_call_public_names_only() -> None:
    known = {f"{place} {name}" for place, names in OF_MODULES.items() for name in names}
    known |= {f"{place.rpartition('.')[0]} {place.rpartition('.')[2]}" for place in OF_MODULES}
    found = set()
    for path in [DOCS.parent / "README.md", *DOCS.glob("how-to/*.md"), *DOCS.glob("tutorial/*.md")]:
        text = path.read_text(encoding="utf-8")
        for place, names in re.findall(r"^ *from perfmodel\.([\w.]+) import (.+)$", text, re.M):
            found |= {f"{place} {name.strip()}" for name in names.split(",")}
    assert found - known == set()
    assert len(found) > 5


def test_causes_of_waiting_are_unchanged() -> None:
    assert sorted(CAUSES) == [
        *("cpu", "data", "expert_imbalance", "network", "pipeline", "server", "staleness_bound"),
        "straggler",
    ]


@pytest.mark.parametrize("job", JOBS)
def test_json_keeps_its_shape(job: str) -> None:
    shape = copy.deepcopy(PREDICTION)
    shape["training"] = NOTHING
    if job != "random":
        shape["provenance"]["inputs"]["jitter"] = NOTHING
    if job == "without servers":
        shape["memory"]["server"] = NOTHING
    assert differences(predicted(job), shape) == []


def test_json_of_a_training_keeps_its_shape() -> None:
    p = predicted("random", *TRAINING)
    assert differences(p, PREDICTION) == []
    without = copy.deepcopy(PREDICTION)
    without["training"]["with_failures"] = NOTHING
    assert differences(predicted("random", *TRAINING[:2]), without) == []


@pytest.mark.parametrize("job", JOBS)
def test_json_adds_up(job: str) -> None:
    assert disagreements(predicted(job)) == []


def test_json_equals_the_prediction() -> None:
    job = perfmodel.make_job(
        model="resnet18",
        arch="ps",
        workers=3,
        options={"sync": "asp"},
        jitter=perfmodel.Jitter(0.2),
        stragglers=[perfmodel.Straggler(1, 1.5)],
        seed=7,
    )
    prediction = perfmodel.predict(job)
    found = predicted("random")
    assert found == json.loads(prediction.to_json())
    assert found == json.loads(json.dumps(prediction.to_dict()))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: p.update(extra=1), ": keys"),
        (lambda p: p.pop("iteration_s"), ": keys"),
        (
            lambda p: p["idle_fraction"].update(average=p["idle_fraction"].pop("mean")),
            ".idle_fraction: keys",
        ),
        (lambda p: p["assumptions"][0].update(unit=None), ".assumptions[0].unit: NoneType"),
        (lambda p: p.update(workers=True), ".workers: bool"),
        (lambda p: p.update(staleness=None), ".staleness: NoneType"),
        (lambda p: p["staleness"]["histogram"].update({"0": "all"}), ".staleness.histogram.0: str"),
        (lambda p: p.update(notes={}), ".notes: dict"),
    ],
)
def test_canary_a_changed_shape_is_noticed(change: Any, expected: str) -> None:
    p = predicted("random", *TRAINING)
    change(p)
    assert [text[: len(expected)] for text in differences(p, PREDICTION)] == [expected]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: p["idle_fraction"]["by_cause"].update(network=0.9), ["idle by cause"]),
        (lambda p: p["idle_fraction"]["by_cause"].update(magic=0.0), ["causes"]),
        (lambda p: p["idle_fraction"]["per_worker"].append(0.5), ["workers", "idle by worker"]),
        (
            lambda p: p["staleness"]["histogram"].update({"99": 0.5}),
            ["shares", "greatest staleness"],
        ),
    ],
)
def test_canary_a_wrong_sum_is_noticed(change: Any, expected: list[str]) -> None:
    p = predicted("random")
    change(p)
    assert disagreements(p) == expected


# -- documented names ---------------------------------------------------------------------------

DOCUMENTED = {
    "calibration": "fit_runs fit_servers read_runs",
    "calibration.network": "fit_network read",
    "engine": "makespan simulate timeline",
    "graph": "GraphBuilder",
    "pipelines": "check draw in_flight makespans names read schedule staleness timeline transfers",
    "profiler": "Profiler",
    "validation": "read_cases validate",
}
"""Documented names of packages."""


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_exist(name: str) -> None:
    module = importlib.import_module(f"perfmodel.{name}")
    for each in DOCUMENTED[name].split():
        assert callable(getattr(module, each)) or each == "PUBLISHED"


def test_canary_an_unknown_name_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("perfmodel.nonsense")
