"""All-reduce on 8 to 32 V100 in several frameworks, predicted from one GPU and from one node.

DLPerf report v1: four nodes of eight V100 on NVLink, joined by 100 Gbit/s. The folder holds
``throughput.csv``: samples per second by ``model``, ``precision``, ``framework``,
``batch_per_gpu``, ``num_nodes`` and ``num_gpus``. A *configuration* is a DNN, a precision, a
framework and a batch size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.accuracy import dnns, fitted, rows, table_fits, tables
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import Job, Link
from perfmodel.catalogue import catalogue
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.profile import Timing

COLUMNS = {"samples_per_s": "images_per_s"}

NODE_GPUS = 8
NIC = Link(12.5e9, latency_s=2e-6, efficiency=0.97)
"""Nominal: 100 Gbit/s, with an RDMA efficiency of 0.97."""

FUSED = {"bucket_cap_bytes": 64e6, "first_bucket_bytes": 64e6}
"""Horovod's fusion buffer of 64 MB; on nominal links, DDP's buckets."""

ABOUT = about("dlperf")
prior = table_fits.prior_of(ABOUT)


def series(row: Row) -> str:
    """Return DNN and framework; XLA and clipping do not make another framework."""
    return f"{row.dnn} in {re.sub(r'(?i) w/.*', '', row.framework)}"


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of ``throughput.csv``; with the step time on one node if known (s)."""

    precision: str
    framework: str
    node_s: float = 0.0

    @property
    def dnn(self) -> str:
        """Model of the catalogue, or the unchanged name."""
        name = dnns.plain(self.model)
        known = [one for one in catalogue.model_names() if name.startswith(dnns.plain(one))]
        return max(known, key=len, default=self.model)

    @property
    def configuration(self) -> str:
        """Everything except the number of GPUs."""
        return f"{self.model} {self.precision} {self.framework} batch {self.batch_per_gpu}"

    @property
    def key(self) -> str:
        """Identifies the row."""
        return f"{self.configuration} {self.num_gpus} GPUs"

    @property
    def own(self) -> bool:
        """Whether the configuration has a row for one node."""
        return self.node_s > 0.0 and self.num_nodes > 1

    family = property(lambda self: "several nodes" if self.own else "one node")
    setting = property(lambda self: f"{self.dnn} {self.precision}")
    series = property(series)

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`.table_fits.Measured`."""
        node = {} if self.own else {"neighbours": "slowdown_per_neighbour"}
        away = {"link": "nic.efficiency", "latency_s": "nic.latency_s"}
        return {**node, **(away if self.num_nodes > 1 else {})}

    def job(
        self,
        values: Mapping[str, float],
        known: Calibration | None = None,
        losses: Literal["usual", "none"] = "none",
    ) -> Job:
        """See :class:`.table_fits.Measured`."""
        slower = max(self.node_s / self.alone_s - 1.0, 0.0) / (NODE_GPUS - 1)
        where = tables.cluster(
            Link(NIC.bandwidth_bytes_per_s, values.get("latency_s", NIC.latency_s),
                 values.get("link", NIC.efficiency)),
            known,
            devices_per_node=NODE_GPUS,
            intra_node=tables.NVLINK,
            slowdown_per_neighbour=values.get("neighbours", slower),
            losses=losses,
        )  # fmt: skip
        timing = Timing(device="v100", batch_size=self.batch_per_gpu, source=tables.PUBLISHED,
                        samples_per_s=self.batch_per_gpu / self.alone_s)  # fmt: skip
        profile = msgspec.structs.replace(catalogue.model(self.dnn), timings=(timing,))
        return tables.job(profile, self.num_gpus, where, "ring", FUSED if "link" in values else {})


def read(folder: Path, known: Mapping[str, float]) -> tuple[list[Row], dict[str, float]]:
    """Return runs on several GPUs, and step times on one and on 8 (s); ``known`` are those of the
    fits."""
    table = [row for row in rows.read(folder / "throughput.csv", Row, COLUMNS)
             if row.dnn in catalogue.model_names()]  # fmt: skip
    few = {row.key: row.step_s for row in table if row.num_gpus in (1, NODE_GPUS)}
    few = {**known, **few}
    found, left_out = [], []
    for row in table:
        alone_s = few.get(f"{row.configuration} 1 GPUs")
        node_s = few.get(f"{row.configuration} {NODE_GPUS} GPUs", 0.0)
        if alone_s is None:
            left_out.append(row.configuration)
        elif row.num_gpus > 1:
            found.append(msgspec.structs.replace(row, alone_s=alone_s, node_s=node_s))
    rows.say_left_out("no row of one GPU", left_out)
    return found, few


def cases(folder: Path) -> list[Case]:
    """Return every row outside the fit of each split; step times in seconds."""
    every = fitted.read("dlperf", table_fits.Fit)["all"]
    table, _ = read(folder, every.alone_s)
    pool = "dlperf/few-strict"
    strict = [Run(f"{pool}/{row.dnn}", row.key, row.job({}), row.step_s, pools=(pool,),
                  setting=row.setting) for row in table if row.own]  # fmt: skip
    away = [row for row in table if row.num_nodes > 1 or row.key not in every.keys]
    found = table_fits.cases("dlperf", away, ("few", "all"), prior, group=series)
    return found + predicted(strict)


def nominal_jobs(folder: Path) -> Iterator[tuple[str, Job, float]]:
    """Return framework, job on nominal links, and measured step time of each multi-GPU run."""
    for row in read(folder, {})[0]:
        job = msgspec.structs.replace(row, node_s=0.0).job({"neighbours": 0.0}, losses="usual")
        yield row.framework, job, row.step_s


def fit(folder: Path) -> None:
    """Fit to the rows of a folder and store the fits for :func:`cases`."""
    found, alone_s = read(folder, {})
    few = table_fits.without("few", found, prior, group=series)
    fitted.write("dlperf", {**few, "all": table_fits.fit(found, prior, alone_s)})
