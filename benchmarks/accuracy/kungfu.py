"""Four systems on 16 V100 over TCP, predicted for larger batches and for other DNNs.

KungFu (Mai et al., OSDI 2020), results published with its source code: two nodes of eight V100,
TensorFlow 1.13, Keras models at 224 x 224 pixels. The folder holds ``throughput.csv``: images per
second of all GPUs by ``model``, ``system``, ``batch_per_gpu``, ``num_gpus`` and ``num_nodes``.
There are no rows with a single GPU; published speeds of one V100 give the time per image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from benchmarks.accuracy import dnns, fitted, rows, table_fits, tables
from benchmarks.accuracy.cases import Case, about
from perfmodel import Job, Link
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.profile import Profile, Timing

FEW_BATCH = 32
"""Largest batch per GPU that *few* is fitted to: two of the five."""

LAUNCH_S = 0.025
"""Time to launch a step: the published times of one V100, extrapolated to zero images."""

LATENCY_S = 10e-6
"""Latency of a step of a ring: an assumption."""

RESNET_50_S = 2.55e-3
"""Time per image, from batches of 32 and 128 with float32 (MXNet's published speeds on V100:
298.51, 363.69/s)."""

IMAGE_S = {
    "resnet50": RESNET_50_S,
    # between batches of 64 and 128 of 299 x 299 pixels (MXNet: 247.43, 253.68/s), and by the
    # operations at 224 x 224, 2.84 of 5.71 billion products
    "inceptionv3": 3.84e-3 * 2.84 / 5.71,
    # 249.19/s where ResNet-50 has 432.16/s (Lambda, one V100, float32, batch 192)
    "vgg16": RESNET_50_S * 432.16 / 249.19,
}

ABOUT = about("kungfu")
prior = table_fits.prior_of(ABOUT)


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of ``throughput.csv``."""

    system: str

    dnn = property(lambda self: dnns.plain(self.model))
    family = property(lambda self: self.arch)
    setting = property(lambda self: f"{self.dnn} batch {self.batch_per_gpu}")

    @property
    def arch(self) -> str:
        """Architecture with which the system exchanges gradients or models."""
        name = self.system.lower()
        if "server" in name:
            return "asp"
        return "gosgd" if "p2p" in name or "pair" in name else "ring"

    @property
    def series(self) -> str:
        """Batches of one size of a system."""
        return f"{self.system} {self.batch_per_gpu}"

    @property
    def key(self) -> str:
        """Identifies the row."""
        return f"{self.model} {self.system} batch {self.batch_per_gpu} {self.num_gpus} GPUs"

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`.table_fits.Measured`."""
        field = "nic.bandwidth_bytes_per_s" if self.arch == "ring" else "flow_bytes_per_s"
        return {"neighbours": "slowdown_per_neighbour", f"rate {self.system}": field}

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`.table_fits.Measured`."""
        rate, ring = values[f"rate {self.system}"], self.arch == "ring"
        where = tables.cluster(
            Link(rate if ring else 12.5e9, LATENCY_S),
            known,
            devices_per_node=self.devices,
            intra_node=tables.NVLINK,
            slowdown_per_neighbour=values["neighbours"],
            flow_bytes_per_s=None if ring else rate,
        )
        step_s = LAUNCH_S + self.batch_per_gpu * IMAGE_S[self.dnn]
        timing = Timing(device="v100", batch_size=self.batch_per_gpu, source=tables.PUBLISHED,
                        step_s=step_s, other_s=LAUNCH_S)  # fmt: skip
        profile = Profile(name=self.dnn, source=tables.PUBLISHED, timings=(timing,),
                          layers=dnns.layers_of(self.dnn) or ())  # fmt: skip
        options: dict[str, object] = {}
        if self.arch == "asp":
            options = {"servers": self.num_nodes, "split_above_bytes": math.inf,
                       "transmission": "random"}  # fmt: skip
        elif self.arch == "gosgd":
            options = {"probability": 1.0, "queue": 1}
        return tables.job(profile, self.num_gpus, where, self.arch, options)


def cases(folder: Path) -> list[Case]:
    """Return every row outside the fit of each split; step times in seconds."""
    return table_fits.cases("kungfu", read(folder), tuple(ABOUT.splits), prior)


def read(folder: Path) -> list[Row]:
    """Return the rows of known DNNs."""
    table = rows.read(folder / "throughput.csv", Row)
    unknown = (row.model for row in table if row.dnn not in IMAGE_S)
    rows.say_left_out("no published speed on one V100", unknown)
    return [row for row in table if row.dnn in IMAGE_S]


def fit(folder: Path) -> None:
    """Fit to the rows of a folder and store the fits for :func:`cases`."""
    table = read(folder)
    few = table_fits.fit([row for row in table if row.batch_per_gpu <= FEW_BATCH], prior)
    others = table_fits.without("dnn", table, prior)
    fitted.write("kungfu", {"few": few, **others, "all": table_fits.fit(table, prior)})
