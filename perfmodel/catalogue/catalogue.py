"""The catalogue: models, devices and clusters that come with the package, and their workloads."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, NoTimesError, nearest, unknown_name
from perfmodel.base.provenance import Assumption, Source
from perfmodel.base.same import Same
from perfmodel.catalogue import shipped
from perfmodel.catalogue.job_storage import with_storage
from perfmodel.catalogue.shipped import cluster_names, device_names, folder, model_names, names
from perfmodel.inputs import cluster as clusters_, device as devices_
from perfmodel.inputs.batch_scaling import RECENT_LAUNCH_S
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder_layers import at_length
from perfmodel.inputs.device import Device, roofline_s
from perfmodel.inputs.passes import accumulated, of_one_pass, split
from perfmodel.inputs.peaks import peaks_of
from perfmodel.inputs.profile import SCHEMA, Profile, Timing, read_profile, timings_on
from perfmodel.inputs.recomputation import recomputed
from perfmodel.inputs.software import UNSAID, Software
from perfmodel.inputs.storage import DEFAULT, Storage
from perfmodel.inputs.workload import Workload, resolve
from perfmodel.theory.packing import Documents
from perfmodel.times.frameworks import framework_error, of_framework
from perfmodel.times.one_device import OneDevice, at_speed
from perfmodel.times.precision_names import precision_called

if TYPE_CHECKING:
    from pathlib import Path

Kind = TypeVar("Kind", bound=msgspec.Struct)

DEFAULT_CLUSTER = "ethernet-10g"

SIMILAR = "a100"
"""Device whose proportions of the layers' times stand for those on an unknown device, or on one on
which those of a language model are not estimated, where the speed is given."""

PLAIN_NAME = r"\w[\w.+-]*( [\w.+-]+)*"
"""Names of devices that are not in the catalogue."""


def model(name: str) -> Profile:
    """The shipped profile of a model.

    Raises
    ------
    InputError : no such model.
    """
    return _read(_file("model", name, "models", ".json"), Profile, SCHEMA)


def device(name: str) -> Device:
    """A shipped device, by its name or an alias.

    Raises
    ------
    InputError : no such device.
    """
    if one := known_device(name) or known_device(device_called(name)):
        return one
    raise unknown_name("device", name, device_names())


def known_device(name: str | None) -> Device | None:
    """The shipped device of that name, which is no alias; None if there is none."""
    path = f"{shipped.home()}/devices/{name}.toml"
    return _read(path, Device, devices_.SCHEMA) if name in device_names() else None


def devices() -> Mapping[str, Device]:
    """All shipped devices by name; the result is cached until a file changes."""
    with os.scandir(f"{shipped.home()}/devices") as entries:
        changed_ns = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
    return _devices_kept(shipped.home(), tuple(changed_ns))


@functools.lru_cache(maxsize=4)
def _devices_kept(_home: str, _changed_ns: tuple[tuple[str, int], ...]) -> Mapping[str, Device]:
    return MappingProxyType({name: device(name) for name in device_names()})


def device_called(name: str) -> str:
    """Name of the shipped device with the alias ``name``; ``name`` itself if none has it."""
    known = device_names()
    if name in known:
        return name
    return _aliases(shipped.home(), tuple(known)).get(name, name)


@functools.lru_cache(maxsize=4)
def _aliases(_home: str, known: tuple[str, ...]) -> Mapping[str, str]:
    """The names of these devices by their aliases."""
    return {alias: one for one in known for alias in device(one).aliases}


def default_cluster_of(device_name: str) -> str | None:
    """The default cluster of a shipped device; None if its file names none."""
    one = known_device(device_name)
    return None if one is None else one.default_cluster


def cluster(name: str) -> Cluster:
    """A shipped cluster.

    Raises
    ------
    InputError : no such cluster.
    """
    return _read(_file("cluster", name, "clusters", ".toml"), Cluster, clusters_.SCHEMA)


def profile(name_or_path: str | Path) -> Profile:
    """The shipped model of that name, or the workload file at that path."""
    path = _path_of(name_or_path, model_names())
    return model(str(name_or_path)) if path is None else read_profile(path)


def cluster_or_file(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, or the cluster file at that path."""
    path = _path_of(name_or_path, cluster_names())
    return cluster(str(name_or_path)) if path is None else clusters_.read_cluster(path)


def _path_of(name_or_path: str | Path, known: Sequence[str]) -> str | Path | None:
    """Return what is a path: it looks like one, or no entry but a file has that name. Else None."""
    if not isinstance(name_or_path, str) or files.looks_like_path(name_or_path):
        return name_or_path
    # unlike Path.is_file, this takes any text, such as names that are too long for a file
    only_a_file = name_or_path not in known and os.path.isfile(name_or_path)
    return name_or_path if only_a_file else None


def workload(
    profile: Profile,
    *,
    device_name: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    recompute: str = "none",
    storage: Storage = DEFAULT,
    accumulation: int | None = None,
    one_device: OneDevice | None = None,
    software: Software = UNSAID,
    documents: Documents | None = None,
) -> Workload:
    """Resolve a profile's workload on a device: measured, or estimated in the best available way.

    In order of preference: per-layer times on that device; a published throughput on that device,
    divided among the layers by their roofline times; or an estimate, by
    :func:`perfmodel.times.language_estimate.estimate` for language models with given dimensions
    and by :func:`perfmodel.times.device_transfer.estimate` for others. It has so many parameters
    because jobs vary them independently.

    Parameters
    ----------
    precision : by its name, or as others call it
        (:func:`perfmodel.times.precision_names.precision_called`).
    sequence_length : tokens per sample, for language models with given dimensions.
    recompute : what the backward pass computes again
        (:func:`perfmodel.inputs.recomputation.recomputed`).
    storage : how parameters, gradients and optimizer states are stored.
    accumulation : forward and backward passes per update, which share the batch evenly; default: as
        in the profile's timing (:func:`perfmodel.inputs.passes.split`).
    software : of times that are estimated for a language model.
    documents : that sequences are packed from. Timings, of whole sequences, then do not hold.
    one_device : measured speed of one device. The workload's times are then scaled to it, and must
        be known only relative to each other: where nothing can be estimated, the step is divided
        among the layers by their roofline times, or evenly; and the device may have any name.

    Raises
    ------
    InputError : the device is neither in the profile nor in the catalogue, or the profile's times
        on it cannot be estimated; or an option does not fit the profile.
    """
    whole = of_framework(at_length(profile, sequence_length), software.framework)
    if documents is not None:
        whole = _to_pack(whole, documents)
    if device_name is not None and device_name not in whole.devices:
        device_name = device_called(device_name)
    precision = _precision_called(precision, whole, device_name)
    timings = list(whole.timings)
    if whole.timings and (device_name is None or _timed(whole, device_name, precision)):
        timings = timings_on(whole, device_name, precision)
    elif batch_size is None:  # an estimate has its own default
        timings = []
    one_pass = _one_pass if one_device is None else _in_proportion

    def update(samples: int | None, what: str) -> Workload:
        """The workload of an update of ``samples`` samples; errors call their number ``what``."""
        parts = split(timings, samples, accumulation, what)
        given = precision, parts.pass_size, software, documents, storage
        step = one_pass(of_one_pass(whole, parts.passes), device_name, *given)
        step = recomputed(with_storage(step, whole.decoder, storage), recompute)
        there = known_device(step.device)
        peaks = peaks_of(step, accelerator=there is not None and there.kind == "gpu")
        step = msgspec.structs.replace(step, peaks=peaks)
        step = accumulated(step, parts.passes, parts.batch_size)
        return msgspec.structs.replace(step, assumptions=(*step.assumptions, *parts.assumptions))

    if one_device is None and not (profile.timings or profile.estimable):
        raise NoTimesError(
            f"{profile.name}: timings: at least one is needed, or layers with forward_flop, or the "
            "measured speed of one device"
        )
    step = update(batch_size, "batch_size")
    if one_device is None:
        return step
    at = one_device.batch_size
    there = step if at in (None, step.batch_size) else update(at, "one_device_batch_size")
    launch_s = _launch_s(device_name or step.device)
    return _on(at_speed(step, there, one_device, launch_s), device_name, precision)


def _to_pack(profile: Profile, documents: Documents) -> Profile:
    """Return the profile of a model whose sequences are packed: its timings are of whole ones."""
    from perfmodel.times import packed  # needed for packed sequences only

    packed.check(profile, documents)
    return msgspec.structs.replace(profile, layers=(), timings=())


def _precision_called(
    precision: str | None, profile: Profile, device_name: str | None
) -> str | None:
    """The name here of a precision, which others may call in another way."""
    if precision is None:
        return None
    known = {t.precision for t in profile.timings if device_name in (None, t.device)}
    one = known_device(device_name)
    if one is None:
        return precision_called(precision, known)
    return precision_called(precision, {*known, *one.precisions}, one.architecture)


def _in_proportion(
    profile: Profile,
    device_name: str | None,
    precision: str | None,
    batch_size: int | None,
    software: Software,
    documents: Documents | None,
    storage: Storage,
) -> Workload:
    """A workload like :func:`_one_pass`, of which only the proportions of the times count.

    Its device and precision may be others: :data:`SIMILAR` for a device outside the catalogue; the
    profile's default if it has times, but none from which those on the device can be estimated.
    """
    name = device_name
    if name is not None and not _known(name, profile):
        name = _similar(name, profile)
        if precision is None and profile.decoder is None:
            precision = "float32"
    try:
        return _one_pass(profile, name, precision, batch_size, software, documents, storage)
    except NoTimesError:
        if name is None:
            raise
    if profile.decoder is not None:
        return _one_pass(profile, SIMILAR, precision, batch_size, software, documents, storage)
    if profile.timings:
        return _one_pass(profile, None, None, batch_size, software, documents, storage)
    return _untimed(profile, device_called(name), precision, batch_size)


def _on(workload: Workload, device_name: str | None, precision: str | None) -> Workload:
    """The workload of :func:`_in_proportion`, with the device and precision that were asked for."""
    name = workload.device if device_name is None else device_called(device_name)
    if name == workload.device:
        return workload
    why = "not in the catalogue" if name not in device_names() else "no times to estimate from"
    notes = [note for note in workload.assumptions if note.name not in ("device", "precision")]
    return msgspec.structs.replace(
        workload,
        device=name,
        precision=workload.precision if precision is None else precision,
        assumptions=(Assumption("device", name, "", why), *notes),
    )


def _known(device_name: str, profile: Profile) -> bool:
    """Return whether a device, by its name or an alias, is in the profile or in the catalogue."""
    return device_name in profile.devices or device_called(device_name) in device_names()


def _similar(device_name: str, profile: Profile) -> str:
    """Return the device that stands for one outside the catalogue.

    Raises
    ------
    InputError : it is no plain name, or a known one in another letter case.
    """
    known = {*device_names(), *profile.devices}
    known |= {alias for one in device_names() for alias in device(one).aliases}
    like = nearest(device_name, known)
    if not re.fullmatch(PLAIN_NAME, device_name) or (like or "").lower() == device_name.lower():
        raise unknown_name("device", device_name, known)
    return SIMILAR


def _untimed(
    profile: Profile, device_name: str, precision: str | None, batch_size: int | None
) -> Workload:
    """The workload of a profile without times on a device of the catalogue: a step of one second,
    divided among the layers by their roofline times, or else evenly."""
    from perfmodel.times import device_transfer

    size = device_transfer.BATCH_SIZE if batch_size is None else batch_size
    notes = [Assumption("batch_size", size, "samples", "default")] if batch_size is None else []
    timing = Timing(
        device=device_name,
        batch_size=size,
        precision=precision or "float32",
        step_s=1.0,
        source=Source("estimated", "a step of one second, to be scaled to a given speed"),
    )
    return resolve(profile, [timing], layer_shares=_shares(profile, timing), assumptions=notes)


def _one_pass(
    profile: Profile,
    device_name: str | None,
    precision: str | None,
    batch_size: int | None,
    software: Software,
    documents: Documents | None,
    storage: Storage,
) -> Workload:
    """The workload of a profile for one pass without checkpointing, at its own sequence length."""
    timed = device_name in (None, *profile.devices) and bool(profile.timings)
    if profile.decoder is not None and not timed:
        given = precision, batch_size, software, documents, storage
        return _of_language(profile, device_name, *given)
    if device_name in device_names() and not _timed(profile, device_name, precision):
        from perfmodel.times import eager_estimate

        job = profile, device(device_name), devices(), precision, batch_size, software, storage
        if recorded := eager_estimate.estimate(*job):
            return recorded
    if software.estimates:
        raise InputError(
            f"stack, launches: times of {profile.name} are not estimated from operators, as those "
            "of language models are that were not timed on the device"
        )
    if device_name is None or _timed(profile, device_name, precision):
        timings = timings_on(profile, device_name, precision)
        first, place = timings[0], timings[0].device
        shares = _shares(profile, first) if profile.layers else None
        why = "default of the profile"
        notes = [Assumption("device", place, "", why)] if device_name is None else []
        there = {one.precision for one in profile.timings if one.device == place}
        if precision is None and len(there) > 1:
            why = f"first of the profile for {place}"
            notes.append(Assumption("precision", first.precision, "", why))
        error, of_other = framework_error(first, software.framework)
        return resolve(
            profile,
            timings,
            batch_size=batch_size,
            layer_shares=None if first.per_layer else shares,
            least_s=3.0 * sum(shares or ()),
            assumptions=[*notes, *of_other],
            error_fraction=error,
            launch_s=_launch_s(place),
        )
    _check_device(device_name, profile)
    from perfmodel.times import device_transfer

    others = [model(name) for name in model_names() if name != profile.name]
    return device_transfer.estimate(
        profile, device_name, precision or "float32", batch_size, devices=devices(), others=others
    )


def _launch_s(device_name: str) -> float:
    """The fixed part of a step per tensor on a device, which may be one outside the catalogue."""
    one = known_device(device_called(device_name))
    return RECENT_LAUNCH_S if one is None else one.launch_s


def _of_language(
    profile: Profile,
    device_name: str | None,
    precision: str | None,
    batch_size: int | None,
    software: Software,
    documents: Documents | None,
    storage: Storage,
) -> Workload:
    """The estimated workload of a language model with given dimensions."""
    from perfmodel.times import language_estimate

    name = language_estimate.DEVICE if device_name is None else device_name
    _check_device(name, profile)
    if device(name).kind == "tpu":
        raise NoTimesError(
            f"device: times on {device(name).title} are not estimated, as those on GPUs say "
            "nothing about them; give the speed of one device, or a profile that was measured on it"
        )
    known = Same(device(name)), Same(devices())
    estimated = _estimated(profile, *known, precision, batch_size, software, documents, storage)
    if device_name is not None:
        return estimated
    note = Assumption("device", name, "", "default of language models")
    return msgspec.structs.replace(estimated, assumptions=(note, *estimated.assumptions))


@functools.lru_cache(maxsize=32)
def _estimated(
    profile: Profile,
    target: Same[Device],
    others: Same[Mapping[str, Device]],
    precision: str | None,
    batch_size: int | None,
    software: Software,
    documents: Documents | None,
    storage: Storage,
) -> Workload:
    """The workload of a language model on a device, which many layouts of it have in common."""
    from perfmodel.times import language_estimate

    return language_estimate.estimate(
        profile,
        target.value,
        precision,
        batch_size,
        devices=others.value,
        software=software,
        documents=documents,
        storage=storage,
    )


def _check_device(name: str, profile: Profile) -> None:
    if name not in device_names():
        error = unknown_name("device", name, {*device_names(), *profile.devices})
        raise InputError(f"{error}; with the measured speed of one device it may have any name")


def _timed(profile: Profile, device_name: str, precision: str | None) -> bool:
    """Return whether the profile has its own timing on a device, at ``precision`` if given."""
    if precision is None or device_name not in device_names():
        return device_name in profile.devices
    return any((t.device, t.precision) == (device_name, precision) for t in profile.timings)


def _shares(profile: Profile, timing: Timing) -> Sequence[float] | None:
    """Roofline seconds of each layer on the timing's device, if the catalogue knows it."""
    one = known_device(timing.device)
    if one is None or not any(layer.forward_flop for layer in profile.layers):
        return None
    return roofline_s(one, profile.layers, timing.batch_size, timing.precision)


def _file(what: str, name: str, kind: str, ending: str) -> str:
    known = names(kind, ending)
    if name not in known:
        raise unknown_name(what, name, known)
    return f"{shipped.home()}/{kind}/{name}{ending}"


def _read(path: str, kind: type[Kind], schema: str) -> Kind:
    """Read a shipped file; the result is cached until the file changes."""
    contents: Kind = _kept(path, os.stat(path).st_mtime_ns, kind, schema)
    return contents


@functools.lru_cache(maxsize=256)
def _kept(path: str, changed_ns: int, kind: type[Kind], schema: str) -> Kind:
    return files.read(path, kind, schema)


__all__ = [
    "DEFAULT_CLUSTER",
    "cluster",
    "cluster_names",
    "cluster_or_file",
    "default_cluster_of",
    "device",
    "device_called",
    "device_names",
    "devices",
    "folder",
    "model",
    "model_names",
    "profile",
    "workload",
]
