"""Timings of several frameworks: which count, and how far those of another may be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import InputError, Profile, Source, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.job_replica import is_megatron
from perfmodel.inputs.profile import Framework, Gradients, Timing, timings_on
from perfmodel.inputs.workload import Workload
from perfmodel.times.frameworks import FRAMEWORK_ERROR, VERSION_ERROR

MADE = Source("measured", "made for a test")


def timing(step_s: float, name: str | None, **given: Any) -> Timing:
    framework = None if name is None else Framework(*name.split())
    at = {"device": "v100", "batch_size": 8, "source": MADE} | given
    return Timing(step_s=step_s, framework=framework, **at)


def profile(*timings: Timing) -> Profile:
    return Profile(name="net", source=MADE, timings=timings, gradients=Gradients(bytes=1e8))


def workload(of: Profile, **given: Any) -> Workload:
    return make_job(workload=of, **given).workload


BOTH = profile(
    timing(1.0, "pytorch"), timing(2.0, "tensorflow"), timing(9.0, "mxnet", device="k80")
)


@pytest.mark.parametrize(("name", "step_s"), [("pytorch", 1.0), ("tensorflow", 2.0), (None, 1.0)])
def test_timings_of_the_framework_count(name: str | None, step_s: float) -> None:
    """Without one, the first of the file."""
    found = workload(BOTH, framework=name)
    assert found.compute_s == pytest.approx(step_s)
    assert found.error_fraction is None


def test_the_time_of_another_framework_has_the_spread_between_them() -> None:
    found = workload(BOTH, framework="paddlepaddle")
    assert found.compute_s == pytest.approx(1.0)
    assert found.error_fraction == FRAMEWORK_ERROR
    (note,) = [one for one in found.assumptions if one.name == "framework"]
    assert (note.value, note.source) == (
        "pytorch", "the profile has no time of paddlepaddle there"
    )  # fmt: skip
    unknown = workload(profile(timing(1.0, None)), framework="pytorch")
    assert unknown.error_fraction == FRAMEWORK_ERROR
    wide, narrow = (
        predict(make_job(workload=BOTH, framework=name)).interval.iteration_s
        for name in ("mxnet", "pytorch")
    )
    assert wide[1] / wide[0] > 2.0 > narrow[1] / narrow[0]


def test_only_the_device_and_precision_matter() -> None:
    """On the K80 MXNet has a time, on the V100 not."""
    assert workload(BOTH, framework="mxnet", device="k80").error_fraction is None
    assert workload(BOTH, framework="mxnet", device="v100").error_fraction == FRAMEWORK_ERROR


def test_a_measured_speed_needs_no_framework() -> None:
    found = workload(BOTH, framework="paddlepaddle", one_device_step_s=3.0)
    assert found.compute_s == pytest.approx(3.0)
    assert found.error_fraction is None


def test_one_batch_size_has_one_timing_per_framework() -> None:
    with pytest.raises(InputError, match="duplicate timing for v100, float32, batch size 8"):
        profile(timing(1.0, "pytorch"), timing(2.0, "pytorch"))
    assert [one.step_s for one in timings_on(BOTH, "v100", None)] == [1.0]


def test_every_timing_of_the_catalogue_states_its_framework() -> None:
    for name in catalogue.model_names():
        for one in catalogue.model(name).timings:
            assert one.framework is not None, (name, one.source)
            words = {"pytorch": "torch", "torch7": "torch"}.get(one.framework.name, "")
            assert words in one.source.text.lower() or "cnn-benchmarks" in one.source.text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "PyTorch"}, "framework: a name in lower case, such as pytorch, not 'PyTorch'"),
        ({"name": " "}, "framework: a name in lower case"),
        ({"name": "pytorch", "year": 20}, "year: must be at least 1990"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Framework(**given)


def test_a_framework_is_kept_in_files() -> None:
    one = Framework("pytorch", version="2.5", container="NGC 24.10", year=2024)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Framework) == one


VERSIONS = profile(
    timing(1.0, "mxnet"), timing(2.0, "pytorch 2.9.1"), timing(3.0, "pytorch 2.13.0"),
    timing(4.0, "pytorch", batch_size=16),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "step_s", "error"),
    [("pytorch 2.13.0", 3.0, None), ("pytorch 2.13", 3.0, None), ("pytorch 2", 2.0, None),
     ("pytorch", 2.0, None), ("pytorch 2.1", 2.0, VERSION_ERROR), ("mxnet 2", 1.0, VERSION_ERROR),
     ("jax 2.13", 1.0, FRAMEWORK_ERROR)],
)  # fmt: skip
def test_timings_of_the_version_count(name: str, step_s: float, error: float | None) -> None:
    """Of its version, else of the framework, else the first; 2.1 is not the start of 2.13."""
    found = workload(VERSIONS, framework=name, batch_size=8)
    assert found.compute_s == pytest.approx(step_s)
    assert found.error_fraction == error
    notes = [one.value for one in found.assumptions if one.name == "framework"]
    used = {"pytorch 2.1": "pytorch 2.9.1", "mxnet 2": "mxnet, no version", "jax 2.13": "mxnet"}
    assert notes == ([used[name]] if error else [])


def test_versions_of_a_framework_are_no_duplicates_but_timings_of_one_are() -> None:
    with pytest.raises(InputError, match="duplicate timing"):
        profile(timing(1.0, "pytorch 2.9.1"), timing(2.0, "pytorch 2.9.1"))
    assert 0.0 < VERSION_ERROR < FRAMEWORK_ERROR


def test_a_version_does_not_change_how_the_framework_trains() -> None:
    assert is_megatron({"framework": "Megatron-LM 0.15"})
    assert not is_megatron({"framework": "megatronic 0.15"})
