"""Gradient accumulation, as a change to a workload."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.workload import Workload


class PassSplit(msgspec.Struct, frozen=True):
    """How the samples of an update are split: the number of ``passes``; the samples of a pass and
    of the update, None for a default that the profile does not set; and assumptions."""

    passes: int
    pass_size: int | None
    batch_size: int | None
    assumptions: tuple[Assumption, ...] = ()


def split(
    timings: Sequence[Timing],
    batch_size: int | None,
    accumulation: int | None,
    what: str = "batch_size",
) -> PassSplit:
    """Return how an update of ``batch_size`` samples is split into ``accumulation`` passes.

    A timing with ``accumulation`` of its own is a measurement of passes. The defaults are those of
    the timing at ``batch_size`` or nearest to it, so that an update as measured takes the measured
    time: its batch size (that of the largest one), and its number of passes, or the largest divisor
    of that number that splits ``batch_size`` evenly. Errors call the batch size ``what``.

    Raises
    ------
    InputError : ``accumulation`` passes cannot have the same number of samples, which is allowed
        only for an update as measured.
    """
    if accumulation is not None:
        whole_number("accumulation", accumulation)
    if batch_size is not None:
        whole_number(what, batch_size)
    measured = {(t.batch_size, t.accumulation): t for t in timings}
    size = math.inf if batch_size is None else batch_size
    near = min(timings, key=lambda t: (abs(t.batch_size - size), t.batch_size), default=None)
    if batch_size is None:
        near = max(timings, key=lambda t: t.batch_size, default=None)
    notes = []
    passes = accumulation
    if passes is None:
        passes = 1 if near is None else near.accumulation
        if batch_size is not None and (batch_size, passes) not in measured:
            passes = math.gcd(batch_size, passes)
        if near is not None and near.accumulation > 1:
            why = f"the profile has {near.accumulation} at batch size {near.batch_size}"
            notes.append(Assumption("accumulation", passes, "passes", why))
    if batch_size is None:
        if near is None or near.accumulation == 1:
            return PassSplit(passes, None, None, tuple(notes))
        pass_size = near.one_pass.batch_size
        whole = near.batch_size if passes == near.accumulation else passes * pass_size
        why = f"{passes} passes of {pass_size} samples, the size of the profile's largest batch"
        notes.insert(0, Assumption("batch_size", whole, "samples", why))
        return PassSplit(passes, pass_size, whole, tuple(notes))
    if (batch_size, passes) in measured:
        pass_size = measured[batch_size, passes].one_pass.batch_size
        return PassSplit(passes, pass_size, batch_size, tuple(notes))
    if batch_size % passes:
        raise InputError(f"{what}: {batch_size} samples cannot be split into {passes} equal passes")
    return PassSplit(passes, batch_size // passes, batch_size, tuple(notes))


def of_one_pass(profile: Profile, passes: int) -> Profile:
    """Return the profile with the timings of one pass instead of several.

    Of timings with the same samples per pass, that with the number of passes closest to ``passes``
    is used.
    """
    if all(t.accumulation == 1 for t in profile.timings):
        return profile
    chosen: dict[tuple[str, str, int], Timing] = {}
    for timing in sorted(profile.timings, key=lambda t: abs(t.accumulation - passes)):
        one = timing.one_pass
        chosen.setdefault((one.device, one.precision, one.batch_size), timing)
    kept = [t.one_pass for t in profile.timings if t in chosen.values()]
    return msgspec.structs.replace(profile, timings=tuple(kept))


def accumulated(workload: Workload, passes: int, batch_size: int | None = None) -> Workload:
    """Return the workload with ``passes`` equal passes per update, each of its batch size.

    All passes but the last count as forward time of the first layer, because a worker does them
    before the pass that communicates; :func:`one_pass` is the inverse. Activations are those of one
    pass. ``batch_size`` is that of the update, if passes do not have the same number of samples.
    """
    if passes == 1:
        return workload
    earlier_s = (passes - 1) * (workload.forward_s + workload.backward_s)
    layers = workload.layers
    if layers:
        first = msgspec.structs.replace(layers[0], forward_s=layers[0].forward_s + earlier_s)
        layers = (first, *layers[1:])
    return msgspec.structs.replace(
        workload,
        batch_size=passes * workload.batch_size if batch_size is None else batch_size,
        layers=layers,
        forward_s=workload.forward_s + earlier_s,
        data_loading_s=passes * workload.data_loading_s,
        accumulation=passes * workload.accumulation,
        assumptions=tuple(_in_each(note, passes) for note in workload.assumptions),
    )


def one_pass(workload: Workload) -> Workload:
    """Return the workload of one of the passes of an update, with the whole of the optimizer."""
    passes = workload.accumulation
    if passes == 1:
        return workload
    earlier_s = (passes - 1) / passes * (workload.forward_s + workload.backward_s)
    layers = workload.layers
    if layers:
        seconds = sum(layer.forward_s + layer.backward_s for layer in layers)
        first_s = layers[0].forward_s - (passes - 1) / passes * seconds
        layers = (msgspec.structs.replace(layers[0], forward_s=first_s), *layers[1:])
    return msgspec.structs.replace(
        workload,
        batch_size=max(1, round(workload.batch_size / passes)),
        layers=layers,
        forward_s=workload.forward_s - earlier_s,
        data_loading_s=workload.data_loading_s / passes,
        accumulation=1,
        assumptions=tuple(_of_each(note, passes) for note in workload.assumptions),
    )


def _in_each(note: Assumption, passes: int) -> Assumption:
    """Return an assumption on the batch size of a pass as one on that of the update."""
    if note.name != "batch_size" or not isinstance(note.value, int):
        return note
    source = _passes_of(passes, note.value) + note.source
    return Assumption(note.name, passes * note.value, note.unit, source)


def _of_each(note: Assumption, passes: int) -> Assumption:
    """Return an assumption on the batch size of an update as one on that of a pass."""
    if note.name != "batch_size" or not isinstance(note.value, int):
        return note
    each = note.value // passes
    before = _passes_of(passes, each)
    if not note.source.startswith(before):
        return note
    return Assumption(note.name, each, note.unit, note.source.removeprefix(before))


def _passes_of(passes: int, size: int) -> str:
    return f"{passes} passes of {size} samples, "
