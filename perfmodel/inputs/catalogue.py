"""The catalogue: models, devices and clusters that come with the package, and their workloads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.provenance import Assumption
from perfmodel.inputs import cluster as clusters_
from perfmodel.inputs import device as devices_
from perfmodel.inputs import language_estimate, shipped
from perfmodel.inputs.batch_scaling import RECENT_LAUNCH_S
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import at_length
from perfmodel.inputs.device import Device, roofline_s
from perfmodel.inputs.device_transfer import estimate
from perfmodel.inputs.passes import accumulated, checkpointed, of_one_pass, split
from perfmodel.inputs.profile import SCHEMA, Profile, Timing, read_profile, timings_on
from perfmodel.inputs.shipped import cluster_names, device_names, folder, model_names, names
from perfmodel.inputs.workload import Workload, resolve

DEFAULT_CLUSTER = "ethernet-10g"


def model(name: str) -> Profile:
    """The shipped profile of a model.

    Raises
    ------
    InputError : no such model.
    """
    found: Profile = _read(_file("model", name, "models", ".json"), Profile, SCHEMA)
    return found


def device(name: str) -> Device:
    """A shipped device, by its name or an alias.

    Raises
    ------
    InputError : no such device.
    """
    path = _file("device", device_called(name), "devices", ".toml")
    found: Device = _read(path, Device, devices_.SCHEMA)
    return found


def device_called(name: str) -> str:
    """Name of the shipped device with the alias ``name``; ``name`` itself if none has it."""
    known = device_names()
    if name in known:
        return name
    return next((one for one in known if name in device(one).aliases), name)


def default_cluster_of(device_name: str) -> str | None:
    """The default cluster of a shipped device; None if its file names none."""
    if device_name not in device_names():
        return None
    return device(device_name).default_cluster


def cluster(name: str) -> Cluster:
    """A shipped cluster.

    Raises
    ------
    InputError : no such cluster.
    """
    path = _file("cluster", name, "clusters", ".toml")
    found: Cluster = _read(path, Cluster, clusters_.SCHEMA)
    return found


def profile(name_or_path: str | Path) -> Profile:
    """The shipped model of that name, or the workload file at that path."""
    if isinstance(name_or_path, Path) or files.looks_like_path(name_or_path):
        return read_profile(name_or_path)
    return model(name_or_path)


def cluster_or_file(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, or the cluster file at that path."""
    if isinstance(name_or_path, Path) or files.looks_like_path(name_or_path):
        return clusters_.read_cluster(name_or_path)
    return cluster(name_or_path)


def workload(
    profile: Profile,
    *,
    device_name: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    activation_checkpointing: bool = False,
    accumulation: int | None = None,
) -> Workload:
    """Resolve a profile's workload on a device: measured, or estimated in the best available way.

    In order of preference: per-layer times on that device; a published throughput on that device,
    divided among the layers by their roofline times; or an estimate, by
    :func:`perfmodel.inputs.language_estimate.estimate` for language models with given dimensions
    and by :func:`perfmodel.inputs.device_transfer.estimate` for others.

    Parameters
    ----------
    sequence_length : tokens per sample, for language models with given dimensions.
    activation_checkpointing : whether blocks keep only their inputs and recompute the rest in the
        backward pass.
    accumulation : forward and backward passes per update, which share the batch evenly; default: as
        in the profile's timing (:func:`perfmodel.inputs.passes.split`).

    Raises
    ------
    InputError : the device is neither in the profile nor in the catalogue, or the profile's times
        on it cannot be estimated; or an option does not fit the profile.
    """
    whole = at_length(profile, sequence_length)
    if device_name is not None and device_name not in whole.devices:
        device_name = device_called(device_name)
    timings = list(whole.timings)
    if whole.timings and (device_name is None or _timed(whole, device_name, precision)):
        timings = timings_on(whole, device_name, precision)
    elif batch_size is None:  # an estimate has its own default
        timings = []
    parts = split(timings, batch_size, accumulation)
    profile = of_one_pass(whole, parts.passes)
    found = _one_pass(profile, device_name, precision, parts.pass_size)
    if activation_checkpointing:
        found = checkpointed(found)
    found = accumulated(found, parts.passes, parts.batch_size)
    return msgspec.structs.replace(found, assumptions=(*found.assumptions, *parts.assumptions))


def _one_pass(
    profile: Profile, device_name: str | None, precision: str | None, batch_size: int | None
) -> Workload:
    """The workload of a profile for one pass without checkpointing, at its own sequence length."""
    timed = device_name in (None, *profile.devices) and bool(profile.timings)
    if profile.decoder is not None and not timed:
        return _of_language(profile, device_name, precision, batch_size)
    if device_name is None or _timed(profile, device_name, precision):
        timings = timings_on(profile, device_name, precision)
        shares = None
        if not timings[0].per_layer and profile.layers:
            shares = _shares(profile, timings[0])
        notes = []
        if device_name is None:
            notes = [Assumption("device", timings[0].device, "", "default of the profile")]
        if precision is None and len({t.precision for t in profile.timings}) > 1:
            why = f"first of the profile for {timings[0].device}"
            notes.append(Assumption("precision", timings[0].precision, "", why))
        known = timings[0].device in device_names()
        return resolve(
            profile,
            timings,
            batch_size=batch_size,
            layer_shares=shares,
            assumptions=notes,
            launch_s=device(timings[0].device).launch_s if known else RECENT_LAUNCH_S,
        )
    _check_device(device_name, profile)
    devices, models = _everything()
    others = [one for one in models if one.name != profile.name]
    return estimate(
        profile, device_name, precision or "float32", batch_size, devices=devices, others=others
    )


def _of_language(
    profile: Profile, device_name: str | None, precision: str | None, batch_size: int | None
) -> Workload:
    """The estimated workload of a language model with given dimensions."""
    name = language_estimate.DEVICE if device_name is None else device_name
    _check_device(name, profile)
    found = language_estimate.estimate(
        profile,
        device(name),
        precision,
        batch_size,
        devices={name: device(name) for name in device_names()},
        decoder_of=_decoder,
    )
    if device_name is not None:
        return found
    note = Assumption("device", name, "", "default of language models")
    return msgspec.structs.replace(found, assumptions=(note, *found.assumptions))


def _decoder(name: str) -> Decoder:
    """The dimensions of a shipped language model."""
    found = model(name).decoder
    if found is None:
        raise InputError(f"language_models: model {name!r} has no decoder")
    return found


def _check_device(name: str, profile: Profile) -> None:
    known = device_names()
    if name not in known:
        raise unknown_name("device", name, {*known, *profile.devices})


def _timed(profile: Profile, device_name: str, precision: str | None) -> bool:
    """Return whether the profile has its own timing on a device, at ``precision`` if given."""
    if precision is None or device_name not in device_names():
        return device_name in profile.devices
    return any((t.device, t.precision) == (device_name, precision) for t in profile.timings)


def _everything() -> tuple[dict[str, Device], list[Profile]]:
    """All shipped devices by name, and all shipped models."""
    devices = {name: device(name) for name in device_names()}
    return devices, [model(name) for name in model_names()]


def _shares(profile: Profile, timing: Timing) -> Sequence[float] | None:
    """Roofline seconds of each layer on the timing's device, if the catalogue knows it."""
    if timing.device not in device_names() or not any(la.forward_flop for la in profile.layers):
        return None
    return roofline_s(device(timing.device), profile.layers, timing.batch_size, timing.precision)


def _file(what: str, name: str, kind: str, ending: str) -> Path:
    known = names(kind, ending)
    if name not in known:
        raise unknown_name(what, name, known)
    return shipped.folder() / kind / f"{name}{ending}"


def _read(path: Path, kind: Any, schema: str) -> Any:
    """Read a shipped file; the result is cached until the file changes."""
    return _kept(path, path.stat().st_mtime_ns, kind, schema)


@functools.lru_cache(maxsize=256)
def _kept(path: Path, changed_ns: int, kind: Any, schema: str) -> Any:
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
    "folder",
    "model",
    "model_names",
    "profile",
    "workload",
]
