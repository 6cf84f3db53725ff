"""Writes fitted values into clusters and profiles, the contents of files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Source, SourceKind
from perfmodel.inputs.calibration import Calibration, with_value
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.profile import Profile, Seconds, Timing
from perfmodel.inputs.workload import Workload

SCALED = (
    *("forward_s", "backward_s", "forward_std_s", "backward_std_s", "step_s"),
    *("optimizer_s", "copy_s", "other_s", "step_std_s"),
)
"""Times of a profile that a factor of the compute time scales."""


def with_fields(
    base: Cluster,
    values: Mapping[str, float],
    kind: SourceKind,
    text: str,
    calibration: Calibration | None = None,
) -> Cluster:
    """Return a cluster with fitted values by path, such as ``nic.latency_s``; ``kind`` and ``text``
    describe their source."""
    cluster = base
    for path, value in values.items():
        cluster = with_value(cluster, path, value)
    return msgspec.structs.replace(
        cluster,
        name=f"{base.name}-calibrated",
        calibration=calibration or base.calibration,
        source=Source(kind, f"{text}; else: {base.source.text}"),
    )


def timings_of(profile: Profile, workload: Workload) -> list[Timing]:
    """Timings of a profile on a workload's device, at its precision."""
    device, precision = workload.device, workload.precision
    timings = [t for t in profile.timings if (t.device, t.precision) == (device, precision)]
    if not timings:
        raise InputError(f"{profile.name}: has no times on {device} at {precision} to scale")
    return timings


def slower_profile(profile: Profile, workload: Workload, factor: float, why: str) -> Profile:
    """Return a profile with the times on the workload's device and precision scaled by ``factor``.

    Data loading times stay the same.
    """
    chosen = timings_of(profile, workload)
    timings = tuple(longer(t, factor, why) if t in chosen else t for t in profile.timings)
    return msgspec.structs.replace(profile, timings=timings)


def longer(t: Timing, factor: float, why: str) -> Timing:
    """Return a timing with compute times ``factor`` times as long."""
    source = Source("estimated", f"{factor:.4g} times as long as: {t.source.text}; {why}")
    rate = None if t.samples_per_s is None else t.samples_per_s / factor
    times = {name: _times(getattr(t, name), factor) for name in SCALED}
    return msgspec.structs.replace(t, samples_per_s=rate, source=source, **times)


def _times(value: Seconds | None, factor: float) -> Seconds | None:
    if isinstance(value, tuple):
        return tuple(seconds * factor for seconds in value)
    return None if value is None else value * factor
