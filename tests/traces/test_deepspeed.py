"""The output of DeepSpeed's flops profiler as a coarse workload."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel import InputError, api
from perfmodel.cli import cli
from perfmodel.inputs.profile import read_profile
from perfmodel.traces.workload import import_trace

OUTPUT = """\
-------------------------- DeepSpeed Flops Profiler --------------------------
Profile Summary at step 10:
Notations:
data parallel size (dp_size), model parallel size(mp_size),

world size:                                                   1
data parallel size:                                           1
model parallel size:                                          1
batch size per GPU:                                           8
params per GPU:                                               2.50 M
params of model = params per GPU * mp_size:                   2.50 M
fwd MACs per GPU:                                             3139.93 G
fwd latency:                                                  20.00 ms
bwd latency:                                                  0.05 s
fwd FLOPS per GPU = fwd flops per GPU / fwd latency:          81.9 TFLOPS
step latency:                                                 4000.00 us
iter latency:                                                 80.00 ms
samples/second:                                               100.00

-------------------- Aggregated Profile per GPU --------------------
"""


def given(folder: Path, text: str = OUTPUT, name: str = "flops.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_summary_is_a_coarse_workload(tmp_path: Path) -> None:
    """20 + 50 + 4 ms of computing in a step of 80 ms; 2.5 million gradients of 4 bytes."""
    found = import_trace(given(tmp_path))
    profile = found.workload
    assert profile is not None
    (timing,) = profile.timings
    assert (timing.forward_s, timing.backward_s) == pytest.approx((0.020, 0.050))
    assert (timing.optimizer_s, timing.other_s) == pytest.approx((0.004, 0.006))
    assert (timing.batch_size, timing.precision, profile.name) == (8, "float32", "flops")
    assert profile.parameter_bytes == 1e7
    assert profile.gradients is not None
    assert profile.gradients.tensors == 10  # of at most 1 MiB
    assert found.step_s == pytest.approx(0.080)
    assert found.parts_s["computing"] == pytest.approx(0.074)
    assert found.parts_s["idle"] == pytest.approx(0.006)
    assert found.compute_s["backward"] == pytest.approx(0.050)


def test_the_command_writes_a_workload_that_takes_as_long_as_measured(tmp_path: Path) -> None:
    output = tmp_path / "mine.json"
    words = ["import", str(given(tmp_path)), "--output", str(output), "--device-name", "a100"]
    done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["workload"]["name"] == "flops"
    assert read_profile(output).devices == ("a100",)
    alone = api.predict(api.make_job(workload=str(output), device="a100", arch="ddp"))
    assert alone.iteration_s == pytest.approx(0.080)
    shown = CliRunner().invoke(cli, ["import", str(given(tmp_path))], catch_exceptions=False)
    assert "DeepSpeed's flops profiler" in shown.stdout


def test_given_values_take_precedence(tmp_path: Path) -> None:
    found = import_trace(
        given(tmp_path), name="net", precision="mixed", gradient_bytes=3e6, batch_size=4
    )
    assert found.workload is not None
    assert found.workload.name == "net"
    assert found.workload.parameter_bytes == 3e6
    timing = found.workload.timings[0]
    assert (timing.precision, timing.batch_size) == ("mixed", 4)


def test_latencies_among_several_workers_have_a_note(tmp_path: Path) -> None:
    text = re.sub(r"(data parallel size: +)1", r"\g<1>8", OUTPUT)
    notes = import_trace(given(tmp_path, text)).notes
    assert any("among 8 data parallel workers" in note for note in notes)
    assert not any("among" in note for note in import_trace(given(tmp_path)).notes)


def test_the_last_of_several_profiles_counts(tmp_path: Path) -> None:
    later = OUTPUT.replace("20.00 ms", "21.00 ms")
    found = import_trace(given(tmp_path, OUTPUT + later))
    assert found.compute_s["forward"] == pytest.approx(0.021)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bwd latency:", "other:", "lacks 'bwd latency'; profile a training step"),
        ("params per GPU: ", "params: ", "lacks 'params per gpu'"),
        ("20.00 ms", "20.00 parsecs", "fwd latency: cannot read '20.00 parsecs'"),
        ("20.00 ms", "ms", "fwd latency: cannot read 'ms'"),
        ("20.00 ms", "0 ms", "fwd latency: must be more than 0"),
        (
            "model parallel size:                                          1",
            "model parallel size:                                          4",
            "split over 4 devices",
        ),
    ],
)
def test_summaries_that_lack_something_say_what(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in OUTPUT
    path = given(tmp_path, OUTPUT.replace(old, new, 1))
    with pytest.raises(InputError, match=said) as error:
        import_trace(path)
    assert str(error.value).startswith(f"{path}: ")
