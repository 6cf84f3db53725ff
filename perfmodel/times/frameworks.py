"""Timings of the framework that a job trains with, where a profile has several."""

from __future__ import annotations

import msgspec

from perfmodel.base.provenance import Assumption
from perfmodel.inputs.profile import Profile, Timing

FRAMEWORK_ERROR = 0.83
"""Error of a timing with another framework: 90th percentile of the factor, less one, of 83 pairs of
frameworks that trained the same DNN at the same precision and batch size on one V100 (DLPerf of
Oneflow-Inc, test report v1; median 0.14, worst 2.0)."""

VERSION_ERROR = 0.49
"""Error of a timing with another version of the framework: the same of 192 pairs of releases that
trained the same model in the same layout on the same devices (NVIDIA, Megatron-Bridge at commit
067f987, docs/performance-summary-archive.md; median 0.04, worst 0.99; of dense models 0.09)."""

SAME, VERSION, OTHER = range(3)
"""How far a timing's framework is: the same, another version of it, or another one."""


def of_framework(profile: Profile, name: str | None) -> Profile:
    """Return the profile with the timings that are nearest to a framework, such as *pytorch* or
    *pytorch 2.13*: on each device and precision those of its version, else of any version, else
    all."""
    if name is None:
        return profile
    least: dict[tuple[str, str], int] = {}
    for one in profile.timings:
        key = one.device, one.precision
        least[key] = min(least.get(key, OTHER), _distance(one, name))
    kept = [
        one for one in profile.timings if _distance(one, name) == least[one.device, one.precision]
    ]
    return msgspec.structs.replace(profile, timings=tuple(kept))


def framework_error(timing: Timing, name: str | None) -> tuple[float | None, list[Assumption]]:
    """Return the error of a timing for a job with a framework, and a note; None if they agree, or
    the job names none."""
    distance = SAME if name is None else _distance(timing, name)
    if distance == SAME:
        return None, []
    found = timing.framework
    used = "another" if found is None else found.name
    if distance == VERSION and found is not None:
        used = f"{found.name} {found.version}" if found.version else f"{found.name}, no version"
    error = VERSION_ERROR if distance == VERSION else FRAMEWORK_ERROR
    why = f"the profile has no time of {name} there"
    return error, [Assumption("framework", used, "", why)]


def _distance(timing: Timing, name: str) -> int:
    """Return how far a timing's framework is from one of a name and perhaps a version, whose last
    parts may be left out."""
    family, _, version = name.partition(" ")
    found = timing.framework
    if found is None or found.name != family:
        return OTHER
    there, wanted = ((text or "").split(".") for text in (found.version, version.strip()))
    return SAME if not version.strip() or there[: len(wanted)] == wanted else VERSION
