"""A workload without timings: layers and operators of a model, from a step that computes nothing.

PyTorch's device *meta* has shapes and types but no values. Whatever a model does that depends on no
value of a tensor, it does there too, in milliseconds and without memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.errors import InputError, exception_line
from perfmodel.base.provenance import Source
from perfmodel.foreign.pytorch import Loss, import_torch
from perfmodel.inputs.profile import Profile
from perfmodel.profiler.layers import Inspection
from perfmodel.profiler.libraries import Built
from perfmodel.profiler.profiler import buffer_bytes, state_fraction
from perfmodel.profiler.training import META, MakeBatch, build, training

SAMPLES = 2
"""Samples of the step: batch normalisation needs more than one."""


def describe(
    model: str | Built,
    *,
    input_shape: Sequence[int] | None = None,
    batch: str | MakeBatch | None = None,
    loss: str | Loss | None = None,
    optimizer: str = "sgd",
    name: str | None = None,
    title: str = "",
) -> Profile:
    """Return a workload without timings, from a training step on the device *meta*.

    Sizes are those of float32. The operators of the loss belong to the last layer.

    Parameters
    ----------
    model : its name, or what :func:`perfmodel.profiler.training.build` returned, which is moved to
        *meta* and loses its weights.
    input_shape, batch, loss, optimizer : see :func:`perfmodel.profiler.training.training`.
    name, title : written to the profile; None for the name of the model.

    Raises
    ------
    InputError : see there; or the model cannot run without values.
    """
    torch = import_torch()
    built = _built(model) if isinstance(model, str) else model
    try:
        with torch.device(META):
            trained = training(
                built,
                batch_size=SAMPLES,
                input_shape=input_shape,
                batch=batch,
                loss=loss,
                optimizer=optimizer,
                device=META,
            )
            inspection = Inspection(trained.model, with_loss=True)
            with inspection:
                trained.compute_loss(trained.model, trained.next_batch()).backward()
        trained.optimizer.step()
    except (InputError, RuntimeError) as error:  # NotImplementedError is one of the latter
        cause = error.__cause__ or error
        if not _of_meta(cause):
            raise
        raise InputError(
            f"model: {built.name} needs values of tensors, which do not exist on the device meta "
            f"({exception_line(cause)}); profile it without --meta"
        ) from error
    observed = inspection.result()
    return Profile(
        name=name or built.name,
        title=title,
        source=Source("exact", built.text, url=built.url),
        layers=observed.profile_layers(SAMPLES),
        optimizer_state_bytes_per_parameter_byte=state_fraction(observed, [trained.optimizer]),
        buffer_bytes=buffer_bytes(trained.model),
    )


def _built(spec: str) -> Built:
    """Make a model on the device *meta*, or elsewhere if its function needs values."""
    try:
        with import_torch().device(META):
            return build(spec)
    except InputError as error:
        if not _of_meta(error.__cause__ or error):
            raise
    return build(spec)


def _of_meta(error: BaseException) -> bool:
    """Return whether an error is about tensors without values."""
    return META in str(error).lower()
