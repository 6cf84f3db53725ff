"""Profiles that come with the package: models, devices, clusters; and workloads made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfmodel import cluster as clusters_
from perfmodel import device as devices_
from perfmodel import files
from perfmodel.cluster import Cluster
from perfmodel.device import Device, PeakRates, roofline_s
from perfmodel.errors import InputError, unknown_name, whole_number
from perfmodel.profile import SCHEMA, Profile, Timing, read_profile, timings_on
from perfmodel.provenance import Assumption, Source
from perfmodel.workload import Workload, resolve

ESTIMATE_BATCH_SIZE = 32
"""Batch size assumed where neither the user nor any timing names one."""

DEFAULT_CLUSTER = "ethernet-10g"


def folder() -> Path:
    """Where the shipped profiles lie: inside the installed package, or beside it in a checkout.

    Raises
    ------
    InputError : neither place exists.
    """
    here = Path(__file__).parent
    for place in (here / "_profiles", here.parent / "profiles"):
        if place.is_dir():
            return place
    raise InputError("the shipped profiles are missing: reinstall perfmodel")


def model_names() -> list[str]:
    """Names of the shipped models."""
    return _names("models", ".json")


def device_names() -> list[str]:
    """Names of the shipped devices."""
    return _names("devices", ".toml")


def cluster_names() -> list[str]:
    """Names of the shipped clusters."""
    return _names("clusters", ".toml")


def model(name: str) -> Profile:
    """The shipped profile of a model.

    Raises
    ------
    InputError : no such model.
    """
    return files.read(_file("model", name, "models", ".json"), Profile, SCHEMA)


def device(name: str) -> Device:
    """A shipped device.

    Raises
    ------
    InputError : no such device.
    """
    return files.read(_file("device", name, "devices", ".toml"), Device, devices_.SCHEMA)


def cluster(name: str) -> Cluster:
    """A shipped cluster.

    Raises
    ------
    InputError : no such cluster.
    """
    return files.read(_file("cluster", name, "clusters", ".toml"), Cluster, clusters_.SCHEMA)


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
) -> Workload:
    """A profile's workload on a device: measured, or estimated in the best way there is.

    In this order: per-layer times of that device; a published throughput of that device, shared
    among the layers by their roofline times; or no figure at all, and then the roofline time
    divided by the efficiency that the model reaches on devices with published figures.

    Raises
    ------
    InputError : the device is neither in the profile nor in the catalogue.
    """
    if device_name is None or device_name in profile.devices:
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
        return resolve(
            profile, timings, batch_size=batch_size, layer_shares=shares, assumptions=notes
        )
    known = device_names()
    if device_name not in known:
        raise unknown_name("device", device_name, {*known, *profile.devices})
    if not profile.layers:
        raise unknown_name(f"device for {profile.name}", device_name, profile.devices)
    return _estimate(profile, device(device_name), precision or "float32", batch_size)


def _shares(profile: Profile, timing: Timing) -> Sequence[float] | None:
    """Roofline seconds of each layer on the timing's device, if the catalogue knows it."""
    if timing.device not in device_names() or not any(la.forward_flop for la in profile.layers):
        return None
    return roofline_s(device(timing.device), profile.layers, timing.batch_size, timing.precision)


def _estimate(profile: Profile, target: Device, precision: str, batch_size: int | None) -> Workload:
    """A workload on a device without any figure, by roofline and the efficiency seen elsewhere."""
    if precision not in PeakRates.__struct_fields__:
        raise unknown_name("precision", precision, PeakRates.__struct_fields__)
    known = device_names()
    efficiencies = []
    for timing in profile.timings:
        if timing.source.kind == "published" and timing.device in known:
            shares = roofline_s(
                device(timing.device), profile.layers, timing.batch_size, timing.precision
            )
            efficiencies.append(3.0 * sum(shares) / timing.total_s)
    if not efficiencies:
        raise unknown_name(f"device for {profile.name}", target.name, profile.devices)
    efficiency = float(np.median(efficiencies))
    size = ESTIMATE_BATCH_SIZE if batch_size is None else whole_number("batch_size", batch_size)
    shares = roofline_s(target, profile.layers, size, precision)
    timing = Timing(
        device=target.name,
        batch_size=size,
        precision=precision,
        step_s=3.0 * sum(shares) / efficiency,
        source=Source("estimated", f"roofline of {target.title}, {target.source.text}"),
    )
    note = Assumption(
        "efficiency",
        round(efficiency, 4),
        "of the roofline",
        f"median of {len(efficiencies)} published figures of {profile.name} on other devices",
    )
    notes = [note]
    if batch_size is None:
        notes.append(Assumption("batch_size", size, "samples", "default"))
    return resolve(profile, [timing], batch_size=size, layer_shares=shares, assumptions=notes)


def _names(kind: str, ending: str) -> list[str]:
    return sorted(path.stem for path in (folder() / kind).glob(f"*{ending}"))


def _file(what: str, name: str, kind: str, ending: str) -> Path:
    known = _names(kind, ending)
    if name not in known:
        raise unknown_name(what, name, known)
    return folder() / kind / f"{name}{ending}"


__all__ = [
    "DEFAULT_CLUSTER",
    "cluster",
    "cluster_names",
    "cluster_or_file",
    "device",
    "device_names",
    "folder",
    "model",
    "model_names",
    "profile",
    "workload",
]
