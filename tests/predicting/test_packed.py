"""Jobs with packed sequences: by hand, and against draws that know nothing of the package."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import (
    Cluster,
    InputError,
    Job,
    Link,
    Source,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
    read_job,
    sweep,
)
from perfmodel.api import build_graph
from perfmodel.catalogue.catalogue import model
from perfmodel.cli import cli
from perfmodel.inputs.passes import accumulated
from perfmodel.phases.variation import cv_of_update, iteration_cv
from perfmodel.predicting.replicas import stage_jobs
from perfmodel.theory.packing import Packing, largest_attention, largest_part, relative_loads
from tests.theory.test_packing import packed

SOURCE = Source("assumed", "made for a test")
PACKING = Packing(4096, 1000.0, 1.5)
F_S, B_S = 1.0, 2.0
"""Passes of the attention of each layer; as much else does not vary."""

BAND = 0.02
"""Largest difference between the routes, and to the draws, without a pipeline."""


def cluster() -> Cluster:
    """Nodes of one device, whose links take no time to speak of."""
    return Cluster(name="made", nic=Link(1e15, 0.0), source=SOURCE, losses="none")


def work(passes: int = 1, sequences: int = 1, layers: int = 1, varying: float = 1.0) -> Workload:
    """Layers with attention and with as much of everything else, in so many passes."""
    made = [
        WorkloadLayer(
            f"{name}{k}", F_S, B_S, (1e-3,), 1e-3, varying=varying * (name == "attention")
        )
        for k in range(layers)
        for name in ("other", "attention")
    ]
    one = Workload.of("made", made, batch_size=sequences)
    return accumulated(msgspec.structs.replace(one, packing=PACKING), passes)


def job(workload: Workload, **given: Any) -> Job:
    return make_job(workload=workload, cluster=cluster(), **{"arch": "ring", "workers": 8} | given)


def factors(sequences: int, steps: int, seed: int = 3) -> np.ndarray:
    """Work of micro-batches of so many sequences over the mean, packed document by document."""
    alone = np.array(packed(PACKING.tokens, 1000.0, 1.5, sequences * steps, seed=seed))
    random.Random(seed).shuffle(alone)
    loads = alone.reshape(steps, sequences).mean(axis=1)
    return loads / loads.mean()


@pytest.mark.slow
def test_the_largest_of_several_workers_sets_the_pace() -> None:
    """Of a step, half varies; by draws, by the closed form, and by both routes."""
    drawn = factors(2, 8 * 4000).reshape(-1, 8).max(axis=1).mean()
    assert largest_attention(PACKING, 2, 8) == pytest.approx(drawn, rel=BAND)
    expected = (F_S + B_S) * (1.0 + drawn)
    made = job(work(sequences=2))
    for fidelity in ("fine", "coarse"):
        found = predict(made, fidelity=fidelity, rel_ci=0.005)
        assert found.iteration_s == pytest.approx(expected, rel=BAND)
        idle = found.idle_fraction.by_cause
        waits = idle["unequal_sequences"] * found.iteration_s
        assert waits == pytest.approx((F_S + B_S) * (drawn - 1.0), rel=0.06)
        assert idle.get("straggler", 0.0) < 1e-6
    assert expected > 1.3 * 2.0 * (F_S + B_S)  # canary: without waits it is far off


def test_the_variance_of_an_update_by_hand() -> None:
    """Documents of half a sequence: 1 + v^2 + (1 - v)^2 with v uniform has the variance 1 / 45 and
    the mean 5 / 3. A third of the step varies, and half of that."""
    half = Packing(1024, 512.0)
    layers = [
        WorkloadLayer("other", 2.0, 4.0, (1e-3,)),
        WorkloadLayer("attention", 1.0, 2.0, (1e-3,), varying=0.5),
    ]
    one = msgspec.structs.replace(Workload.of("made", layers, batch_size=4), packing=half)
    alone = (1 / 45) ** 0.5 / (5 / 3)
    assert relative_loads(half, 1).std() == pytest.approx(alone, rel=0.01)
    for passes in (1, 4):
        update = job(accumulated(one, passes), workers=1)
        expected = alone / (4 * passes) ** 0.5 / 6
        assert cv_of_update(update) == pytest.approx(expected, rel=0.02)


def test_passes_of_an_update_vary_together() -> None:
    """Four passes of one sequence are waited for once, as one of four sequences; where each pass
    gathers parameters, the largest of each counts."""
    once = (F_S + B_S) * 4.0 * (1.0 + largest_attention(PACKING, 4, 8))
    each = (F_S + B_S) * 4.0 * (1.0 + largest_attention(PACKING, 1, 8))
    assert each > 1.1 * once
    for arch, expected in (("ring", once), ("fsdp", each)):
        for fidelity in ("fine", "coarse"):
            made = job(work(passes=4), arch=arch)
            found = predict(made, fidelity=fidelity, rel_ci=0.005)
            assert found.iteration_s == pytest.approx(expected, rel=BAND)


def one_replica_s(x: np.ndarray) -> float:
    """The mean step of two stages of GPipe, in which a micro-batch takes 0.5 + 0.5 x of its time on
    both; x (steps, micro-batches)."""
    times = []
    for step in 0.5 + 0.5 * x:
        first = second = 0.0  # when the stages are free
        for took in step:
            first += 2.0 * F_S * took
            second = max(second, first) + 2.0 * F_S * took
        for took in step:
            second += 2.0 * B_S * took
            first = max(first, second) + 2.0 * B_S * took
        times.append(first)
    return float(np.mean(times))


@pytest.mark.slow
def test_unequal_micro_batches_make_bubbles() -> None:
    """A replica with two stages, whose micro-batches take equally much longer on both."""
    x = factors(1, 4000 * 4).reshape(4000, 4)
    expected = one_replica_s(x)
    made = job(work(passes=4, layers=2), workers=1, pipeline=2, schedule="gpipe")
    alike = one_replica_s(np.ones((1, 4)))
    found = predict(made, rel_ci=0.004).iteration_s, predict(made, fidelity="coarse").iteration_s
    assert found == pytest.approx((expected, expected), rel=BAND)
    assert expected > 1.05 * alike  # canary: equal micro-batches


def test_stages_draw_the_same_micro_batches() -> None:
    """Two replicas of two stages with four micro-batches: as many draws as micro-batches."""
    graph = build_graph(job(work(passes=4, layers=2), workers=2, pipeline=2))
    used = graph.op_stream[graph.op_stream >= 0]
    assert len(np.unique(used)) == 2 * 4
    stage = np.array([graph.op_name(k).split(",")[0] for k in np.flatnonzero(graph.op_stream >= 0)])
    of_stages = [set(used[np.char.endswith(stage, f"stage {k}")].tolist()) for k in (0, 1)]
    assert of_stages[0] == of_stages[1] == set(used.tolist())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "given",
    [
        {"pipeline": 2},
        {"pipeline": 2, "schedule": "gpipe", "workers": 2},
        {"pipeline": 4, "workers": 4},
        {"pipeline": 2, "virtual_stages": 2, "workers": 4},
        {"pipeline": 2, "arch": "fsdp"},
        {"pipeline": 2, "schedule": "dualpipe", "workers": 2},
    ],
)
def test_formulas_of_replicas_agree_with_the_simulation(given: dict[str, Any]) -> None:
    made = job(work(passes=8, layers=4), **given)
    found = predict(made, rel_ci=0.005).iteration_s
    assert predict(made, fidelity="coarse").iteration_s == pytest.approx(found, rel=0.05)


def test_formulas_say_how_far_off_they_may_be() -> None:
    bands = [predict(job(work(), **given), fidelity="coarse").error_band
             for given in ({}, {"pipeline": 2})]  # fmt: skip
    least = [band.p90 for band in bands if band is not None and band.p90 is not None]
    assert least[0] >= 0.025
    assert least[1] >= 0.06


def test_schedules_without_a_flush_are_left_to_the_simulation() -> None:
    made = job(work(passes=4, layers=2), workers=1, pipeline=2, schedule="pipedream_2bw")
    assert "unequal sequences" in predict(made, fidelity="coarse").error_band.text
    assert predict(made).iteration_s > 0.0


def test_jitter_is_of_all_else() -> None:
    """Half of the step varies by jitter, half with the documents."""
    made = job(work(), workers=1, jitter=0.2)
    expected = ((0.5 * 0.2) ** 2 + cv_of_update(job(work(), workers=1)) ** 2) ** 0.5
    assert iteration_cv(made) == pytest.approx(expected)
    assert expected > 0.3
    slow = predict(job(work(varying=0.01), jitter=0.5), fidelity="coarse").idle_fraction.by_cause
    assert "straggler" in slow
    assert "unequal_sequences" not in slow


@pytest.mark.slow
def test_islands_wait_inside_and_among_each_other() -> None:
    """Eight islands of four devices: about the largest of 32."""
    found = predict(job(work(), island_devices=4), rel_ci=0.005)
    expected = (F_S + B_S) * (1.0 + largest_attention(PACKING, 1, 32))
    assert found.iteration_s == pytest.approx(expected, rel=0.06)
    assert found.idle_fraction.by_cause["unequal_sequences"] > 0.2


# -- language models ---------------------------------------------------------------------------


LLAMA: dict[str, Any] = {
    "model": "llama-8b", "device": "h100", "arch": "ring", "workers": 4, "batch_size": 2,
    "sequence_length": 16384,
}  # fmt: skip


def attention(made: Job) -> list[WorkloadLayer]:
    return [layer for layer in made.workload.layers if layer.kind == "attention"]


def test_only_attention_changes() -> None:
    whole, short = make_job(**LLAMA), make_job(**LLAMA, document_length=2000)
    for before, after in zip(whole.workload.layers, short.workload.layers, strict=True):
        same = (before.forward_s, before.backward_s) == (after.forward_s, after.backward_s)
        assert same == (before.kind != "attention")
    assert attention(short)[0].forward_s < 0.5 * attention(whole)[0].forward_s
    assert predict(short).throughput_samples_per_s > predict(whole).throughput_samples_per_s


def test_documents_longer_than_sequences_are_cut() -> None:
    whole, long = make_job(**LLAMA), make_job(**LLAMA, document_length=1e9, document_spread=0)
    assert long.workload.compute_s == pytest.approx(whole.workload.compute_s, rel=1e-4)
    waits = [predict(each, iterations=10).idle_fraction.mean for each in (long, whole)]
    assert waits[0] == pytest.approx(waits[1], abs=1e-3)


def test_the_speed_of_one_device_is_that_of_packed_sequences() -> None:
    made = make_job(**LLAMA, document_length=2000, one_device_samples_per_s=2.0)
    assert made.workload.compute_s == pytest.approx(1.0)
    assert attention(made)[0].varying > 0.5


def test_windows_vary_less() -> None:
    def part(model: str) -> float:
        given = {**LLAMA, "model": model, "document_length": 4000.0, "document_spread": 1.5}
        one = attention(make_job(**given))
        return max(layer.varying for layer in one)

    assert 0.0 < part("gemma3-27b") < 0.9 * part("llama-8b")


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("split", "zigzag"), [("zigzag", True), ("contiguous", False), ("documents", None)]
)
def test_devices_that_divide_sequences_wait_for_the_longest(
    split: str, zigzag: bool | None
) -> None:
    given = {**LLAMA, "document_length": 3000, "document_spread": 1.5, "context": 4}
    made = make_job(**given, context_split=split)
    (one,) = stage_jobs(made)
    assert one.job.stage is not None
    packing = made.workload.packing
    assert packing is not None
    late = 0.0 if zigzag is None else largest_part(packing, 2, 4, zigzag=zigzag) - 1.0
    layer = next(layer for layer in made.workload.layers if layer.kind == "attention")
    where = [layer.name for layer in made.workload.layers].index(layer.name)
    expected = late * layer.varying * layer.forward_s
    assert one.job.stage.forward_waits_s[where] == pytest.approx(expected)
    assert zigzag is None or late > 0.2
    alone = predict(msgspec.structs.replace(made, workers=1), rel_ci=0.005)
    waits = alone.idle_fraction.by_cause.get("unequal_sequences", 0.0) * alone.iteration_s
    every = sum(one.job.stage.forward_waits_s) + sum(one.job.stage.backward_waits_s)
    assert waits == pytest.approx(every, rel=0.02, abs=2e-3)


def test_all_to_alls_give_each_device_whole_sequences() -> None:
    given = {**LLAMA, "document_length": 3000, "context": 4, "context_exchange": "all-to-all"}
    (one,) = stage_jobs(make_job(**given))
    assert one.job.stage is not None
    assert not any(one.job.stage.forward_waits_s)


# -- what users give ---------------------------------------------------------------------------


def test_a_file_of_lengths(tmp_path: Path) -> None:
    listed, table = tmp_path / "lengths.txt", tmp_path / "lengths.csv"
    listed.write_text("1000\n2000\n\n9000\n")
    table.write_text("name,Tokens\na,1000\nb,2000\nc,9000\n")
    header = tmp_path / "header.csv"
    header.write_text("n\n1000\n2000\n9000\n")
    made = [make_job(**LLAMA, document_lengths=one) for one in (listed, table, header)]
    made.append(make_job(**LLAMA, document_lengths=[1000, 2000, 9000]))
    found = {one.workload.packing for one in made}
    assert len(found) == 1
    packing = made[0].workload.packing
    assert packing is not None
    assert packing.document_tokens == pytest.approx(4000.0)
    job_file = tmp_path / "job.toml"
    keys = {**LLAMA, "document_lengths": "lengths.txt"}
    lines = [f"{key} = {value!r}" for key, value in keys.items()]
    job_file.write_text('schema = "perfmodel.job/1"\n' + "\n".join(lines).replace("'", '"'))
    assert make_job(**read_job(job_file)).workload.packing == packing


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"document_length": float("nan")}, r"document_length: expected a finite number, got nan"),
        ({"document_length": -5}, r"document_length: must be at least 1, got -5"),
        ({"document_length": 2.0}, r"document_length: the mean of 2 tokens is less than 1/4096"),
        ({"document_length": 100, "document_spread": 11}, r"document_spread: must be at most 10"),
        ({"document_length": 100, "document_spread": -1}, r"document_spread: must be at least 0"),
        ({"document_spread": 1.0}, r"document_spread: needs document_length"),
        ({"document_length": 9, "document_lengths": [9]}, r"document_lengths: not with document_l"),
        ({"document_lengths": []}, r"document_lengths: expected at least one length"),
        ({"document_lengths": [5, 0]}, r"document_lengths\[1\]: must be at least 1, got 0"),
        ({"document_lengths": "none.txt"}, r"none.txt"),
        ({"document_length": 100, "model": "resnet50"}, r"resnet50 is not a language model"),
        ({"context": 2, "context_split": "documents"}, r"context_split: documents needs packed"),
    ],
)
def test_impossible_documents(given: dict[str, Any], text: str) -> None:
    rest = dict(LLAMA)
    if "model" in given:
        rest.pop("sequence_length")
    with pytest.raises(InputError, match=text) as error:
        make_job(**{**rest, **given})
    assert "\n" not in str(error.value)


def test_attention_that_stores_its_scores_has_those_of_all_tokens() -> None:
    profile = model("llama-8b")
    assert profile.decoder is not None
    stored = msgspec.structs.replace(
        profile, decoder=msgspec.structs.replace(profile.decoder, flash=False)
    )
    with pytest.raises(InputError, match=r"attention of llama-8b stores its scores"):
        make_job(**{**LLAMA, "model": None, "workload": stored, "document_length": 100})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "expected lengths of documents in tokens, one a line; got none"),
        ("tokens\n", "expected lengths below the header; got none"),
        ("100\n-3\n", "line 2: must be at least 1, got -3"),
        ("100\nnan\n", "line 2: expected a finite number, got nan"),
        ("100\nabc\n", "line 2: expected a length in tokens, got 'abc'"),
        ("a,b\n1,2\n", "line 1: expected a column 'tokens' or 'length', got a, b"),
        ("a,tokens\n1\n", "line 2: expected a length in tokens, got ''"),
    ],
)
def test_files_that_are_no_lengths(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        make_job(**LLAMA, document_lengths=path)
    assert str(error.value) == f"{path}: {text}"


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    line = "predict --model llama-8b --device h100 --arch ring --workers 8 --batch-size 2"
    line += " --sequence-length 16384 --fidelity coarse"
    runner = CliRunner()
    done = runner.invoke(cli, [*line.split(), "--document-length", "2000", "--verbose"])
    assert done.exit_code == 0, done.output
    assert "unequal_sequences" in done.output
    assert "document_length" in done.output
    assert "default: as of exponential lengths" in done.output
    path = tmp_path / "lengths.txt"
    path.write_text("500\n8000\n")
    done = runner.invoke(cli, [*line.split(), "--document-lengths", str(path)])
    assert done.exit_code == 0, done.output
    done = runner.invoke(cli, [*line.split(), "--document-spread", "1"])
    assert isinstance(done.exception, InputError)  # the program exits with 2
    assert str(done.exception) == "document_spread: needs document_length"


@pytest.mark.slow
def test_sweeps_and_changes() -> None:
    several = sweep(**{**LLAMA, "document_length": [1000, 4000]}, fidelity="coarse")
    speeds = [one.throughput_samples_per_s for one in several.predictions]
    assert speeds[0] > speeds[1]
    made = make_job(**LLAMA, document_length=1000)
    assert made.with_(document_length=None).workload.packing is None
    listed = made.with_(document_lengths=[1000, 3000])
    assert listed.workload.packing is not None
    assert listed.workload.packing.lengths == (1000.0, 3000.0)
    assert listed.with_(document_length=1000) == made
    effects = {one.assumption.name: one for one in predict(made, fidelity="coarse").effects}
    assert [one.value for one in effects["document_spread"].alternatives] == [0.5, 2.0]
    with pytest.raises(InputError, match=r"the jobs differ in documents"):
        sweep(**{**LLAMA, "document_length": [1000, 4000]}, one_device_samples_per_s=2.0)
