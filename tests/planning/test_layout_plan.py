"""Plans over layouts: the choice is that of exhaustive simulation, fits, and is simple."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import InputError, Layouts, PlanLimits, layouts, make_job, plan, predict
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.planning import layout_fitting, layout_space as module
from perfmodel.planning.layout_fitting import Fitting
from perfmodel.predicting import gains, memory_bounds
from perfmodel.predicting.memory import memory_on
from perfmodel.sweeping.layouts import Combinations

SMALL: dict[str, Any] = {"model": "llama-7b", "device": "h100", "cluster": "dgx-h100"}
SMALL |= {"devices": [8], "objective": "time", "sequence_length": 2048}
AXES: dict[str, Any] = {"tensor": (1, 2), "pipeline": (2, 4), "virtual_stages": (1, 2)}
AXES |= {"micro_batch_size": (1, 2), "recompute": ("none", "full"), "arch": ("ring", "zero1")}


def seeded(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    given = {**SMALL, "device": draw.choice(["a100", "h100"])}
    given["cluster"] = draw.choice(["dgx-a100", "dgx-h100"])
    given["devices"] = [draw.choice([8, 16])]
    given["global_batch_size"] = [draw.choice([32, 64, 128])]
    given["framework"] = draw.choice(["megatron", "torchtitan"])
    return given | {name: draw.sample(values, 2) for name, values in AXES.items()}


def exhaustive(given: dict[str, Any]) -> float:
    """The highest simulated rate of all layouts that fit."""
    base = make_job(
        model=given["model"], device=given["device"], cluster=given["cluster"],
        devices=given["devices"][0], tensor=2, pipeline=2, micro_batches=1, batch_size=1,
        arch="ring", sequence_length=given["sequence_length"], framework=given["framework"],
    )  # fmt: skip
    axes = {name: tuple(given[name]) for name in (*AXES, "global_batch_size")}
    result, best = layouts(base, **axes), 0.0
    device = catalogue.device(given["device"])
    for k in range(len(result)):
        if result.samples_per_s[k] < 0.7 * best:
            break  # formulas are within a few percent
        job = result.job_of(k)
        if memory_on(device, job).needed_bytes(0.9) <= (device.memory_bytes or 0.0):
            best = max(best, predict(job, fidelity="fine").throughput_samples_per_s)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_choices_are_those_of_exhaustive_simulation(seed: int) -> None:
    given = seeded(seed)
    best = exhaustive(given)
    if not best:
        with pytest.raises(InputError, match="fits"):
            plan(**given)
        return
    first = plan(**given).first
    assert first.throughput_samples_per_s >= 0.98 * best


def test_the_choice_is_simple_and_fits() -> None:
    """One replica is no reason to shard among replicas; memory is a limit."""
    result = plan(**SMALL, tensor=(8,), pipeline=(1,), global_batch_size=(64,))
    first = result.first
    assert first.architecture == "ring"
    assert first.layout is not None
    assert first.layout["virtual_stages"] == 1
    assert first.prediction.memory.is_enough(0.9)
    assert "tensor 8" in first.label
    assert first.time_s == pytest.approx(1_000_000 / first.throughput_samples_per_s, rel=0.01)


@pytest.mark.slow
def test_a_planted_shortage_changes_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory decides: the fastest of the layouts recomputes nothing, and does not fit if each needs
    more."""
    given = {**SMALL, "tensor": (2,), "pipeline": (4,), "global_batch_size": (64,)}
    kept = plan(**given).first.throughput_samples_per_s
    needed = module.Fitting.needed
    monkeypatch.setattr(module.Fitting, "needed", lambda self, row: 2.5 * needed(self, row))
    assert plan(**given, fidelity="coarse").first.throughput_samples_per_s < kept


def everything(choices: Combinations, possible: Fitting) -> Layouts:
    """All layouts, whether they may fit and be fast enough or not."""
    return choices.evaluated()


SPACES: list[dict[str, Any]] = [
    {**SMALL, "micro_batch_size": (1, 2, 4), "arch": ("ring", "zero3"), "virtual_stages": (1, 2)},
    {**SMALL, "schedule": ("1f1b", "gpipe", "zb_h1", "looped_bfs"), "virtual_stages": (1, 2),
     "micro_batch_size": (1, 2), "arch": ("ring", "zero3"), "global_batch_size": (32, 128, 512),
     "tensor": (1, 2), "pipeline": (2, 4)},
    {**SMALL, "model": "llama-13b", "devices": [16], "global_batch_size": [64, 256]},
    {**SMALL, "model": "mixtral-8x7b", "devices": [16], "tensor": (1, 2), "pipeline": (1, 4),
     "micro_batch_size": (1, 2), "arch": ("zero1", "zero3"), "recompute": ("none", "full")},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "space", [*SPACES[:2], *(pytest.param(space, marks=pytest.mark.slow) for space in SPACES[2:])]
)
def test_what_is_ruled_out_would_not_be_chosen(
    space: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same candidates in the same order, but for rounding; layouts that do not fit are no
    candidates, and only shown."""
    kept, counts = plan(**space, fidelity="coarse"), list[int]()
    steps = Combinations.evaluated

    def counted(self: Combinations, wanted: Any = None) -> Layouts:
        result = steps(self, wanted)
        counts.append(int(np.isfinite(self.step_s).sum()))
        return result

    monkeypatch.setattr(Combinations, "evaluated", counted)
    plan(**space, fidelity="coarse")
    few = counts[-1]
    monkeypatch.setattr(module, "best_of", everything)
    total = plan(**space, fidelity="coarse")
    assert few < 0.8 * counts[-1]
    for field, value in kept.to_dict().items():
        other = total.to_dict()[field]
        if field == "places":
            value, other = ([one for one in of if one["fits"]] for of in (value, other))
        assert rounded(value) == rounded(other)


def rounded(value: Any) -> Any:
    """Values with 12 digits."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.slow
def test_a_bound_above_the_times_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted error in the least times of layouts like the best one rules it out."""
    kept = plan(**SPACES[0], fidelity="coarse")
    bounded = Combinations.bounded

    def planted(self: Combinations) -> Layouts:
        result = bounded(self)
        slow = np.where(result.workers == kept.first.workers, 100.0, 1.0)
        return msgspec.structs.replace(
            result, step_s=result.step_s * slow, samples_per_s=result.samples_per_s / slow
        )

    monkeypatch.setattr(Combinations, "bounded", planted)
    monkeypatch.setattr(layout_fitting, "FIRST", 4)
    other = plan(**SPACES[0], fidelity="coarse")
    assert other.first.throughput_samples_per_s < kept.first.throughput_samples_per_s


@pytest.mark.slow
def test_a_bound_of_memory_above_what_is_needed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted error in the least memory rules out the best layout."""
    given = {**SMALL, "tensor": (2,), "pipeline": (2, 4), "arch": ("zero1",)}
    kept = plan(**given, fidelity="coarse")
    monkeypatch.setattr(memory_bounds, "PART", 1.4)
    other = plan(**given, fidelity="coarse")
    assert other.first.throughput_samples_per_s < kept.first.throughput_samples_per_s


@pytest.mark.slow
def test_a_schedule_that_keeps_more_rules_out_no_other() -> None:
    """GPipe keeps all micro-batches, and does not fit where 1F1B does; a schedule with one chunk
    per stage is no reason to leave out all others."""
    given = {**SMALL, "tensor": (2,), "pipeline": (4,), "virtual_stages": (1, 2),
             "micro_batch_size": (2,), "recompute": ("full",), "arch": ("zero1",)}  # fmt: skip
    alone = plan(**given, schedule=("1f1b",), global_batch_size=(1024,), fidelity="coarse")
    both = plan(**given, schedule=("gpipe", "1f1b"), global_batch_size=(1024,), fidelity="coarse")
    assert both.first.throughput_samples_per_s == alone.first.throughput_samples_per_s
    with pytest.raises(InputError, match="fits"):
        plan(**given, schedule=("gpipe",), global_batch_size=(1024,), fidelity="coarse")


def test_the_command_answers_with_layouts() -> None:
    arguments = ["plan", "--model", "llama-7b", "--device", "h100", "--cluster", "dgx-h100"]
    arguments += ["--devices", "8", "--tokens", "1e10", "--objective", "time"]
    arguments += ["--confidence", "90%", "--tensor", "1,2", "--pipeline", "1,2", "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    first = answer["ranked"][0]
    assert first["layout"]["tensor"] * first["layout"]["pipeline"] * first["workers"] == 8
    assert first["global_batch_size"] == 1024  # 4 Mi tokens in sequences of 4096
    assert answer["candidates"] > 50


def test_without_devices_language_models_find_batches_that_fit() -> None:
    first = plan(model="llama-7b", instance=["p4d.24xlarge"], arch=["zero3"], workers=[8, 16],
                 objective="throughput", sequence_length=2048).first  # fmt: skip
    assert first.batch_size < 32
    assert first.layout is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("deadline_h", [24.0, 48.0])
def test_deadlines_are_kept_with_the_confidence(deadline_h: float) -> None:
    given: dict[str, Any] = {"model": "resnet50", "dataset_size": 1281167, "epochs": 90}
    given |= {"instance": ["p3.16xlarge", "p3.2xlarge"], "arch": ["ring"], "fidelity": "coarse"}
    limits = PlanLimits(deadline_s=3600.0 * deadline_h, confidence=0.9)
    sure, unsure = (plan(**given, limits=one).first
                    for one in (limits, PlanLimits(deadline_s=3600.0 * deadline_h)))  # fmt: skip
    assert sure.probability_within >= 0.9
    assert sure.cost_usd >= unsure.cost_usd
    assert gains.probability_within(sure.prediction, gains.room(sure.prediction, 0.9)) == (
        pytest.approx(0.9)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"objective": "cost"}, "needs prices"),
        ({"model": "resnet50"}, "not a language model"),
        ({"model": "resnet50", "tokens": 1e9}, "no language model"),
        ({"tokens": 1e9, "dataset_size": 5}, "give one of them"),
        ({"cluster": None}, "give a cluster"),
        ({"model": "llama-405b", "tensor": [8], "pipeline": [1]}, "times its memory"),
        ({"tensor": [7], "pipeline": [1]}, "whole replicas"),
    ],
)
def test_impossible_plans_say_why(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan(**{**SMALL, **given})


@pytest.mark.slow
def test_long_sequences_are_divided_among_devices() -> None:
    """Plans of sequences of 65,536 tokens try context parallelism without being told to."""
    given: dict[str, Any] = {**SMALL, "model": "llama-8b", "sequence_length": 65_536}
    given |= {"tensor": (1, 8), "pipeline": (1, 2), "micro_batch_size": 1, "virtual_stages": 1}
    first = plan(**given, recompute="full", fidelity="coarse", top=3).first
    assert first.layout is not None
    context = first.layout["context"]
    assert context in {2, 4, 8}
    assert f", context {context}," in first.label
    assert "context" not in plan(**given | {"sequence_length": 4096}, recompute="full",
                                 fidelity="coarse", top=1).first.label  # fmt: skip


@pytest.mark.slow
def test_experts_are_divided_up_to_a_node() -> None:
    given: dict[str, Any] = {**SMALL, "model": "mixtral-8x7b", "devices": [16], "tensor": (1, 2)}
    given |= {"pipeline": 1, "micro_batch_size": 1, "virtual_stages": 1, "arch": "zero3"}
    result = plan(**given, fidelity="coarse").ranked
    degrees = {one.layout["expert"] for one in result if one.layout is not None}
    assert degrees <= {1, 2, 4, 8}
    assert len(degrees) > 1


@pytest.mark.slow
def test_the_page_has_a_map_of_layouts() -> None:
    given: dict[str, Any] = {**SMALL, **AXES, "arch": ("ring", "zero1"), "top": 3}
    result = plan(**given, fidelity="coarse")
    (section,) = [one for one in result.page().sections if one.name == "layouts"]
    assert section.figure is not None
    marks = {mark.name: mark for mark in section.figure.marks}
    assert {"zero1", "does not fit", "Pareto front"} <= set(marks)
    inside = [place for place in result.places if place.fits]
    assert max(p.samples_per_s for p in inside) >= result.first.throughput_samples_per_s * 0.9
    device_bytes = marks["memory of a device"].low  # type: ignore[union-attr]
    assert all((place.needed_bytes <= device_bytes) is place.fits for place in result.places)
    alone = plan(model="resnet50", instance=["p3.16xlarge"], arch="ring", workers=8, batch_size=64)
    assert alone.places == ()
    assert "layouts" not in {one.name for one in alone.page().sections}


PACKED: dict[str, Any] = {**SMALL, "sequence_length": 8192, "tensor": (2,), "pipeline": (2,)}
PACKED |= {"micro_batch_size": (1,), "virtual_stages": (1,), "global_batch_size": (32,)}
PACKED |= {"arch": ("zero1",), "recompute": ("full",)}


@pytest.mark.slow
def test_sequences_of_layouts_may_be_packed() -> None:
    """The answer is that of a single prediction with these documents, and faster than whole
    sequences."""
    documents = {"document_length": 1000.0, "document_spread": 2.0}
    total, first = (plan(**PACKED, **more, fidelity="coarse").first for more in ({}, documents))
    assert first.layout is not None
    shape: dict[str, Any] = {**first.layout}
    assert shape.pop("micro_batch_size") == 1
    job = make_job(
        **{name: PACKED[name] for name in ("model", "device", "cluster", "sequence_length")},
        **documents, **shape, batch_size=shape["micro_batches"], devices=8, arch="zero1",
    )  # fmt: skip
    alone = predict(job, fidelity="coarse")
    assert first.throughput_samples_per_s == pytest.approx(alone.throughput_samples_per_s, rel=1e-9)
    assert first.throughput_samples_per_s > 1.1 * total.throughput_samples_per_s


@pytest.mark.slow
def test_sequences_of_single_devices_may_be_packed(tmp_path: Path) -> None:
    """A file of lengths gives what they give, and about what its mean and spread give: 500 and
    1500 have 1000 and 0.5."""
    path = tmp_path / "lengths.txt"
    path.write_text("500\n1500\n")
    given: dict[str, Any] = {"model": "llama-1b", "instance": ["p5.48xlarge"], "arch": "ring"}
    given |= {"workers": 8, "batch_size": 1, "sequence_length": 8192, "recompute": "full"}
    ways: list[dict[str, Any]] = [{}, {"document_lengths": path}, {"document_lengths": [500, 1500]}]
    ways += [{"document_length": 1000.0, "document_spread": 0.5}]
    total, of_file, of_list, of_mean = (
        plan(**given, **way, objective="throughput").first.throughput_samples_per_s for way in ways
    )
    assert of_file == of_list == pytest.approx(of_mean, rel=0.05)
    assert of_file > 1.2 * total


@pytest.mark.slow
def test_the_command_takes_documents() -> None:
    """In a node of 8 devices, and as layouts."""
    given = ["plan", "--model", "llama-1b", "--sequence-length", "8192", "--document-length", "900",
             "--objective", "throughput", "--json", "--fidelity", "coarse"]  # fmt: skip
    single = ["--instance", "p5.48xlarge", "--workers", "8", "--arch", "ring", "--batch-size", "1"]
    layout = ["--device", "h100", "--cluster", "dgx-h100", "--devices", "8", "--tensor", "2",
              "--pipeline", "2", "--micro-batch-size", "1", "--recompute", "full",
              "--virtual-stages", "1", "--arch", "zero1", "--global-batch-size", "32"]  # fmt: skip
    for more in (single, layout):
        done = CliRunner().invoke(cli, [*given, *more])
        assert done.exit_code == 0, done.output
        assert "document_length" in done.stdout


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"document_spread": 1.0}, "document_spread: needs document_length"),
        ({"document_length": -1.0}, "document_length: "),
        ({"document_length": 9.0, "document_lengths": [1.0]}, "document_lengths: not with"),
    ],
)
def test_impossible_documents_say_why(more: dict[str, Any], why: str) -> None:
    for given in (PACKED, {"model": "llama-1b", "instance": ["p5.48xlarge"], "objective": "cost"}):
        with pytest.raises(InputError, match=why):
            plan(**given, **more)
