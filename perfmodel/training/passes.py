"""Updates of several passes in which workers communicate in more than the last one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated

from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Option, Value
from perfmodel.phases.layers import Layers

NoSyncOption = Annotated[
    bool,
    Option(
        "with accumulation, reduce gradients once per update, in its last pass, as in PyTorch's "
        "no_sync; false: in every pass",
        needs="earlier_passes",
    ),
]


IN_PIPELINES: dict[str, tuple[Value, str]] = {
    "no_sync": (True, "pipelines reduce gradients after the last micro-batch")
}
"""What pipelines need, see :attr:`perfmodel.inputs.options.Options.in_pipelines`."""


def reductions_of(no_sync: bool, passes: int) -> int:
    """Return how often the gradients of an update of ``passes`` passes are reduced."""
    return 1 if no_sync else passes


def pass_layers(job: Job, layers: Layers, *, reduced: bool = True) -> Layers:
    """Return ``layers``, those of an update, with the times of one of its passes, with handover if
    the pass reduces gradients."""
    of_pass: Layers = layers.once(
        _name(reduced), lambda: Layers.of(job.pass_work(reduced=reduced)), of_job=True
    )
    return of_pass


def with_passes(layers: Layers, of_pass: Mapping[bool, Layers]) -> Layers:
    """Return ``layers``, those of an update, for which :func:`pass_layers` returns these, by
    whether the pass reduces gradients; their times may be arrays."""
    for reduced, known in of_pass.items():
        layers.once(_name(reduced), functools.partial(_same, known), of_job=True)
    return layers


def _name(reduced: bool) -> tuple[str, bool]:
    return ("pass", reduced)


def _same(layers: Layers) -> Layers:
    return layers
