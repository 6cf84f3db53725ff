"""Arguments of a job as a user may give them, made those of :func:`perfmodel.make_job`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.units import dimension_of, parse
from perfmodel.inputs.islands import read_devices
from perfmodel.inputs.job_replica import workers_of


def in_si(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Arguments with ``bandwidth`` and ``latency`` under the names of their SI units.

    Text is parsed; each may also be a list of values.

    >>> in_si({"bandwidth": "10Gbps", "latency": ["5us", 1e-5]})
    {'bandwidth_bytes_per_s': 1250000000.0, 'latency_s': [5e-06, 1e-05]}

    Raises
    ------
    InputError : text that is not a quantity of this unit; both names are given.
    """
    result = dict(arguments)
    for name in ("bandwidth_bytes_per_s", "latency_s"):
        unit = dimension_of(name) or ""
        short = name.removesuffix(f"_{unit}")
        if short not in result:
            continue
        value = result.pop(short)
        if value is not None and result.get(name) is not None:
            raise InputError(f"{short} and {name}: give one of them")
        several = value if isinstance(value, (list, tuple)) else [value]
        parsed = [parse(one, unit, short) if isinstance(one, str) else one for one in several]
        result[name] = parsed if isinstance(value, (list, tuple)) else parsed[0]
    return result


def per_worker(arguments: Mapping[str, Any], name: str = "global_batch_size") -> dict[str, Any]:
    """Arguments with the batch size per worker instead of the global one (called ``name``).

    >>> per_worker({"global_batch_size": 256, "workers": 8})
    {'workers': 8, 'batch_size': 32}
    >>> per_worker({"global_batch_size": 256, "devices": 16, "pipeline": 4})
    {'devices': 16, 'pipeline': 4, 'batch_size': 64}

    Raises
    ------
    InputError : the workers cannot share it evenly.
    """
    rest = dict(arguments)
    whole = rest.pop("global_batch_size", None)
    if whole is None:
        return rest
    if rest.get("batch_size") is not None:
        raise InputError(f"batch_size and {name}: give one of them")
    workers = workers_of(rest)
    whole_number(name, whole)
    devices, what = workers, "workers"
    if rest.get("island_steps") not in (None, 1):
        raise InputError(f"{name}: with island_steps, give batch_size, per device, instead")
    if rest.get("island_devices") is not None:
        devices, what = sum(read_devices(rest["island_devices"], workers)), "devices"
    if whole % devices:
        raise InputError(f"{name}: {whole} samples cannot be split evenly among {devices} {what}")
    return rest | {"batch_size": whole // devices}
