"""Updates of several passes: times measured with them, and other splits of a batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import InputError, Profile, Source, Workload, make_job
from perfmodel.catalogue import catalogue
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.profile import Gradients, Timing
from tests.inputs.test_workload import per_layer, profile

MEASURED = Source("measured", "a test")
WHOLE = Timing("gpu", 64, MEASURED, step_s=0.5, optimizer_s=0.1, accumulation=4, data_loading_s=0.2)
"""Four passes of 16 samples, 0.1 s each, and an optimizer's step of 0.1 s."""
TWICE = Timing("gpu", 64, MEASURED, step_s=0.7, optimizer_s=0.1, accumulation=2)
"""Two passes of 32 samples, 0.3 s each, and an optimizer's step of 0.1 s."""


def coarse(*timings: Timing) -> Profile:
    return Profile(
        name="net", source=MEASURED, gradients=Gradients(400.0, tensors=2), timings=timings
    )


def update(timing: Timing, **given: Any) -> Workload:
    return catalogue.workload(coarse(timing), **given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"batch_size": 64},
        {"accumulation": 4},
        {"batch_size": 64, "accumulation": 4},
    ],
)
def test_an_update_as_measured_takes_the_measured_time(given: dict[str, Any]) -> None:
    found = update(WHOLE, **given)
    assert (found.batch_size, found.accumulation) == (64, 4)
    assert found.compute_s == pytest.approx(0.5, rel=1e-12)
    assert found.data_loading_s == pytest.approx(0.2)
    assert found.optimizer_s == 0.1
    assert found.error_fraction is None


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        ({"batch_size": 32, "accumulation": 2}, 2),
        ({"accumulation": 2}, 2),
        ({"batch_size": 128, "accumulation": 8}, 8),
        ({"batch_size": 16, "accumulation": 1}, 1),
    ],
)
def test_passes_of_the_measured_size_take_the_measured_time(
    given: dict[str, Any], passes: int
) -> None:
    """Any number of passes of 16 samples, 0.1 s each; the optimizer runs once."""
    found = update(WHOLE, **given)
    assert (found.batch_size, found.accumulation) == (16 * passes, passes)
    assert found.compute_s == pytest.approx(0.1 * passes + 0.1)
    assert found.data_loading_s == pytest.approx(0.05 * passes)
    assert found.error_fraction is None


def test_passes_of_other_sizes_are_scaled_from_one_pass() -> None:
    """Two passes of 32 samples from a pass of 16: between 1 and 2 times as long each. One pass of
    64: between 1 and 4 times."""
    two, one = (
        update(WHOLE, batch_size=64, accumulation=2),
        update(WHOLE, batch_size=64, accumulation=1),
    )
    assert 0.2 < two.compute_s - 0.1 <= 0.4
    assert 0.1 < one.compute_s - 0.1 < 0.4
    for found in (two, one):
        assert found.error_fraction is not None
        assert (found.batch_size, found.quality) == (64, "estimated")


def test_passes_without_the_flag_are_as_measured_and_stated() -> None:
    """128 samples are four passes of 32; 50 cannot be four equal passes, but two."""
    for batch_size, passes in ((128, 4), (64, 4), (50, 2), (9, 1)):
        found = update(WHOLE, batch_size=batch_size)
        assert (found.accumulation, found.batch_size) == (passes, batch_size)
        note = next(a for a in found.assumptions if a.name == "accumulation")
        assert (note.value, note.unit) == (passes, "passes")
    plain = msgspec.structs.replace(WHOLE, accumulation=1)
    assert update(plain, batch_size=64).accumulation == 1
    assert "accumulation" not in {a.name for a in update(plain, batch_size=64).assumptions}


def test_timings_with_and_without_accumulation_are_compared_by_pass() -> None:
    """Passes of 16 and of 32 samples take 0.1 and 0.3 s, so those of 24 take 0.2 s."""
    both = coarse(WHOLE, msgspec.structs.replace(TWICE, batch_size=32, step_s=0.4, accumulation=1))
    found = catalogue.workload(both, batch_size=48, accumulation=2)
    assert found.compute_s == pytest.approx(2 * 0.2 + 0.1)
    assert catalogue.workload(both).compute_s == pytest.approx(0.5)  # the largest batch
    assert catalogue.workload(both, batch_size=32).accumulation == 1


def test_the_closest_number_of_passes_is_used_for_passes_of_the_same_size() -> None:
    alone = Timing("gpu", 16, MEASURED, step_s=0.25, optimizer_s=0.1)  # 0.15 s for 16 samples
    both = coarse(alone, WHOLE)
    assert catalogue.workload(both, batch_size=16).compute_s == pytest.approx(0.25)
    assert catalogue.workload(both, batch_size=64).compute_s == pytest.approx(0.5)
    assert catalogue.workload(both, batch_size=32, accumulation=2).compute_s == pytest.approx(0.4)


def test_a_measured_update_of_unequal_passes_takes_the_measured_time() -> None:
    odd = msgspec.structs.replace(WHOLE, batch_size=66)
    assert (update(odd).batch_size, update(odd).accumulation) == (66, 4)
    assert update(odd).compute_s == pytest.approx(0.5)
    with pytest.raises(InputError, match="batch_size: 70 samples cannot be split into 4 equal"):
        update(odd, batch_size=70, accumulation=4)


def test_checkpointing_of_a_measured_update_recomputes_every_pass() -> None:
    """Forward is a third of a pass of 0.1 s: once more in each of four passes."""
    layers = profile(per_layer(8, 1.0)).layers
    names = [msgspec.structs.replace(layer, name=f"block.{i}.x") for i, layer in enumerate(layers)]
    timing = msgspec.structs.replace(per_layer(8, 1.0), accumulation=4)
    model = Profile(name="net", source=MEASURED, layers=tuple(names), timings=(timing,))
    plain = catalogue.workload(model)
    again = catalogue.workload(model, recompute="full")
    assert plain.forward_s + plain.backward_s == pytest.approx(10.0)
    assert again.forward_s + again.backward_s == pytest.approx(13.0)


@pytest.mark.parametrize("layered", [True, False])
def test_one_pass_is_the_inverse_of_accumulation(layered: bool) -> None:
    single = msgspec.structs.replace(per_layer(8, 1.0), copy_s=0.5)
    made = catalogue.workload(profile(single) if layered else coarse(WHOLE), accumulation=1)
    back = one_pass(accumulated(made, 8))
    assert (back.batch_size, back.accumulation) == (made.batch_size, 1)
    for name in ("forward_s", "backward_s", "optimizer_s", "data_loading_s"):
        assert getattr(back, name) == pytest.approx(getattr(made, name))
    for one, other in zip(back.layers, made.layers, strict=True):
        assert one.forward_s == pytest.approx(other.forward_s)
        assert one.backward_s == other.backward_s
    assert one_pass(made) is made
    assert back.assumptions == made.assumptions


def test_the_default_batch_is_stated_for_the_update() -> None:
    plain = msgspec.structs.replace(WHOLE, accumulation=1)
    note = next(a for a in update(plain, accumulation=2).assumptions if a.name == "batch_size")
    assert note.value == 128
    note = next(a for a in update(WHOLE).assumptions if a.name == "batch_size")
    assert note.value == 64


def test_devices_that_divide_layers_leave_the_default_batch_as_it_is() -> None:
    """Eight samples, the default of language models, in each of four passes: not 32."""
    job = make_job(model="gpt2-medium", device="a100", workers=2, tensor=2, accumulation=4)
    (note,) = (a for a in job.assumptions if a.name == "batch_size")
    assert job.workload.batch_size == note.value == 32
    assert note.source == "4 passes of 8 samples, default of language models"


def test_canary_a_step_taken_as_a_pass_is_noticed() -> None:
    """The former reading: a step of four passes as the time of a pass of its batch size."""
    whole = msgspec.structs.replace(WHOLE, accumulation=1)
    assert update(whole, accumulation=4).compute_s == pytest.approx(4 * 0.4 + 0.1)
