"""What predictions of replicas say of their stages: bottleneck, idleness, timeline."""

import json
import re

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel import pipelines
from perfmodel.cli import cli
from perfmodel.reporting.contents import Bars, fitting
from perfmodel.results import timeline_figure
from tests.predicting.test_replicas import cluster, equal, job, work

MARKS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def uneven():
    """Two stages, two micro-batches, 1F1B.

    Stage 0: F0 0-1, F1 1-2, B0 8-10, B1 15-17; stage 1: F0 1-4, B0 4-8, F1 8-11, B1 11-15.
    """
    return job(work([(1.0, 2.0, 1e-9, 1e-9), (3.0, 4.0, 1e-9, 1e-9)], 2), 2)


def test_the_bottleneck_is_the_stage_on_the_critical_path():
    found = pm.predict(uneven()).bottleneck
    assert found.text == (
        "computation on stage 1 takes 82% of the critical path, and 18% on the other stage"
    )
    assert found.resource == "device of stage 1, worker 0"
    assert found.shares["device of"] == pytest.approx(1.0)


def test_the_only_stage_is_not_named():
    layers = [pm.WorkloadLayer("layer", 1.0, 2.0, (1.0,), 1.0, forward_summed_bytes=1.0)]
    node = cluster(devices_per_node=2, intra_node=pm.IntraNode(1e15, 0.0))
    made = job(pm.Workload.of("made", layers), None, 2, tensor=2, cluster=node)
    assert pm.predict(made, fidelity="fine").bottleneck.text.startswith(
        "computation on the workers' devices takes "
    )


def test_what_devices_do_together_has_a_plural():
    """Two devices with 2 MB/s inside a node sum 4 MB, in 2 s of 3.5."""
    layers = [pm.WorkloadLayer("layer", 1.0, 0.5, (1.0,), 1.0, forward_summed_bytes=4e6)]
    node = cluster(devices_per_node=2, intra_node=pm.IntraNode(2e6, kind="per_device"))
    made = pm.make_job(workload=pm.Workload.of("made", layers), tensor=2, cluster=node, arch="ring")
    found = pm.predict(made, fidelity="fine")
    assert found.bottleneck.text == (
        "sums over tensor-parallel devices take 57% of the critical path; next: computation (43%)"
    )
    assert found.page().answer[-1][2] == "sums over tensor-parallel devices"


def test_two_copies_of_stages_are_named_in_the_plural():
    made = job(equal(4, 8), 4, schedule="dualpipe")
    text = pm.predict(made).bottleneck.text
    assert re.match(r"computation on stages \d and \d takes \d+% of the critical path", text)
    assert "the other stage" not in text


@pytest.mark.parametrize("arch", ["ring", "ps"])
def test_stages_are_on_their_own_nodes_in_a_timeline(arch):
    made = job(equal(2, 4, gradient=1.0), 2, 2, arch)
    found = pm.predict(made, fidelity="fine").timeline()
    nodes = {
        2 * stage + worker: f"node {2 * stage + worker} (worker {worker}; stage {stage})"
        for stage in range(2)
        for worker in range(2)
    }
    nodes |= {4: "node 4 (server 0)"} if arch == "ps" else {}
    assert {k: name for k, name in found.nodes.items() if k is not None} == nodes
    at = {one.resource.name: one.resource.node for one in found.operations}
    assert at["device of stage 1, worker 0"] == 2


def test_the_links_between_stages_can_be_the_bottleneck():
    """A pass takes 3 s, a transfer 30 s."""
    text = pm.predict(job(equal(2, 4, sent=30.0), 2)).bottleneck.text
    assert text.startswith("sending over the link out of ")
    assert "; next: computation (" in text


def test_idleness_by_stage_by_hand():
    made = uneven()
    idle = pm.predict(made).idle_fraction
    assert idle.by_stage == pytest.approx((11 / 17, 3 / 17))
    assert idle.by_cause["pipeline"] == pytest.approx(7 / 17)
    page = next(s for s in pm.predict(made).page().sections if s.name == "idle")
    table = next(t for t in page.tables if t.name == "Idle time by stage")
    assert [share for _, share in table.rows] == pytest.approx([11 / 17, 3 / 17])


@pytest.mark.parametrize(
    ("name", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved_1f1b", 2), ("zb_h1", 1)]
)
def test_the_timeline_is_the_picture_of_the_schedule(name, chunks):
    """Each stage of each worker has a row, on which each action is one block with its number."""
    stages, passes = 2, 4
    made = job(equal(stages * chunks * 2, passes), stages, 2, schedule=name, virtual_stages=chunks)
    timeline = pm.predict(made).timeline()
    panel = timeline_figure.panel(timeline)
    order = [f"stage {stage}, worker {worker}" for worker in (0, 1) for stage in range(stages)]
    assert list(panel.y.names[: len(order)]) == order
    drawn = {row: [] for row in range(len(order))}
    for mark in panel.marks:
        assert isinstance(mark, Bars)
        for (start, _, low, high), text in zip(mark.sides, mark.inside, strict=True):
            row = round((low + high) / 2.0)
            if row < len(order) and mark.name in MARKS.values():
                drawn[row].append((start, mark.name, text))
    schedule = pipelines.schedule(name, stages, passes, chunks=chunks)
    for row, blocks in drawn.items():
        rank = row % stages
        where = range(int(schedule.begins[rank]), int(schedule.begins[rank + 1]))
        held = schedule.held(rank)
        expected = [
            (
                MARKS[pipelines.actions.KINDS[schedule.kind[k]]],
                f"{schedule.micro_batch[k]}{chr(39) * held.index(int(schedule.stage[k]))}",
            )
            for k in where
        ]
        found = [(kind, text) for _, kind, text in sorted(blocks)]
        assert found[: len(expected)] == expected
        assert found[len(expected) :] in ([], expected)


def test_only_text_that_fits_is_inside_a_bar():
    bars = Bars("a", [10.0, 11.0, 99.0], "blue", start=[0.0, 10.0, 50.0], inside=["0", "1", ""])
    assert fitting(bars, 100.0) == [(5.0, 0.0, "0")]
    assert len(fitting(bars, 50.0)) == 2


def test_a_schedule_in_a_job_file_is_relative_to_it(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    pipelines.write(tmp_path / "sub/order.csv", pipelines.schedule("gpipe", 2, 4))
    lines = ['schema = "perfmodel.job/1"', 'model = "gpt2-small"', 'device = "a100"',
             "pipeline = 2", "batch_size = 4", 'arch = "ring"']  # fmt: skip
    for schedule in ("order.csv", "./order.csv", "../sub/order.csv"):
        path = tmp_path / "sub/job.toml"
        path.write_text("\n".join([*lines, f'schedule = "{schedule}"']))
        made = pm.make_job(**pm.read_job(path))
        assert made.replica.schedule.endswith("order.csv")
        named = made.with_(schedule="gpipe")
        assert pm.predict(made).iteration_s == pm.predict(named).iteration_s
    path.write_text("\n".join([*lines, 'schedule = "gpipe"']))
    assert pm.make_job(**pm.read_job(path)).replica.schedule == "gpipe"
    monkeypatch.setenv("PERFMODEL_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[predict]\nschedule = "sub/order.csv"\npipeline = 2\n')
    words = ["--model", "gpt2-small", "--device", "a100", "--arch", "ring", "--batch-size", "4"]
    result = CliRunner().invoke(cli, ["predict", *words, "--json"])
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["layout"]["schedule"].endswith("sub/order.csv")


def test_a_global_batch_is_shared_by_the_replicas_of_so_many_devices():
    words = ["--model", "gpt2-small", "--device", "a100", "--arch", "ring", "--devices", "16",
             "--tensor", "2", "--global-batch-size", "64", "--json"]  # fmt: skip
    result = CliRunner().invoke(cli, ["predict", "--pipeline", "4", *words])
    said = json.loads(result.stdout)
    assert (said["workers"], said["batch_size"], said["global_batch_size"]) == (2, 32, 64)
    rows = pm.sweep(model="gpt2-small", device="a100", arch="ring", devices=16, pipeline=[2, 4],
                    global_batch_size=64, fidelity="coarse").predictions  # fmt: skip
    assert [p.batch_size for p in rows] == [8, 16]
    assert {p.global_batch_size for p in rows} == {64}
