"""A workload without timings: layers and operators of a model, from a step that computes nothing.

PyTorch's device *meta* has shapes and types but no values. Whatever a model does that depends on no
value of a tensor, it does there too, in milliseconds and without memory. Choices of the largest
scores, such as those of experts, are even there.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from perfmodel.base.errors import InputError, exception_line
from perfmodel.base.provenance import Source
from perfmodel.foreign.pytorch import Loss, import_torch
from perfmodel.inputs.profile import Profile
from perfmodel.profiler.even_choices import META, even_choices
from perfmodel.profiler.layers import Inspection, ObservedStep
from perfmodel.profiler.libraries import Built
from perfmodel.profiler.profiler import buffer_bytes, state_fraction
from perfmodel.profiler.training import MakeBatch, TrainableModel, build, training

SAMPLES = 2
"""Samples of the step: batch normalisation needs more than one."""

EVEN = "choices of the largest scores, such as a router's, are even"
"""Said of a model whose choices depend on values."""


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

    Sizes are those of float32. The operators of the loss belong to the last layer. Experts of a
    router get equal numbers of tokens (:mod:`perfmodel.profiler.even_choices`).

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
    built = _built(model) if isinstance(model, str) else model
    text = built.text

    make = partial(
        training,
        built,
        batch_size=SAMPLES,
        input_shape=input_shape,
        batch=batch,
        loss=loss,
        optimizer=optimizer,
        device=META,
    )
    try:
        trained, observed = _step(make)
    except (InputError, RuntimeError) as error:  # NotImplementedError is one of the latter
        try:
            with even_choices():
                trained, observed = _step(make)
        except (InputError, RuntimeError) as again:
            raise _refusal(built.name, error, again) from error
        text = "; ".join([text, EVEN, *observed.notes])
    return Profile(
        name=name or built.name,
        title=title,
        source=Source("exact", text, url=built.url),
        layers=observed.profile_layers(SAMPLES),
        optimizer_state_bytes_per_parameter_byte=state_fraction(observed, [trained.optimizer]),
        buffer_bytes=buffer_bytes(trained.model),
    )


def _step(make: Callable[[], TrainableModel]) -> tuple[TrainableModel, ObservedStep]:
    """Run a training step on the device *meta*; return it and what was observed."""
    with import_torch().device(META):
        trained = make()
        inspection = Inspection(trained.model, with_loss=True)
        with inspection:
            trained.compute_loss(trained.model, trained.next_batch()).backward()
    trained.optimizer.step()
    return trained, inspection.result()


def _refusal(name: str, error: Exception, again: Exception) -> Exception:
    """Return the error of a model that fails without values, and again with even choices."""
    cause = again.__cause__ or again
    if not _of_meta(cause):
        cause = error.__cause__ or error
    if not _of_meta(cause):
        return error
    reason = exception_line(cause).partition(". ")[0].partition(", as ")[0]
    return InputError(
        f"model: {name} needs values of tensors, which do not exist on the device meta ({reason}"
        f"{_place(cause)}); only choices of the largest scores, such as a router's, are made "
        "there, evenly; profile it without --meta"
    )


def _place(error: BaseException) -> str:
    """Return the line of the user's code that an error comes from, as a part of a sentence."""
    own = str(Path(__file__).parents[1]), str(Path(str(import_torch().__file__)).parent)
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if not frame.filename.startswith(own)]
    if not places:
        return ""
    return f", in line {places[-1].lineno} of {Path(places[-1].filename).name}"


def _built(spec: str) -> Built:
    """Make a model on the device *meta*, or elsewhere if its function or a library needs values."""
    try:
        with import_torch().device(META):
            return build(spec)
    except (InputError, RuntimeError) as error:
        if not _of_meta(error.__cause__ or error):
            raise
    return build(spec)


def _of_meta(error: BaseException) -> bool:
    """Return whether an error is about tensors without values."""
    return META in str(error).lower()
