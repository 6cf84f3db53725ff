"""Validation: cases in files, errors and their distribution, the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from perfmodel import InputError, Job, Source, make_job, predict
from perfmodel.cli import cli, main
from perfmodel.inputs.job_files import JobFile, read_job
from perfmodel.measuring.training.run import MeasuredRun, RunResults
from perfmodel.validation import read_cases, shipped_cases, summarise, validate
from perfmodel.validation.cases import of_run
from perfmodel.validation.scores import Score

FILE = """
schema = "perfmodel.cases/1"
name = "lab"
source = { kind = "measured", text = "our own" }

[clusters.lab]
name = "lab"
nic = { bandwidth_bytes_per_s = 1.0 }
source = { kind = "exact", text = "made for a test" }

[workloads.net]
name = "net"
gradients = { bytes = 3.0, tensors = 1 }
source = { kind = "exact", text = "made for a test" }

[[workloads.net.timings]]
device = "d"
batch_size = 4
forward_s = 1.0
backward_s = 2.0
source = { kind = "exact", text = "made for a test" }

[[cases]]
name = "alone"
job = { workload = "net", cluster = "lab", arch = "ring" }
measured = { step_s = 2.5, idle_fraction = 0.25 }

[[cases]]
name = "two"
group = "ring"
job = { workload = "net", cluster = "lab", arch = "ring", workers = 2, options.overlap = false }
measured = { samples_per_s = 1.6 }
"""
"""One worker takes 3 s. Two workers then send 3 bytes each at 1 byte/s: 6 s."""


def written(folder: Path, text: str = FILE, name: str = "cases.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["validate", *map(str, arguments)], catch_exceptions=False)


def failing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    """Error line of a command that exits with code 2."""
    monkeypatch.setattr("sys.argv", ["perfmodel", "validate", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    return capsys.readouterr().err


def test_errors_by_hand(tmp_path: Path) -> None:
    alone, two = validate(read_cases(written(tmp_path))).outcomes
    assert (alone.group, two.group) == ("lab", "ring")
    found = {name: score.error for name, score in alone.scores.items()}
    assert found == pytest.approx(
        {"step_s": 0.2, "samples_per_s": 2.5 / 3 - 1, "idle_fraction": -0.25}
    )
    # 8 samples at 1.6 samples/s are 5 s
    assert two.scores["step_s"].measured == pytest.approx(5.0)
    assert two.scores["step_s"].error == pytest.approx(0.2)
    assert two.scores["samples_per_s"].error == pytest.approx(8 / 6 / 1.6 - 1)


def test_the_distribution_of_errors() -> None:
    found = summarise([0.1, -0.2, 0.3, -0.4, 0.5])
    assert (found.n, found.median, found.worst) == (5, 0.3, 0.5)
    assert found.p90 == pytest.approx(0.46)
    assert found.bias == pytest.approx(0.06)
    assert summarise([-0.1, 0.1]).bias == 0.0
    assert Score(2.0, 4.0, relative=True).error == -0.5
    assert Score(2.0, 4.0, relative=False).error == -2.0


def test_predictions_equal_those_of_predict(tmp_path: Path) -> None:
    cases = read_cases(written(tmp_path))
    for case, outcome in zip(cases, validate(cases).outcomes, strict=True):
        assert outcome.scores["step_s"].predicted == predict(case.job).iteration_s


def test_json_contains_all_results(tmp_path: Path) -> None:
    found = json.loads(run(written(tmp_path), "--json").output)
    assert found["schema"] == "perfmodel.validation/1"
    assert [case["name"] for case in found["cases"]] == ["alone", "two"]
    assert set(found["groups"]) == {"lab", "ring", "all"}
    assert found["groups"]["all"]["step_s"] == pytest.approx(
        {"n": 2, "median": 0.2, "p90": 0.2, "worst": 0.2, "bias": 0.2}
    )
    measure = found["cases"][0]["measures"]["step_s"]
    low, high = measure.pop("interval")
    assert low < 3.0 < high
    assert measure == pytest.approx(
        {"predicted": 3.0, "measured": 2.5, "relative": True, "error": 0.2}
    )
    assert found["cases"][0]["measures"]["idle_fraction"]["interval"] is None


def test_coverage_is_the_fraction_inside_the_intervals(tmp_path: Path) -> None:
    inside = FILE.replace("step_s = 2.5", "step_s = 2.99")
    assert inside != FILE
    near, far = (validate(read_cases(written(tmp_path, text))) for text in (inside, FILE))
    assert near.outcomes[0].scores["step_s"].inside
    assert not far.outcomes[0].scores["step_s"].inside
    assert near.coverage()["all"] == far.coverage()["all"] + 0.5


@pytest.mark.parametrize("statistic", [[], ["--statistic", "median"], ["--statistic", "p90"]])
@pytest.mark.parametrize(("tolerance", "code"), [("25%", 0), ("0.21", 0), ("15%", 1)])
def test_the_exit_code_depends_on_the_tolerance(
    tmp_path: Path, statistic: list[str], tolerance: str, code: int
) -> None:
    done = run(written(tmp_path), "--tolerance", tolerance, *statistic)
    assert done.exit_code == code
    assert ("above" in done.stderr) is (code == 1)


def test_the_process_exits_with_that_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(written(tmp_path))
    for tolerance, code in (("15%", 1), ("25%", 0)):
        monkeypatch.setattr("sys.argv", ["perfmodel", "validate", path, "--tolerance", tolerance])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code


def test_tables_show_cases_and_groups(tmp_path: Path) -> None:
    shown = run(written(tmp_path)).output
    assert "alone" in shown
    assert "+20.0%" in shown
    assert "-25.0 points" in shown
    assert shown.count("ring") >= 2


@pytest.mark.slow
def test_shipped_cases_have_their_documented_errors() -> None:
    """The documentation states their errors, which must not grow unnoticed."""
    answer = validate(shipped_cases(), fidelity="fine")
    assert len(answer.outcomes) >= 20
    found = answer.summaries()["all"]["step_s"]
    assert found.median < 0.06
    assert found.p90 < 0.16
    assert all(case.source.text for case in shipped_cases())


def test_a_case_only_needs_the_throughput_of_one_worker(tmp_path: Path) -> None:
    text = FILE.replace(
        'job = { workload = "net", cluster = "lab", arch = "ring" }',
        'job = { model = "resnet50", device = "ours", batch_size = 8, cluster = "lab", '
        'one_worker_samples_per_s = 2.0, arch = "ring" }',
    )
    case = read_cases(written(tmp_path, text))[0]
    assert case.job.workload.device == "ours"
    assert predict(case.job).iteration_s == pytest.approx(4.0)
    assert len(case.job.workload.layers) > 50


@pytest.mark.parametrize(
    "more",
    [
        'model = "gpt2-small", accumulation = 2',
        'model = "gpt2-small", activation_checkpointing = true',
        'model = "gpt2-small", sequence_length = 512',
        'model = "gpt2-small", accumulation = 4, activation_checkpointing = true, '
        "sequence_length = 256",
        'model = "gpt2-medium"',  # no layer is recorded in its file
    ],
)
def test_the_measured_step_of_one_worker_includes_all_that_the_job_does(
    tmp_path: Path, more: str
) -> None:
    text = FILE.replace(
        'job = { workload = "net", cluster = "lab", arch = "ring" }',
        'job = { device = "ours", batch_size = 8, cluster = "lab", arch = "ring", '
        f"one_worker_samples_per_s = 2.0, {more} }}",
    )
    job = read_cases(written(tmp_path, text))[0].job
    assert predict(job).iteration_s == pytest.approx(4.0)
    assert job.workload.batch_size == 8


# -- keys of jobs ----------------------------------------------------------------------------------


KEYS: dict[str, Any] = {
    "device": "a100",
    "precision": "mixed",
    "batch_size": 16,
    "sequence_length": 256,
    "activation_checkpointing": True,
    "recompute": "full",
    "stack": "tuned",
    "launches": "graphs",
    "framework": "pytorch",
    "accumulation": 2,
    "optimizer": "lion",
    "precision_policy": "bf16",
    "lora": "16",
    "offload_optimizer": True,
    "cluster": "dgx-a100",
    "bandwidth_bytes_per_s": "10Gbps",
    "latency_s": "30us",
    "devices_per_node": 4,
    "workers": 3,
    "arch": "local_sgd",
    "options": {"period": 10},
    "island_devices": 8,
    "island_steps": 2,
    "island_arch": "fsdp",
    "island_options": {"stage": 2},
    "jitter": "gamma:0.1",
    "stragglers": [{"worker": 1, "factor": 1.5}],
    "start": "together",
    "seed": 7,
    "one_device_step_s": 0.5,
    "one_device_batch_size": 16,
}
"""A value other than the default for each key of a job, besides its model or workload."""

REPLICA: dict[str, Any] = {
    "tensor": 2,
    "context": 4,
    "context_exchange": "hierarchical",
    "context_inside": 2,
    "context_split": "contiguous",
    "pipeline": 2,
    "micro_batches": 4,
    "schedule": "interleaved_1f1b",
    "virtual_stages": 2,
    "balance": True,
    "sequence_parallel": True,
    "overlap_sums": True,
    "transfers": "ahead",
    "rank_order": "tp-pp-dp",
    "devices": 32,
}
"""The same for keys of workers that are replicas, which cannot be islands."""


def of_case(folder: Path, job: dict[str, Any]) -> Job:
    """The job of the only case of a file."""
    case = {"name": "c", "job": job, "measured": {"step_s": 1.0}}
    source = {"kind": "measured", "text": "made for a test"}
    content = {"schema": "perfmodel.cases/1", "name": "n", "source": source, "cases": [case]}
    return read_cases(written(folder, json.dumps(content), "cases.json"))[0].job


EXPERTS: dict[str, Any] = {
    "expert": 4,
    "expert_tensor": 2,
    "expert_skew": 0.3,
    "expert_capacity": 1.5,
    "expert_exchange": "hierarchical",
    "expert_nodes": 2,
    "expert_overlap": 0.5,
}
"""The same for keys of models with experts."""


DOCUMENTS: dict[str, Any] = {
    "document_length": 500,
    "document_spread": 0.5,
}
"""The same for keys of models whose sequences are packed."""


@pytest.mark.slow
def test_cases_take_every_key_of_job_files(tmp_path: Path) -> None:
    """A key that job files get later needs a value here, and is then a key of cases as well."""
    # of one_device_step_s, balance, document_length
    instead = {"one_device_samples_per_s", "stage_layers", "document_lengths"}
    assert {*KEYS, *REPLICA, *EXPERTS, *DOCUMENTS, *instead} == set(JobFile.__struct_fields__) - {
        "schema",
        "model",
        "workload",
    }
    job = {"model": "gpt2-small", **KEYS}
    alone = written(tmp_path, json.dumps({"schema": "perfmodel.job/1", **job}), "job.json")
    expected = make_job(**read_job(alone))
    assert of_case(tmp_path, job) == expected
    assert of_case(tmp_path, job | {"accumulation": 1}) != expected  # canary


@pytest.mark.slow
def test_cases_take_the_keys_of_replicas_experts_and_documents(tmp_path: Path) -> None:
    replica = {"model": "gpt2-small", "device": "a100", "batch_size": 4, "arch": "ring", **REPLICA}
    alone = written(tmp_path, json.dumps({"schema": "perfmodel.job/1", **replica}), "job.json")
    expected = make_job(**read_job(alone))
    assert of_case(tmp_path, replica) == expected
    assert of_case(tmp_path, replica | {"balance": False}) != expected  # canary
    experts = {"model": "mixtral-8x7b", "device": "h100", "arch": "ring", "tensor": 2,
               "sequence_parallel": True, "workers": 16}  # fmt: skip
    alone = written(
        tmp_path, json.dumps({"schema": "perfmodel.job/1", **experts, **EXPERTS}), "job.json"
    )
    expected = make_job(**read_job(alone))
    assert of_case(tmp_path, experts | EXPERTS) == expected
    assert of_case(tmp_path, experts | EXPERTS | {"expert_overlap": 0.0}) != expected  # canary
    packed = {"model": "llama-8b", "device": "h100", "arch": "ring"}
    expected = make_job(**packed, **DOCUMENTS)
    assert of_case(tmp_path, packed | DOCUMENTS) == expected
    assert of_case(tmp_path, packed | DOCUMENTS | {"document_spread": 0.0}) != expected  # canary
    (tmp_path / "lengths.txt").write_text("100\n900\n", encoding="utf-8")
    listed = of_case(tmp_path, packed | {"document_lengths": "lengths.txt"})
    assert listed == make_job(**packed, document_lengths=[100, 900])
    assert of_case(tmp_path, packed | {"document_lengths": [100, 900]}) == listed


def test_passes_of_a_case_by_hand(tmp_path: Path) -> None:
    """Two passes of four samples, 3 s each; measured in 5 s."""
    text = FILE.replace('arch = "ring" }', 'arch = "ring", batch_size = 8, accumulation = 2 }', 1)
    text = text.replace("step_s = 2.5", "step_s = 5.0")
    answer = validate(read_cases(written(tmp_path, text))[:1])
    assert answer.outcomes[0].scores["step_s"].error == pytest.approx(0.2)


def test_throughput_of_unequal_islands_counts_all_their_samples(tmp_path: Path) -> None:
    """Islands of two devices and of one: 12 samples in a step, so 2 s are 6 samples/s."""
    text = FILE.replace(
        'arch = "ring" }', 'arch = "ring", workers = 2, island_devices = "2+1" }', 1
    ).replace("step_s = 2.5, idle_fraction = 0.25", "step_s = 2.0")
    scores = validate(read_cases(written(tmp_path, text))[:1]).outcomes[0].scores
    assert scores["samples_per_s"].measured == pytest.approx(6.0)


def test_a_run_is_a_case() -> None:
    case = read_cases_of_text()
    measured = RunResults(
        iterations=50,
        warmup=5,
        iteration_s=5.0,
        iteration_std_s=0.5,
        worker_iteration_s=(5.0, 5.0),
        samples_per_s=1.6,
        compute_s=3.0,
        idle_fraction=0.4,
    )
    ran = MeasuredRun(
        name="two",
        workload="net",
        batch_size=4,
        workers=2,
        arch="ring",
        options={"overlap": False},
        measured=measured,
        source=Source("measured", "made for a test"),
    )
    answer = validate([of_run(ran, case.job.workload, case.job.cluster)])
    assert answer.outcomes[0].scores["step_s"].error == pytest.approx(0.2)
    assert answer.outcomes[0].scores["idle_fraction"].error == pytest.approx(0.1)
    assert answer.groups == ("ring",)


def read_cases_of_text() -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_cases(written(Path(folder)))[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('arch = "ring" }', 'arch = "rin" }', "case 'alone': unknown architecture 'rin'"),
        ("step_s = 2.5", "step_s = -2.5", "step_s: must be more than 0, got -2.5"),
        ("step_s = 2.5", "step_s = nan", "step_s: expected a finite number"),
        ("step_s = 2.5", "stepp_s = 2.5", "unknown key 'stepp_s'; did you mean 'step_s'?"),
        ("step_s = 2.5, idle_fraction = 0.25", "", "measured: needs step_s"),
        ("idle_fraction = 0.25", "idle_fraction = 1.25", "idle_fraction: must be at most 1"),
        ('name = "two"', 'name = "alone"', "cases[1]: the name 'alone' is used twice"),
        ('"perfmodel.cases/1"', '"perfmodel.cases/2"', "schema: expected 'perfmodel.cases/1'"),
        (
            'workload = "net", cluster = "lab", arch',
            'workload = "nt", cluster = "lab", arch',
            "'nt'",
        ),
        (
            'cluster = "lab", arch',
            'one_worker_samples_per_s = 3.0, cluster = "lab", arch',
            "device",
        ),
    ],
)
def test_error_messages_name_place_and_problem(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    said: str,
) -> None:
    assert old in FILE
    path = written(tmp_path, FILE.replace(old, new, 1))
    line = failing(capsys, monkeypatch, str(path))
    assert line.startswith(f"perfmodel: error: {path}: ")
    assert said in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.toml"], "nowhere.toml: cannot read"),
        (["--workload", "w.json"], "--workload and --cluster"),
        (["--workload", "w.json", "--cluster", "ethernet-10g"], "needs run files"),
        (["--statistic", "median"], "--statistic: needs --tolerance"),
        (["--tolerance", "-1%"], "--tolerance"),
        (["--plot", "nowhere/cases.png"], "nowhere/cases.png: cannot write"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in failing(capsys, monkeypatch, *words)
    assert list(tmp_path.iterdir()) == []


def test_no_cases_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        validate([])


@pytest.mark.slow
@pytest.mark.draws
def test_the_figure_shows_every_case(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = validate(read_cases(written(tmp_path)))
    clouds = [line for line in answer.plot().axes[0].get_lines() if line.get_marker() == "o"]
    drawn = {tuple(point) for cloud in clouds for point in cloud.get_xydata()}
    assert drawn == {(2.5, 3.0), (5.0, 6.0)}
    out = tmp_path / "picture.png"
    run(tmp_path / "cases.toml", "--plot", out)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_canary_a_wrong_case_is_noticed(tmp_path: Path) -> None:
    cases = read_cases(written(tmp_path))
    right = msgspec.structs.replace(cases[0].measured, step_s=3.0)
    good = validate([msgspec.structs.replace(cases[0], measured=right)])
    assert math.isclose(good.outcomes[0].scores["step_s"].error, 0.0, abs_tol=1e-12)
    assert good.beyond(1e-9) == []
    assert validate(cases[:1]).beyond(1e-9) == ["lab"]
