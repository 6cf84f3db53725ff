"""Shared code of the adapters of published throughput tables: rows, clusters and jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from benchmarks.accuracy import rows
from perfmodel import Cluster, IntraNode, Job, Link, Server, Source, make_job
from perfmodel.base.errors import number, whole_number
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.profile import Profile

PCIE = IntraNode(12e9, 10e-6, kind="per_device")
"""Practical rate of PCIe 3.0 x16, one way, per device."""

NVLINK = IntraNode(130e9, 5e-6, kind="per_device")
"""Practical rate of a ring over the NVLinks of a V100."""

ETHERNET_EFFICIENCY = 0.9415
"""Payload fraction of TCP with an MTU of 1500 bytes: 1448 of 1538 bytes on the wire."""

BETWEEN = " | "
"""Separator of the parts of a setup."""

PUBLISHED = Source("published", "throughput of one device; layers as published")


class ImagesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table of throughput: ``images_per_s`` of all GPUs together.

    ``alone_s`` is the step time on one GPU (s), from other rows.

    Raises
    ------
    InputError : a number is out of range.
    """

    model: str
    batch_per_gpu: int
    num_gpus: int
    images_per_s: float
    num_nodes: int = 1
    alone_s: float = 0.0

    def __post_init__(self) -> None:
        number("images_per_s", self.images_per_s, above=0.0)
        for name in ("batch_per_gpu", "num_gpus", "num_nodes"):
            whole_number(name, getattr(self, name))

    @property
    def step_s(self) -> float:
        """Step time (s)."""
        return self.num_gpus * self.batch_per_gpu / self.images_per_s

    @property
    def devices(self) -> int:
        """Number of GPUs of the fullest node."""
        return -(-self.num_gpus // self.num_nodes)


class Several(Protocol):
    """A row whose ``setup`` lists what a step on one GPU depends on, the most important first."""

    @property
    def num_gpus(self) -> int: ...
    @property
    def series(self) -> str: ...
    @property
    def setup(self) -> tuple[str, ...]: ...
    @property
    def step_s(self) -> float: ...


Some = TypeVar("Some", bound=Several)


def several(
    table: Sequence[Some],
    known: Mapping[str, float],
    needed: int,
    usable: Callable[[Some], bool] = lambda row: True,
) -> tuple[list[Some], dict[str, float]]:
    """Return usable rows on several GPUs, with step times on one (s), and these times by setup.

    ``known`` are those of the fits. The step time on one GPU comes from the most similar setup with
    the same first ``needed`` parts. Rows without one are left out and reported.
    """
    own = {BETWEEN.join(row.setup): row.step_s for row in table if row.num_gpus == 1}
    alone_s = {**known, **own}
    found, left_out, taken = [], [], set()
    for row in table:
        near = _nearest(row.setup, alone_s, needed)
        if row.num_gpus > 1 and near and usable(row):
            if near not in own:
                taken.add(near)
            found.append(msgspec.structs.replace(row, alone_s=alone_s[near]))  # type: ignore[type-var]
        elif row.num_gpus > 1:
            left_out.append(BETWEEN.join(row.setup))
    rows.say_from_fits(taken)
    rows.say_left_out("no run with one GPU, or not known how it works", left_out)
    return found, alone_s


def _nearest(setup: tuple[str, ...], setups: Iterable[str], needed: int) -> str:
    def alike(other: str) -> list[bool]:
        return [a == b for a, b in zip(setup, other.split(BETWEEN), strict=True)]

    return max((each for each in setups if all(alike(each)[:needed])), key=alike, default="")


def fewest(table: Sequence[Some]) -> list[Some]:
    """Return the rows with the smallest number of GPUs of each series."""
    least: dict[str, int] = {}
    for row in table:
        least[row.series] = min(row.num_gpus, least.get(row.series, row.num_gpus))
    return [row for row in table if row.num_gpus == least[row.series]]


def cluster(link: Link, known: Calibration | None = None, **fields: Any) -> Cluster:
    """Return a cluster of equal nodes; servers, if any, share nodes and links with the workers.

    Without ``losses`` among the fields it has none but those that are fitted.
    """
    return Cluster(
        name="published",
        nic=link,
        calibration=known,
        source=Source("estimated", "nominal rates, or what was fitted"),
        **{"server": Server(placement="colocated"), "losses": "none", **fields},
    )


def job(
    profile: Profile, workers: int, where: Cluster, arch: str, options: Mapping[str, Any]
) -> Job:
    """Return a job of a profile with one timing."""
    timing = profile.timings[0]
    return make_job(
        workload=profile,
        device=timing.device,
        batch_size=timing.batch_size,
        cluster=where,
        workers=workers,
        arch=arch,
        options=options,
    )


def as_one(profile: Profile, devices: int, seconds: float) -> Profile:
    """Return a profile for all devices of a node together, with a step time of ``seconds``."""
    timing = profile.timings[0]
    size = devices * timing.batch_size
    changed = msgspec.structs.replace(timing, batch_size=size, samples_per_s=size / seconds)
    return msgspec.structs.replace(profile, timings=(changed,))
