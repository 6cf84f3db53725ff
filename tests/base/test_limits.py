"""Absurd values and file contents are refused quickly, in one line that names the limit."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel import Source, Workload, WorkloadLayer, make_job, predict
from perfmodel.base.errors import InputError, message, number, whole_number
from perfmodel.base.limits import LIMITS
from perfmodel.base.quantities import quantity
from perfmodel.catalogue import catalogue
from perfmodel.cli import BROKEN_PIPE
from perfmodel.inputs.job import Jitter, Straggler
from perfmodel.inputs.profile import Gradients, read_profile
from perfmodel.measuring.training.run import read_run
from perfmodel.traces.workload import import_trace
from perfmodel.validation.cases import read_cases
from tests.clock import at_most
from tests.project.test_fuzz import CASES, RUN, TRACE, as_json, little_memory, one_line, run
from tests.settings import thinned


def refused(path: Path, data: bytes, read: Any) -> str:
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        read(path)
    assert one_line(str(error.value))
    return str(error.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", [f"x_{unit}" for unit in LIMITS])
@pytest.mark.parametrize("value", [1e300, 10**400, 10**5000], ids=["1e300", "400", "5000"])
def test_values_above_their_limits_are_refused(name: str, value: float) -> None:
    most = LIMITS[name.removeprefix("x_")].most
    with pytest.raises(InputError, match="must be at most") as error:
        number(name, value)
    assert f"{most:g}" in str(error.value)
    assert number(name, most) == most


@pytest.mark.parametrize("name", [f"x_{unit}" for unit in LIMITS])
def test_positive_values_too_small_to_use_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="must be at least"):
        number(name, 1e-300, above=0.0)
    assert number(name, 1e-300) == 1e-300


@pytest.mark.parametrize("value", [10**10, 10**400, -(10**400), 10**5000], ids=range(4))
def test_whole_numbers_above_their_limits_are_refused(value: int) -> None:
    with pytest.raises(InputError, match=r"^n: must be at (most|least) ") as error:
        whole_number("n", value)
    assert one_line(str(error.value))


DIGITS = "1" * 300


def refused_at_once(command: str, flags: str) -> None:
    with at_most(25):
        code, out, err = run([command, "--model", "resnet18", *flags.split()])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert one_line(err.strip())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "flags",
    [
        f"--workers {DIGITS}",
        f"--batch-size {DIGITS}",
        f"--seed {DIGITS}",
        f"--servers {DIGITS}",
        f"--straggler 0:{DIGITS}",
        f"--straggler {DIGITS}:2",
        f"--jitter {DIGITS}",
        f"--latency {DIGITS}s",
        f"--bandwidth {DIGITS}bps",
        f"--option partition_bytes={DIGITS}",
        f"--option quantised_bits={DIGITS}",
        "--option partition_bytes=1e-300",
        "--option quantum_bytes=1e-300",
        "--bandwidth 1e-300bps",
        f"--workers 1{'0' * 5000}",
    ],
)
@pytest.mark.parametrize("command", thinned(["predict", "explain"]))
def test_options_of_300_digits_are_refused(command: str, flags: str) -> None:
    refused_at_once(command, flags)


def test_a_dataset_size_of_300_digits_is_refused() -> None:
    refused_at_once("predict", f"--dataset-size {DIGITS}")


def test_a_billion_tensors_are_refused() -> None:
    with pytest.raises(InputError, match=r"^tensors: must be at most 100000, got 1000000000$"):
        Gradients(bytes=1e9, tensors=10**9)


def test_messages_of_a_byte_are_refused() -> None:
    for arch in ("ps", "p2p", "ring"):
        job = make_job(
            model="vgg16", device="v100", arch=arch, workers=2, options={"partition_bytes": 1.0}
        )
        with pytest.raises(InputError, match=r"partition_bytes: 1 cuts .* \(at most 200000\)"):
            predict(job)
        try:
            assert predict(job, fidelity="coarse").iteration_s > 0.0  # may work without parts
        except InputError as error:
            assert "at most 200000" in str(error)  # noqa: PT017


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 1e-30])
@pytest.mark.parametrize("fidelity", ["fine", "coarse", "auto"])
def test_a_step_without_computation_is_refused(seconds: float, fidelity: Any) -> None:
    work = Workload.of("nothing", [WorkloadLayer("layer", seconds, seconds, (1.0,))])
    with pytest.raises(InputError, match=r"expected at least 1e-12 s$"):
        predict(make_job(workload=work), fidelity=fidelity)


@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_extreme_straggler_factors_are_refused(factor: float) -> None:
    with pytest.raises(InputError, match=r"straggler factor: must be at (least 0.0001|most 10000)"):
        Straggler(0, factor)


def test_negligible_jitter_is_zero() -> None:
    assert Jitter.parse("gamma:1e-155") == Jitter(0.0, "gamma")


def test_text_in_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(InputError, match=r"^demand_s: expected numbers everywhere, got "):
        quantity("demand_s", np.array([1.0, "x"]))


@pytest.mark.parametrize(
    "staleness", [{"x": 1}, {"1": -1}, {"-1": 1}, {"0": 0}, {"9" * 300: 1}, {"0": 10**400}]
)
def test_invalid_staleness_counts_are_refused(staleness: dict[str, int], tmp_path: Path) -> None:
    made = {**RUN, "measured": {**RUN["measured"], "staleness": staleness}}  # type: ignore[dict-item]
    assert "staleness" in refused(tmp_path / "run.json", as_json(made), read_run)


def test_a_case_without_a_model_is_refused(tmp_path: Path) -> None:
    first, second = CASES["cases"]  # type: ignore[misc]
    lacking = {name: v for name, v in second["job"].items() if name != "workload"}  # type: ignore[index]
    made = {**CASES, "cases": [first, {**second, "job": lacking}]}  # type: ignore[dict-item]
    said = refused(tmp_path / "cases.json", as_json(made), read_cases)
    assert said == "case 'second': one_worker_samples_per_s: needs model or workload"


@pytest.mark.parametrize(
    "odd", ["many", [1], {"a": 1}, -1, 10**400, True, None, "9" * 500], ids=range(8)
)
@pytest.mark.parametrize("key", ["Input Dims", "Input type", "In msg nelems", "correlation"])
def test_traces_with_other_values_in_place_of_numbers(key: str, odd: Any, tmp_path: Path) -> None:
    made = json.loads(json.dumps(TRACE))
    for event in made["traceEvents"]:
        if key in event["args"]:
            event["args"][key] = odd if key != "Input Dims" else [[odd, 8], odd]
    path = tmp_path / "trace.json"
    path.write_bytes(as_json(made))
    try:
        found = import_trace(path)
    except InputError as error:
        said = str(error)
    else:
        said = " ".join(found.notes)
    assert one_line(said)


@pytest.mark.parametrize("time_us", [1e300, -1e300, "1e300", "nan", "soon"])
def test_traces_with_any_times(time_us: Any, tmp_path: Path) -> None:
    made = json.loads(json.dumps(TRACE))
    made["traceEvents"][0]["ts"] = time_us
    said = refused(tmp_path / "trace.json", as_json(made), import_trace)
    assert said.startswith("cannot read an event: ")


def test_a_step_with_communication_only(tmp_path: Path) -> None:
    """The trace is imported or refused, whatever else the step contains."""
    made = json.loads(json.dumps(TRACE))
    for event in made["traceEvents"]:
        if event["cat"] == "kernel":
            event["name"] = "ncclKernel"
    path = tmp_path / "trace.json"
    path.write_bytes(as_json(made))
    assert import_trace(path, batch_size=1).workload is None


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(300 * gzip.compress(b" " * 10**7))  # 3 GB
    assert path.stat().st_size < 3e6
    refused = pytest.raises(InputError, match=r"unpacked: the file is too large: ")
    with at_most(60), little_memory(), refused:
        import_trace(path)


def test_a_line_of_3_megabytes_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("x" * 3_000_000 + ";\n1\n")
    code, out, err = run(["calibrate", "runs", str(path), "--cluster", "ethernet-10g"])
    assert (code, out) == (2, "")
    assert len(err) < 5000
    assert one_line(err.strip())


def test_long_messages_keep_their_ends() -> None:
    assert message(f"a: got {'x' * 10**6!r}; b") == f"a: got '{'x' * 75}...{'x' * 25}'; b"
    assert message("x" * 10**6) == "x" * 3000 + "..." + "x" * 1000
    assert message("worker's 'a' isn't " + "z" * 200) == "worker's 'a' isn't " + "z" * 200
    assert message("two\nlines\x1b[2J") == "two lines\\x1b[2J"


def test_control_characters_of_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "evil.json"
    made = json.loads((catalogue.folder() / "models" / "resnet18.json").read_bytes())
    path.write_text(json.dumps({**made, "name": "\x1b]0;evil\x07"}))
    for more in ([], ["--json"]):
        code, out, _ = run(["predict", "--workload", str(path), *more])
        assert code == 0
        assert "evil" in out
        assert "\x1b" not in out
        assert "\x07" not in out
    assert read_profile(path).source == Source(**made["source"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("closed", ["1>&-", "1>&- 2>&-", "2>&-"])
def test_closed_streams(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m perfmodel list {closed}', sys.executable],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == (0 if closed == "2>&-" else 2)
    said = "perfmodel: error: standard output: is closed\n"
    assert done.stderr == (said if closed == "1>&-" else "")


def test_a_closed_pipe_ends_quietly() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m perfmodel list | true; exit ${PIPESTATUS[0]}', sys.executable],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode in (0, BROKEN_PIPE)
    assert done.stderr == ""
