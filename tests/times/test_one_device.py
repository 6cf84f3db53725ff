"""The speed of one device, given by the user, sets all compute times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import InputError, Profile, Source, make_job, predict, read_job
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.inputs.batch_scaling import SINGLE_ERROR
from perfmodel.inputs.profile import Gradients, Layer, Tensor, Timing
from perfmodel.studies.advice import advise
from perfmodel.studies.reports import report
from perfmodel.studies.requirements import require
from perfmodel.studies.sensitivity import sensitivity
from perfmodel.sweeping.grids import grid
from perfmodel.sweeping.sweeps import sweep
from perfmodel.times.one_device import Speed, read_speed
from perfmodel.validation.cases import CaseJob, read_cases
from tests.jobs import ETHERNET

V100: dict[str, Any] = {"model": "resnet50", "device": "v100", "batch_size": 256, "arch": "ring"}
MADE_UP = Source("measured", "made up for a test")


def rate(**arguments: Any) -> float:
    """Samples per second of a job with one worker."""
    return predict(make_job(**arguments, workers=1)).throughput_samples_per_s


def compute_s(**arguments: Any) -> float:
    return make_job(**arguments).workload.compute_s


@pytest.mark.sampled(4)
@pytest.mark.parametrize("batch_size", [1, 32, 100, 256])
@pytest.mark.parametrize("device", ["v100", "t4", "cpu-epyc-2core"])
@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_one_device_has_the_given_speed(batch_size: int, device: str, fidelity: Any) -> None:
    where = {**V100, "device": device, "batch_size": batch_size}
    p = predict(make_job(**where, one_device_samples_per_s=344.0), fidelity=fidelity)
    assert p.throughput_samples_per_s == pytest.approx(344.0, rel=1e-12)
    q = predict(make_job(**where, one_device_step_s=0.187), fidelity=fidelity)
    assert q.iteration_s == pytest.approx(0.187, rel=1e-12)


def test_all_times_are_scaled_by_one_factor() -> None:
    layered = msgspec.structs.replace(
        catalogue.model("resnet18"),
        timings=tuple(
            msgspec.structs.replace(t, optimizer_s=0.5, data_loading_s=0.25)
            for t in catalogue.model("resnet18").timings
            if t.per_layer
        ),
    )
    before = make_job(workload=layered, batch_size=32).workload
    after = make_job(workload=layered, batch_size=32, one_device_samples_per_s=10.0).workload
    factor = 3.2 / before.compute_s  # 32 samples at 10 per second
    for name in ("forward_s", "backward_s", "optimizer_s", "data_loading_s"):
        assert getattr(after, name) == pytest.approx(factor * getattr(before, name), rel=1e-12)
    for old, new in zip(before.layers, after.layers, strict=True):
        assert new.forward_s == pytest.approx(factor * old.forward_s, rel=1e-12)
        assert new.backward_s == pytest.approx(factor * old.backward_s, rel=1e-12)
        assert new.tensor_bytes == old.tensor_bytes
    assert after.optimizer_s > 0.0
    assert after.step_cv == before.step_cv


def test_a_step_limited_by_data_loading_takes_the_given_time() -> None:
    timing = Timing(
        device="lab", batch_size=8, forward_s=1.0, backward_s=2.0, data_loading_s=6.0,
        source=MADE_UP,
    )  # fmt: skip
    net = Profile(name="net", source=MADE_UP, gradients=Gradients(bytes=1e6), timings=(timing,))
    job = make_job(workload=net, one_device_step_s=2.0, arch="ring")
    assert (job.workload.compute_s, job.workload.data_loading_s) == pytest.approx((1.0, 2.0))
    assert predict(job).iteration_s == pytest.approx(2.0)


def test_given_times_are_measured_and_say_what_was_given() -> None:
    estimated = make_job(**{**V100, "device": "t4"}).workload
    given = make_job(**{**V100, "device": "t4"}, one_device_samples_per_s="150 samples/s")
    w = given.workload
    assert (estimated.quality, w.quality) == ("estimated", "measured")
    assert estimated.error_fraction is not None
    assert w.error_fraction is None
    assert w.source.kind == "measured"
    assert "150 samples/s" in w.source.text
    assert {note.name for note in w.assumptions} & {"compute time error", "efficiency"} == set()
    (note,) = (note for note in given.assumptions if note.name == "one-device speed")
    assert (note.value, note.unit) == (150.0, "samples/s")
    step = make_job(**V100, one_device_step_s=0.5)
    (note,) = (note for note in step.assumptions if note.name == "one-device step")
    assert (note.value, note.unit) == (0.5, "s")
    assert predict(given).interval is not None
    wide, narrow = (predict(make_job(**{**V100, "device": "t4"}, **more)).interval for more in (
        {}, {"one_device_samples_per_s": 150}))  # fmt: skip
    assert wide is not None
    assert narrow is not None
    assert narrow.parts.calibration == 0.0 < wide.parts.calibration


def test_the_time_includes_all_passes_and_recomputation() -> None:
    more = {"model": "gpt2-medium", "device": "a100", "batch_size": 8, "accumulation": 4}
    for checkpointing in (False, True):
        w = make_job(**more, activation_checkpointing=checkpointing, one_device_step_s=0.8).workload
        assert w.compute_s == pytest.approx(0.8, rel=1e-12)
        assert (w.batch_size, w.accumulation) == (8, 4)
        assert w.activation_checkpointing == checkpointing
        assert w.quality == "measured"
        assert not w.among_several


def test_tokens_per_second_follow_from_the_sequence_length() -> None:
    more = {"model": "gpt2-medium", "device": "a100", "batch_size": 2, "arch": "ring"}
    speed = {"one_device_samples_per_s": "12000 tokens/s"}
    assert rate(**more, **speed) == pytest.approx(12000 / 1024, rel=1e-12)
    assert rate(**more, **speed, sequence_length=500) == pytest.approx(24.0, rel=1e-12)


def test_the_devices_of_islands_have_the_given_speed_inside() -> None:
    job = make_job(
        **V100, workers=2, island_devices=4, one_device_step_s=0.5, bandwidth_bytes_per_s=1e15,
        latency_s=0.0,
    )  # fmt: skip
    assert job.of_devices.workload.compute_s == pytest.approx(0.5, rel=1e-12)
    for island in job.islands:
        assert island.job.workload.compute_s == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("model", ["resnet50", "vgg19", "gpt2-xl", "ncf", "dlrm-dense"])
def test_a_device_outside_the_catalogue_may_have_any_plain_name(model: str) -> None:
    job = make_job(
        model=model, device="RX 9999-XT", batch_size=4, one_device_step_s=0.25, arch="ring"
    )
    p = predict(job)
    assert p.device == "RX 9999-XT"
    assert p.iteration_s == pytest.approx(0.25, rel=1e-12)
    assert p.memory.device_bytes is None
    (note,) = (note for note in job.assumptions if note.name == "device")
    assert note.value == "RX 9999-XT"
    assert "not in the catalogue" in note.source


@pytest.mark.parametrize("name", ["V100", "a/b", "", "a\nb", "../v100", " v100"])
def test_other_names_of_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown device"):
        make_job(model="resnet50", device=name, one_device_step_s=1.0)


def test_without_a_speed_an_unknown_device_is_an_error_that_names_this_way_out() -> None:
    with pytest.raises(InputError, match="with the measured speed of one device it may have any"):
        make_job(model="resnet50", device="rx9999")


def layer(name: str, size: float) -> Layer:
    return Layer(name=name, tensors=(Tensor(name, size),))


def test_a_model_without_any_times_needs_only_the_speed() -> None:
    coarse = Profile(name="net", source=MADE_UP, gradients=Gradients(bytes=6e6, tensors=3))
    with pytest.raises(InputError, match="net: timings: at least one is needed, or layers with"):
        make_job(workload=coarse, device="v100")
    with pytest.raises(InputError, match="net has no timings; name a device"):
        make_job(workload=coarse, one_device_step_s=0.3)
    job = make_job(workload=coarse, device="v100", batch_size=8, one_device_step_s=0.3, arch="ring")
    w, p = job.workload, predict(job)
    assert (p.quality, p.iteration_s) == ("measured", pytest.approx(0.3, rel=1e-12))
    assert (w.forward_s, w.backward_s) == pytest.approx((0.1, 0.2), rel=1e-12)
    assert (w.device, w.batch_size, w.precision) == ("v100", 8, "float32")
    fine = Profile(name="net", source=MADE_UP, layers=(layer("a", 4.0), layer("b", 8.0)))
    w = make_job(workload=fine, device="somewhere", one_device_step_s=0.5).workload
    # the first layer computes 1 + 1 products, the second 1 + 2
    assert [la.forward_s for la in w.layers] == pytest.approx([0.1, 0.1])
    assert [la.backward_s for la in w.layers] == pytest.approx([0.1, 0.2])


def test_a_device_without_times_takes_the_proportions_of_the_profile() -> None:
    timing = Timing(
        device="lab", batch_size=8, forward_s=(1.0, 3.0), backward_s=(2.0, 4.0), source=MADE_UP
    )
    net = Profile(
        name="net", source=MADE_UP, layers=(layer("a", 4.0), layer("b", 8.0)), timings=(timing,)
    )
    for device in ("v100", "elsewhere"):
        with pytest.raises(InputError):
            make_job(workload=net, device=device, batch_size=8)
        w = make_job(
            workload=net, device=device, precision="mixed", batch_size=8, one_device_step_s=1.0
        ).workload
        assert (w.device, w.precision) == (device, "mixed")
        assert [la.forward_s for la in w.layers] == pytest.approx([0.1, 0.3])
        assert [la.backward_s for la in w.layers] == pytest.approx([0.2, 0.4])


def test_a_resolved_workload_is_scaled_too() -> None:
    w = make_job(**V100).workload
    assert compute_s(workload=w, one_device_samples_per_s=512) == pytest.approx(0.5, rel=1e-12)
    with pytest.raises(InputError, match="one_device_batch_size: the workload is already"):
        make_job(workload=w, one_device_samples_per_s=512, one_device_batch_size=64)


def test_from_one_batch_size_to_another_times_change_as_in_the_profile() -> None:
    here, there = ({**V100, "batch_size": size} for size in (128, 64))
    unknown = compute_s(**there) / compute_s(**here)
    w = make_job(**there, one_device_samples_per_s=256, one_device_batch_size=128).workload
    assert w.compute_s == pytest.approx(0.5 * unknown, rel=1e-12)
    assert w.quality == "estimated"
    assert w.error_fraction == dict(SINGLE_ERROR)[2.0]  # of devices before 2020
    same = make_job(**there, one_device_samples_per_s=256, one_device_batch_size=64).workload
    assert same.compute_s == pytest.approx(0.25, rel=1e-12)
    assert (same.quality, same.error_fraction) == ("measured", None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"one_device_samples_per_s": 1.0, "one_device_step_s": 1.0}, "give one of them"),
        ({"one_device_batch_size": 8}, "one_device_batch_size: needs one_device_samples_per_s or"),
        ({"one_device_samples_per_s": -1.0}, "one_device_samples_per_s: must be more than 0"),
        ({"one_device_samples_per_s": 0}, "one_device_samples_per_s: must be more than 0"),
        ({"one_device_samples_per_s": math.nan}, "one_device_samples_per_s: expected a finite"),
        ({"one_device_samples_per_s": True}, "one_device_samples_per_s: expected a number"),
        ({"one_device_samples_per_s": "187 ms"}, "one_device_samples_per_s: cannot read '187 ms'"),
        ({"one_device_samples_per_s": "9 tokens/s"}, "because resnet50 has no sequence length"),
        ({"one_device_step_s": 0.0}, "one_device_step_s: must be more than 0"),
        ({"one_device_step_s": math.inf}, "one_device_step_s: expected a finite number"),
        ({"one_device_step_s": "187ms"}, "one_device_step_s: expected a number"),
        (
            {"one_device_step_s": 1.0, "one_device_batch_size": 3, "accumulation": 2},
            "one_device_batch_size: 3 samples cannot be split into 2",
        ),
    ],
)
def test_wrong_values_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_job(**V100, **more)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--one-device-speed -1", "--one-device-speed: must be more than 0, got -1"),
        ("--one-device-speed 0", "--one-device-speed: must be more than 0, got 0"),
        ("--one-device-speed nan", "--one-device-speed: expected a finite number, got nan"),
        ("--one-device-speed 5images/s", "--one-device-speed: cannot read '5images/s'"),
        ("--one-device-speed fast", "--one-device-speed: cannot read 'fast'"),
        ("--step-time 187", "--step-time: a unit is missing in '187'"),
        ("--step-time 0ms", "one_device_step_s: must be more than 0, got 0"),
        ("--step-time -1ms", "--step-time: must be at least 0, got '-1ms'"),
        ("--step-time 1s --one-device-speed 1", "--one-device-speed and --step-time: give one"),
    ],
)
def test_wrong_flags_are_one_line(flags: str, message: str) -> None:
    done = CliRunner().invoke(cli, ["predict", "--model", "resnet50", *flags.split()])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    assert not done.output


def test_texts_of_a_speed() -> None:
    assert read_speed("171", "x") == read_speed("171 samples/s", "x") == Speed(171.0, "samples/s")
    assert read_speed("12e3tokens/s", "x") == Speed(12000.0, "tokens/s")


def test_the_command_is_the_library(tmp_path: Path) -> None:
    words = "--model gpt2-medium --device a100 --batch-size 2 --arch ring --workers 4"
    path = tmp_path / "job.toml"
    path.write_text(
        'schema = "perfmodel.job/1"\nmodel = "gpt2-medium"\ndevice = "a100"\nbatch_size = 2\n'
        'arch = "ring"\nworkers = 4\none_device_samples_per_s = "12000 tokens/s"\n'
    )

    def printed(*more: str) -> str:
        return CliRunner().invoke(cli, ["predict", "--json", *more]).stdout

    expected = predict(make_job(**read_job(path))).to_json()
    assert printed(*words.split(), "--one-device-speed", "12000 tokens/s").strip() == expected
    assert printed("--job", str(path)).strip() == expected
    step = predict(
        make_job(**{k: v for k, v in read_job(path).items() if not k.startswith("one_device")},
                 one_device_step_s=0.187)
    )  # fmt: skip
    assert printed("--job", str(path), "--step-time", "187ms").strip() == step.to_json()
    path.write_text(path.read_text().replace(
        'one_device_samples_per_s = "12000 tokens/s"', 'one_device_step_s = "187ms"'
    ))  # fmt: skip
    assert predict(make_job(**read_job(path))).to_json() == step.to_json()


def test_a_sweep_varies_the_speed_but_keeps_it_to_one_measurement() -> None:
    swept = sweep(**V100, workers=[1, 2], one_device_samples_per_s=[100.0, "200 samples/s"])
    alone = [p.throughput_samples_per_s for p in swept.predictions if p.workers == 1]
    assert alone == pytest.approx([100.0, 200.0], rel=1e-12)
    jobs = grid({**V100, "one_device_samples_per_s": [100.0, "200 samples/s"]}).jobs
    assert [(job.given or {})["one_device_samples_per_s"] for job in jobs] == [
        100.0, "200 samples/s",
    ]  # fmt: skip
    several = {**V100, "batch_size": [64, 128]}
    with pytest.raises(InputError, match="jobs differ in batch_size; give the batch size of"):
        sweep(**several, one_device_step_s=0.5)
    with pytest.raises(InputError, match="but the jobs differ in device"):
        sweep(**{**V100, "device": ["v100", "a100"]}, one_device_step_s=0.5)
    with pytest.raises(InputError, match="but the jobs differ in model"):
        sweep(**{**V100, "model": ["resnet50", "vgg16"]}, one_device_step_s=0.5)
    anchored = sweep(**several, one_device_step_s=0.5, one_device_batch_size=128)
    half, whole = (p.iteration_s for p in anchored.predictions)
    assert (half < whole, whole) == (True, pytest.approx(0.5, rel=1e-12))


@pytest.mark.slow
def test_studies_of_other_batch_sizes_keep_the_speed_at_that_of_the_job() -> None:
    job = {
        **V100, "cluster": ETHERNET, "workers": 8, "batch_size": 64,
        "one_device_samples_per_s": 300.0,
    }  # fmt: skip
    advice = advise(**job)
    (larger,) = (one for one in (*advice.recommended, *advice.unsure) if one.rule == "batch size")
    size = larger.prediction.batch_size
    assert size > 64
    assert larger.flags == f"--batch-size {size} --one-device-batch-size 64"
    changed = {**job, "batch_size": size, "one_device_batch_size": 64}
    assert larger.prediction.compute_s == pytest.approx(compute_s(**changed), rel=1e-9)
    needed = require("batch-size", "scaling>95%", **job).prediction
    assert needed.batch_size > 64
    changed["batch_size"] = needed.batch_size
    assert needed.compute_s == pytest.approx(compute_s(**changed), rel=1e-9)
    rest = {name: value for name, value in job.items() if name != "batch_size"}
    effects = sensitivity(**rest).effects
    (sizes,) = (one for one in effects if one.assumption.name == "batch_size")
    low, high = (one.throughput_samples_per_s for one in sizes.alternatives)
    assert low < high


def test_a_report_scales_a_global_batch_from_the_measured_one() -> None:
    job = {"model": "resnet50", "device": "v100", "arch": "ring", "workers": 4}
    page = report(**job, global_batch_size=256, fidelity="coarse", one_device_step_s=0.2)
    assert [point.workers for point in page.scaling] == [1, 2, 4, 8]
    (same,) = (point for point in page.scaling if point.workers == 4)
    assert same.coarse_samples_per_s == pytest.approx(page.prediction.throughput_samples_per_s)


def test_the_job_of_a_case_has_the_keys_of_a_job_file(tmp_path: Path) -> None:
    from perfmodel.inputs.job_files import JobFile

    assert set(JobFile.__struct_fields__) - {"schema"} <= set(CaseJob.__struct_fields__)
    path = tmp_path / "cases.toml"
    text = """schema = "perfmodel.cases/1"
name = "lab"
source = { kind = "measured", text = "made up" }
[[cases]]
name = "one"
job = { model = "resnet50", device = "our-gpu", batch_size = 32, one_device_step_s = "80ms" }
measured = { samples_per_s = 400 }
"""
    path.write_text(text)
    (case,) = read_cases(path)
    assert case.job.workload.compute_s == pytest.approx(0.08, rel=1e-12)
    path.write_text(text.replace('"80ms"', '"80ms", one_worker_samples_per_s = 400'))
    with pytest.raises(InputError, match="one_worker_samples_per_s and one_device_step_s: give"):
        read_cases(path)
