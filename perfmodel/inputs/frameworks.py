"""Timings of the framework that a job trains with, where a profile has several."""

from __future__ import annotations

import msgspec

from perfmodel.base.provenance import Assumption
from perfmodel.inputs.profile import Profile, Timing

FRAMEWORK_ERROR = 0.83
"""Error of a timing with another framework: 90th percentile of the factor, less one, of 83 pairs of
frameworks that trained the same DNN at the same precision and batch size on one V100 (DLPerf of
Oneflow-Inc, test report v1; median 0.14, worst 2.0)."""


def of_framework(profile: Profile, name: str | None) -> Profile:
    """Return the profile without timings of other frameworks where it has some of this one: on the
    same device at the same precision."""
    if name is None:
        return profile
    known = {(one.device, one.precision) for one in profile.timings if _is_of(one, name)}
    kept = [
        one
        for one in profile.timings
        if _is_of(one, name) or (one.device, one.precision) not in known
    ]
    return msgspec.structs.replace(profile, timings=tuple(kept))


def framework_error(timing: Timing, name: str | None) -> tuple[float | None, list[Assumption]]:
    """Return the error of a timing for a job with a framework, and a note; None if they agree, or
    the job names none."""
    if name is None or _is_of(timing, name):
        return None, []
    used = "another" if timing.framework is None else timing.framework.name
    why = f"the profile has no time of {name} there"
    return FRAMEWORK_ERROR, [Assumption("framework", used, "", why)]


def _is_of(timing: Timing, name: str) -> bool:
    return timing.framework is not None and timing.framework.name == name
