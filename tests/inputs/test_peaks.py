"""When memory is largest, by hand: activations, gradients and temporary tensors of three layers.

Activations have 90 bytes, and gradients 1150.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import Source, make_job
from perfmodel.inputs.profile import Layer, Profile, Tensor, Timing
from perfmodel.predicting.memory import memory_of, overhead
from perfmodel.results.memory import Footprint

LAYERS = (
    Layer("a", tensors=(Tensor("a.weight", 100),), activation_bytes=10.0),
    Layer("b", tensors=(Tensor("b.weight", 1000),), activation_bytes=30.0),
    Layer("c", tensors=(Tensor("c.weight", 50),), activation_bytes=5.0),
)


def footprint(device: str = "cpu", layers: tuple[Layer, ...] = LAYERS, **given: Any) -> Footprint:
    source = Source("exact", "made for a test")
    timing = Timing(device=device, batch_size=2, forward_s=1.0, backward_s=2.0, source=source)
    profile = Profile(name="net", layers=layers, timings=(timing,), source=source)
    given = {"optimizer": "sgd", "arch": "allreduce", "workers": 1, **given}
    return memory_of(make_job(workload=profile, **given)).worker


def test_all_gradients_exist_in_the_backward_pass_of_the_first_layer() -> None:
    """There no activations are left but the gradient of its output, 20 bytes: 1170. At the loss
    there are 90 and twice 10; in the last layer 80, gradients of 50, and 10 and 60."""
    found = footprint()
    assert found.temporary_bytes == 20.0
    assert found.absent_bytes == {"activations": 90.0}
    assert found.at_peak == {"parameters": 1150.0, "gradients": 1150.0, "temporary tensors": 20.0}
    assert found.allocated_bytes == 1150.0 + 1150.0 + 20.0


def test_gradients_of_earlier_passes_stay() -> None:
    """Then the last layer counts: 80 bytes of activations, 10 and 60 of their gradients."""
    found = footprint(batch_size=4, accumulation=2)
    assert found.temporary_bytes == 70.0
    assert found.absent_bytes == {"activations": 10.0}
    assert found.at_peak["activations"] == 80.0
    assert found.allocated_bytes == 1150.0 + 1150.0 + 80.0 + 70.0


def test_recomputation_ends_with_a_block_and_all_gradients() -> None:
    """Blocks of 80 and 10 bytes: at the loss 90 and twice 10, at the end 80 and all gradients."""
    names = ("blocks.0.a", "blocks.0.b", "blocks.1.c")
    layers = tuple(
        msgspec.structs.replace(layer, name=name) for name, layer in zip(names, LAYERS, strict=True)
    )
    found = footprint(layers=layers, recompute="full")
    assert (found.temporary_bytes, found.absent_bytes) == (0.0, {"activations": 10.0})
    assert found.allocated_bytes == 1150.0 + 1150.0 + 80.0


@pytest.mark.parametrize(
    ("device", "copies"), [("cpu", 2 * 1000.0), ("v100", 1150.0)]
)  # twice the largest tensor, or once all of them
def test_adam_copies_second_moments_in_the_update(device: str, copies: float) -> None:
    found = footprint(device, optimizer="adam")
    assert found.temporary_bytes == copies
    assert found.absent_bytes == {"activations": 90.0}
    assert found.allocated_bytes == 4 * 1150.0 + copies
    assert footprint(device, optimizer="lion").temporary_bytes == 20.0
    elsewhere = footprint(device, optimizer="adam", arch="ps")
    assert elsewhere.temporary_bytes == 20.0


def test_recorded_layers_say_what_is_temporary_and_what_they_need_themselves() -> None:
    """What the last layer saves exists in its own backward pass: 90, 50 and 1200."""
    last = Layer(
        "c", tensors=LAYERS[2].tensors, activation_bytes=5.0, saved_bytes=5.0, temporary_bytes=600.0
    )
    found = footprint(layers=(*LAYERS[:2], last))
    assert found.temporary_bytes == 1200.0
    assert found.absent_bytes == {"gradients": 1100.0}
    assert found.at_peak["gradients"] == 50.0


def test_tensors_on_a_cpu_have_an_interval() -> None:
    found, shipped = footprint(), overhead().tensors_over_allocated
    assert found.reserved_bytes is not None
    ends = found.reserved_bytes.p5, found.reserved_bytes.median, found.reserved_bytes.p95
    assert ends == pytest.approx([factor * found.allocated_bytes for factor in shipped])
    assert found.library_bytes == 0.0
