"""Wrong input gives exactly one line on standard error that says what to do, and exit code 2."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from perfmodel.architectures import registry
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.instances import read_instances
from perfmodel.cli import main
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job_files import JobFile
from perfmodel.inputs.options import described
from perfmodel.inputs.profile import Timing

INPUTS = Path(__file__).parents[1] / "inputs"
PREFIX = "perfmodel: error: "
JOB = "predict --model resnet18 --arch ps --workers 8"

MANY = f"({len(catalogue.model_names())} known: perfmodel list)"
CLUSTERS = ", ".join(catalogue.cluster_names())
ARCHITECTURES = ", ".join(
    sorted(
        name
        for architecture in registry.all_architectures()
        for name in (architecture.name, *architecture.aliases)
    )
)
MISSING, NOT_A_DIRECTORY = os.strerror(errno.ENOENT), os.strerror(errno.ENOTDIR)
IS_A_DIRECTORY = os.strerror(errno.EISDIR)


def options_of(name: str) -> str:
    return ", ".join(each.name for each in described(registry.find(name)[0].options))


def choices_of(name: str, option: str) -> str:
    """The words an option allows, according to its type."""
    known = {each.name: each for each in described(registry.find(name)[0].options)}
    kind = msgspec.inspect.type_info(known[option].type)
    assert isinstance(kind, msgspec.inspect.LiteralType)
    return ", ".join(map(str, kind.values))


ARGUMENTS = {
    # names
    "predict --model resnte18": f"unknown model 'resnte18'; did you mean 'resnet18'? {MANY}",
    "predict --model gpt2": "unknown model 'gpt2'; did you mean gpt2-large, gpt2-medium, gpt2-small, gpt2-xl? "
    f"{MANY}",
    "predict --model meta-llama/Llama-2-7b-hf": "unknown model 'meta-llama/Llama-2-7b-hf'; did you mean "
    f"'llama-7b'? {MANY}",
    "predict --model zzz": f"unknown model 'zzz' {MANY}",
    f"predict --model {'z' * 500}": f"unknown model '{'z' * 75}...{'z' * 25}' {MANY}",
    f"{JOB} --arch rnig": f"unknown architecture 'rnig'; did you mean 'ring'? (known: {ARCHITECTURES})",
    f"{JOB} --device v1000": "unknown device 'v1000'; did you mean 'v100'? "
    f"({len(catalogue.device_names())} known: perfmodel list); "
    "with the measured speed of one device it may have any name",
    f"{JOB} --cluster ethernet-10gb": f"unknown cluster 'ethernet-10gb'; did you mean 'ethernet-10g'? (known: {CLUSTERS})",
    f"{JOB} --cluster=": f"unknown cluster '' (known: {CLUSTERS})",
    f"{JOB} --precision float31": "unknown precision for resnet18 on cpu-epyc-2core 'float31'; did you mean 'float32'? "
    "(known: float32)",
    # options of an architecture
    f"{JOB} --option serverz=2": "option 'serverz' does not apply to ps; did you mean 'servers'? "
    f"(it has: {options_of('ps')})",
    f"{JOB} --option sync": "--option: expected KEY=VALUE, got 'sync'",
    f"{JOB} --option sync=bsp --option sync=asp": "--option: sync is given twice",
    f"{JOB} --option sync=bsp --sync asp": "--sync and --option sync: give one of them",
    f"{JOB} --sync foo": f"option sync of ps: expected one of {choices_of('ps', 'sync')}, got 'foo'",
    f"{JOB} --option transmission=prority": f"option transmission of ps: expected one of {choices_of('ps', 'transmission')}, "
    "got 'prority'; did you mean 'priority'?",
    f"{JOB} --sync ssp --staleness-bound -1": "staleness_bound: must be at least 0, got -1",
    f"{JOB} --sync ssp --staleness-bound two": "option staleness_bound of ps: expected a number, got 'two'",
    f"{JOB} --arch asp --sync bsp": "option sync=bsp: architecture 'asp' means sync=asp",
    f"{JOB} --jitter measured:layer": "jitter: cannot read 'measured:layer'; expected a coefficient of variation such as 0.1, "
    "lognormal:0.1 or gamma:0.1, or measured",
    f"{JOB} --option overlap=maybe": "option overlap of ps: expected true or false, got 'maybe'",
    f"{JOB} --option servers=two": "option servers of ps: expected a whole number, got 'two'",
    f"{JOB} --option servers=2.5": "option servers of ps: expected a whole number, got '2.5'",
    f"{JOB} --option split_above_bytes=nan": "split_above_bytes: expected a finite number, got nan",
    f"{JOB} --option split_above_bytes=10Gbps": "split_above_bytes: unit 'Gbps' does not fit in '10Gbps'; did you mean 'GB'? "
    "(like 25MiB or 100MB)",
    f"{JOB} --servers 0": "servers: must be at least 1, got 0",
    f"{JOB} --arch ring --servers 2": f"option 'servers' does not apply to allreduce (it has: {options_of('ring')})",
    f"{JOB} --arch ring --sync asp": "option 'sync' does not apply to allreduce; did you mean 'no_sync'? (it has: "
    f"{options_of('ring')})",
    # quantities
    f"{JOB} --bandwidth -10Gbps": "--bandwidth: must be more than 0, got '-10Gbps'",
    f"{JOB} --bandwidth 0Gbps": "--bandwidth: must be more than 0, got '0Gbps'",
    f"{JOB} --bandwidth 10": "--bandwidth: a unit is missing in '10' (like 10Gbps or 1.25GB/s)",
    f"{JOB} --bandwidth 10MB": "--bandwidth: unit 'MB' does not fit in '10MB'; did you mean 'MBps'? "
    "(like 10Gbps or 1.25GB/s)",
    f"{JOB} --bandwidth 10gbps": "--bandwidth: unit 'gbps' does not fit in '10gbps'; did you mean 'Gbps'? "
    "(like 10Gbps or 1.25GB/s)",
    f"{JOB} --bandwidth nanGbps": "--bandwidth: expected a finite number, got nan",
    f"{JOB} --bandwidth infGbps": "--bandwidth: expected a finite number, got inf",
    f"{JOB} --bandwidth fast": "--bandwidth: cannot read 'fast'; expected a number and a unit, like 10Gbps or 1.25GB/s",
    f"{JOB} --latency -50us": "--latency: must be at least 0, got '-50us'",
    f"{JOB} --latency 50Gbps": "--latency: unit 'Gbps' does not fit in '50Gbps' (like 50us or 1.5ms)",
    # workers and differences among them
    f"{JOB} --workers 0": "workers: must be at least 1, got 0",
    f"{JOB} --workers -3": "workers: must be at least 1, got -3",
    f"{JOB} --jitter -0.1": "jitter: must be at least 0, got -0.1",
    f"{JOB} --jitter nan": "jitter: expected a finite number, got nan",
    f"{JOB} --jitter abc": "jitter: cannot read 'abc'; expected a coefficient of variation such as 0.1, "
    "lognormal:0.1 or gamma:0.1, or measured",
    f"{JOB} --jitter weibull:0.1": "unknown jitter distribution 'weibull' (known: gamma, lognormal, measured)",
    f"{JOB} --straggler 9:2": "straggler 9: there is no such worker (workers are 0 to 7)",
    f"{JOB} --straggler x": "straggler: cannot read 'x'; expected WORKER:FACTOR such as 0:1.5",
    f"{JOB} --straggler 1:0": "straggler factor: must be more than 0, got 0",
    f"{JOB} --straggler 1:2 --straggler 1:3": "straggler 1: given twice",
    f"{JOB} --seed -1": "seed: must be at least 0, got -1",
    f"{JOB} --cluster valid/cluster.toml": "workers: 8 do not fit on cluster 'mixed' (3 nodes x 2 devices)",
    # batches and epochs
    f"{JOB} --batch-size 0": "batch_size: must be at least 1, got 0",
    f"{JOB} --batch-size 32 --global-batch-size 256": "--batch-size and --global-batch-size: give one of them",
    f"{JOB} --global-batch-size 100": "--global-batch-size: 100 samples cannot be split evenly among 8 workers",
    f"{JOB} --global-batch-size 0": "--global-batch-size: must be at least 1, got 0",
    f"{JOB} --epochs 3": "epochs: needs dataset_size too",
    f"{JOB} --dataset-size 100 --epochs 0": "epochs: must be at least 1, got 0",
    f"{JOB} --dataset-size 0": "dataset_size: must be at least 1, got 0",
    # fidelity and limits
    f"{JOB} --tolerance 5%": "--tolerance: needs --fidelity auto",
    f"{JOB} --fidelity auto --tolerance 0": "--tolerance: must be more than 0, got 0",
    f"{JOB} --fidelity auto --tolerance 200%": "--tolerance: must be at most 1 (like 1% or 0.01), got '200%'",
    f"{JOB} --fidelity coarse --trace trace.json": "--trace: shows a simulation; needs --fidelity fine",
    f"{JOB} --fidelity auto --trace t.json": "--trace: shows a simulation; needs --fidelity fine",
    "show resnet18 --formula": f"unknown architecture 'resnet18' (known: {ARCHITECTURES})",
    "show ps --json": "--json: needs --formula",
    "show ps --option sync=asp": "--option: needs --formula",
    "show d_psgd --formula --option overlop=false": "option 'overlop' does not apply to d_psgd; did you mean 'overlap'? (it has: overlap)",
    "explain --model resnet18 --against pss": f"unknown architecture 'pss'; did you mean 'ps'? (known: {ARCHITECTURES})",
    "explain --model resnet18 --against ps": "against: both architectures are ps",
    f"{JOB} --workers eight": "--workers: expected a whole number, got 'eight'",
    # other commands
    "plan --model resnet50 --dataset-size 1000 --instance p3.bigg": "unknown instance type 'p3.bigg' (known: "
    f"{', '.join(sorted({row.name for row in read_instances()}))})",
    "require workers --to time<50% --model resnet18": "aim: time: is no fraction, got '50%' (percent of: idle, scaling, fits)",
    f"diagnose {JOB.removeprefix('predict ')} --measured-step 1s --loading-time 2s": "loading_s: must be at most the time of a "
    "step, 1 s, got 2 s",
    f"diagnose {JOB.removeprefix('predict ')} --measured-step 1s --also 8:2s": "also: 8 workers are those of the job itself; give others",
    f"{JOB.replace('predict', 'report')} --output page.pdf": "report: cannot write 'pdf' files, only HTML (html)",
    # choice of model
    "predict": f"model or workload: give one of them, such as resnet50 ({len(catalogue.model_names())} models: perfmodel list models)",
    "predict --model resnet18 --workload x.json": "model and workload: give only one of them",
    "predict --workload missing.json": f"missing.json: cannot read: {MISSING}",
    "predict --workload resnet18": f"resnet18: cannot read: {MISSING}",
    "predict --workload .": f".: cannot read: {IS_A_DIRECTORY}",
    f"{JOB} --cluster missing.toml": f"missing.toml: cannot read: {MISSING}",
}

CLICK = {
    # click's wording differs between versions, so only the named parts are checked
    f"{JOB} --wrokers 8": ["--wrokers", "--workers"],
    f"{JOB} --fidelity rough": ["--fidelity", "rough", "fine", "coarse", "both", "auto"],
    f"{JOB} --workers": ["--workers"],
    f"{JOB} stray": ["stray"],
    "predcit": ["predcit"],
    "list modles": ["modles", "architectures", "models", "devices", "clusters"],
    "show": ["NAME"],
}

TIMING_KEYS = ", ".join(Timing.__struct_fields__)
CLUSTER_KEYS = ", ".join(Cluster.__struct_fields__)
JOB_KEYS = ", ".join(JobFile.__struct_fields__)
ONE_DEGREE = "a timing needs exactly one of: forward_s with backward_s, step_s, samples_per_s"

FILES = {
    # the document
    "empty.json": "not valid JSON: Input data was truncated",
    "truncated.json": "not valid JSON: Input data was truncated",
    "nan.json": "not valid JSON: JSON is malformed: invalid character (byte 862)",
    "list.json": "expected an object with a 'schema' key, got list",
    "syntax.toml": "not valid TOML: Invalid value (at line 4, column 9)",
    "not_utf8.toml": "not valid TOML: 'utf-8' codec can't decode byte 0xfc in position 40: invalid start byte",
    # the schema
    "schema_missing.json": "schema: expected 'perfmodel.workload/1', got None",
    "schema_other.json": "schema: expected 'perfmodel.workload/1', got 'perfmodel.workload/2'",
    "cluster_as_workload.json": "schema: expected 'perfmodel.workload/1', got 'perfmodel.cluster/1'",
    # keys
    "key_missing.json": "timings[1]: object missing required field `batch_size`",
    "name_missing.json": "object missing required field `name`",
    "key_unknown.json": f"timings[0]: unknown key 'foward_s'; did you mean 'forward_s'? (allowed: {TIMING_KEYS})",
    "key_unknown_tensor.json": "layers[1].tensors[0]: unknown key 'byte'; did you mean 'bytes'? (allowed: name, bytes)",
    "key_unknown_top.json": "unknown key 'layer'; did you mean 'layers'? (allowed: schema, name, source, timings, "
    "title, layers, gradients, decoder, optimizer_state_bytes_per_parameter_byte, "
    "buffer_bytes, activation_precision, noise_scale, "
    "calibration)",
    "key_unknown.toml": "nic: unknown key 'latency'; did you mean 'latency_s'? "
    "(allowed: bandwidth_bytes_per_s, latency_s, efficiency, ceiling_bytes_per_s)",
    "nic_missing.toml": f"unknown key 'nick'; did you mean 'nic'? (allowed: {CLUSTER_KEYS})",
    "source_missing.toml": f"unknown key 'sources'; did you mean 'source'? (allowed: {CLUSTER_KEYS})",
    "override_key.toml": "overrides[0]: unknown key 'sped'; did you mean 'speed'? (allowed: node, nic, speed)",
    # types and words
    "type_wrong.json": "timings[0].batch_size: expected a whole number, got 'many'",
    "null.json": "timings[0].device: expected text, got null",
    "time_text.json": "timings[0].forward_s[1]: expected a number, got '2ms'",
    "nodes_fraction.toml": "nodes: expected a whole number, got 2.5",
    "source_kind.json": "source.kind: expected one of estimated, exact, measured, published, got 'guess'",
    "placement.toml": "server.placement: expected one of colocated, dedicated, got 'elsewhere'",
    # numbers of a workload
    "time_negative.json": "timings[0]: forward_s[1]: must be at least 0, got -0.002",
    "time_infinite.json": "timings[0].optimizer_s: expected a finite number, got inf",
    "time_unit_wrong.json": "timings[0].optimizer_s: unit 'MB' does not fit in '1MB' (like 50us or 1.5ms)",
    "batch_size_zero.json": "timings[0]: batch_size: must be at least 1, got 0",
    "bytes_zero.json": "layers[0].tensors[1]: tensor 'conv.bias': bytes: must be more than 0, got 0",
    "list_short.json": "timings[0].backward_s: 1 values for 2 layers",
    "std_short.json": "timings[0].forward_std_s: 1 values for 2 layers",
    "noise_scale_negative.json": "noise_scale: samples: must be at least 0, got -1",
    "noise_scale_batches.json": "noise_scale: batches: must be at least 2, got 1",
    "largest_too_large.json": "gradients: largest_bytes: 5e+07 is more than all gradients together (4.8e+07 bytes)",
    "largest_too_small.json": "gradients: largest_bytes: 12 tensors of at most 1e+06 bytes cannot hold 4.8e+07 bytes",
    # consistency of a workload
    "times_both.json": f"timings[0]: {ONE_DEGREE}",
    "times_none.json": f"timings[0]: {ONE_DEGREE}",
    "forward_only.json": f"timings[0]: {ONE_DEGREE}",
    "times_mixed.json": "timings[0]: forward_s and backward_s: give lists (per layer) or totals for both",
    "layers_and_gradients.json": "a workload needs exactly one of: layers, gradients",
    "layers_nor_gradients.json": "a workload needs exactly one of: layers, gradients",
    "tensors_none.json": "layers: no layer has a tensor, so there is nothing to communicate",
    # numbers of a cluster
    "nan.toml": "nic: efficiency: expected a finite number, got nan",
    "efficiency_above_one.toml": "nic: efficiency: must be at most 1, got 94",
    "bandwidth_nan.toml": "nic: bandwidth_bytes_per_s: expected a finite number, got nan",
    "bandwidth_infinite.toml": "nic: bandwidth_bytes_per_s: expected a finite number, got inf",
    "bandwidth_negative.toml": "nic: bandwidth_bytes_per_s: must be more than 0, got -1",
    "bandwidth_zero.toml": "nic.bandwidth_bytes_per_s: must be more than 0, got '0Gbps'",
    "bandwidth_case.toml": "nic.bandwidth_bytes_per_s: unit 'gbps' does not fit in '10gbps'; did you mean 'Gbps'? "
    "(like 10Gbps or 1.25GB/s)",
    "bandwidth_unit_missing.toml": "nic.bandwidth_bytes_per_s: a unit is missing in '10' (like 10Gbps or 1.25GB/s)",
    "threads_zero.toml": "server: threads: must be at least 1, got 0",
    "oversubscription.toml": "core_oversubscription: must be at least 1, got 0.5",
    "override_speed.toml": "overrides[0]: speed: must be more than 0, got 0",
    "override_node.toml": "overrides: there is no node 3 (0 to 2)",
    "override_twice.toml": "overrides: node 1 is given twice",
    # jobs
    "job_key_unknown.toml": f"unknown key 'worker'; did you mean 'workers'? (allowed: {JOB_KEYS})",
    "job_jitter.toml": "unknown jitter distribution 'weibull' (known: gamma, lognormal, measured)",
    "job_straggler.toml": "stragglers[0]: straggler factor: must be more than 0, got 0",
    "job_straggler_extra.toml": "stragglers[0]: unknown key 'extra' (allowed: worker, factor)",
    "job_start.toml": "start: expected one of staggered, together, got 'soon'",
    "job_seed.toml": "seed: expected a whole number, got 'seven'",
    "job_bandwidth.toml": "bandwidth_bytes_per_s: unit 'gbps' does not fit in '10gbps'; did you mean 'Gbps'? "
    "(like 10Gbps or 1.25GB/s)",
}


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> tuple[object, str, str]:
    """Exit code, standard output and standard error of a command line."""
    monkeypatch.setattr(sys, "argv", ["perfmodel", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return end.value.code, out, err


def message(code: object, out: str, err: str) -> str:
    """The message of a failed command; checks that it has the required form."""
    problems = []
    if code != 2:
        problems.append(f"exit code {code}")
    if out:
        problems.append(f"{len(out)} characters on standard output")
    if not err.startswith(PREFIX):
        problems.append("not an error of perfmodel")
    if not err.endswith("\n") or err.count("\n") != 1:
        problems.append(f"{err.count(chr(10))} lines on standard error")
    assert not problems, f"{', '.join(problems)}:\n{err}"
    return err.removeprefix(PREFIX).removesuffix("\n")


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_wrong_arguments(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(INPUTS)
    assert message(*run(monkeypatch, capsys, arguments.split())) == ARGUMENTS[arguments]


@pytest.mark.parametrize("arguments", CLICK)
def test_wrong_usage(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = message(*run(monkeypatch, capsys, arguments.split()))
    assert [word for word in CLICK[arguments] if word not in said] == []


@pytest.mark.parametrize("name", FILES)
def test_wrong_file(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(INPUTS / "invalid")
    said = message(*run(monkeypatch, capsys, predict_with(Path(name))))
    assert said == f"{name}: {FILES[name]}"


def test_every_wrong_file_has_its_message() -> None:
    assert {path.name for path in (INPUTS / "invalid").iterdir()} == set(FILES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", sorted((INPUTS / "valid").iterdir()), ids=lambda p: p.name)
def test_right_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, [*predict_with(path), "--workers", "4"])
    assert (code, err) == (0, "")
    assert "samples/s" in out


def predict_with(path: Path) -> list[str]:
    """A command line for a file of the corpus; TOML files are clusters unless named otherwise."""
    if path.stem.startswith("job"):
        return ["predict", "--job", str(path)]
    if path.stem.startswith("coarse") or (path.suffix == ".json" and path.stem != "cluster"):
        return ["predict", "--workload", str(path)]
    return ["predict", "--model", "resnet18", "--cluster", str(path)]


def test_a_name_with_a_line_break_stays_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "two lines" in message(
        *run(monkeypatch, capsys, ["predict", "--model", "resnet18", "two\nlines"])
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--batch-size 0", "batch_size: must be at least 1, got 0"),
        (
            "--precision 16-true",
            "unknown precision '16-true' (known: float32, mixed, tf32)",
        ),
        (
            "--precision float13",
            "unknown precision 'float13'; did you mean 'float32'? (known: float32, mixed, tf32)",
        ),
    ],
)
def test_wrong_arguments_for_an_estimated_device(
    arguments: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = catalogue.model("resnet18")
    device = next(d for d in catalogue.device_names() if d not in profile.devices)
    given = [*JOB.split(), "--device", device, *arguments.split()]
    assert message(*run(monkeypatch, capsys, given)) == expected


def test_deeply_nested_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.json"
    deep = "[" * 10**5 + "]" * 10**5
    path.write_text(f'{{"schema": "perfmodel.workload/1", "layers": {deep}}}')
    said = message(*run(monkeypatch, capsys, ["predict", "--workload", str(path)]))
    assert said == f"{path}: nested too deeply"


def test_no_command_shows_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = run(monkeypatch, capsys, [])
    assert bare == run(monkeypatch, capsys, ["--help"])
    assert bare[0] == 0


def trace_targets(folder: Path) -> dict[str, tuple[Path, str]]:
    """Paths where no trace can be written, even by root, and the reason."""
    (folder / "file").touch()
    (folder / "folder").mkdir()
    return {
        "folder missing": (folder / "missing" / "trace.json", MISSING),
        "folder is a file": (folder / "file" / "trace.json", NOT_A_DIRECTORY),
        "is a folder": (folder / "folder", IS_A_DIRECTORY),
    }


@pytest.mark.parametrize("why", ["folder missing", "folder is a file", "is a folder"])
def test_a_trace_that_cannot_be_written_leaves_nothing_behind(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, reason = trace_targets(tmp_path)[why]
    before = sorted(tmp_path.rglob("*"))
    result = run(monkeypatch, capsys, [*JOB.split(), "--trace", str(path)])
    assert message(*result) == f"{path}: cannot write: {reason}"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_trace_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "trace.json"
    path.write_text("what was there before")
    monkeypatch.setattr(os, "replace", fail)
    result = run(monkeypatch, capsys, [*JOB.split(), "--trace", str(path)])
    assert message(*result) == f"{path}: cannot write: {os.strerror(errno.ENOSPC)}"
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "arguments",
    ["predict --model resnte18", f"{JOB} --bandwidth 10gbps", "predict --workload missing.json"],
)
def test_wrong_arguments_in_a_process_of_their_own(arguments: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *arguments.split()],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert message(done.returncode, done.stdout, done.stderr) == ARGUMENTS[arguments]


@pytest.mark.sampled(3)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", ["--help", "list", f"{JOB} --json"])
def test_output_that_cannot_be_written(arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perfmodel", *arguments.split()],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
    said = message(done.returncode, "", done.stderr)
    assert said == f"standard output: cannot write: {os.strerror(errno.ENOSPC)}"


@pytest.mark.parametrize(
    ("code", "out", "err", "problem"),
    [
        (1, "", f"{PREFIX}wrong\n", "exit code 1"),
        (2, "half a table", f"{PREFIX}wrong\n", "12 characters on standard output"),
        (2, "", "Traceback (most recent call last):\n  ...\nValueError\n", "3 lines"),
        (2, "", "Error: wrong\n", "not an error of perfmodel"),
    ],
)
def test_canary_the_check_notices_each_deviation(
    code: int, out: str, err: str, problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        message(code, out, err)
