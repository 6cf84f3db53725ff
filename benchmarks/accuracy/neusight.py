"""Language models in PyTorch in 32 bits, on GPUs of six generations, from NeuSight.

``measured_latency.csv``: milliseconds of the forward pass and of both passes, without an update,
by ``gpu``, ``model``, ``seq_len``, ``global_batch`` and ``parallel`` (how four GPUs divide the
work: ``dp4``, ``tp4``, or ``pp4_1`` for a pipeline and one micro-batch).
"""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import catalogued, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import Job, Profile, Source, make_job
from perfmodel.base.errors import InputError
from perfmodel.inputs.decoder import Decoder

SOURCE = "neusight"
ABOUT = about(SOURCE)
MACHINES = msgspec.convert(ABOUT.facts["machines"], dict[str, catalogued.Machine])
CATALOGUE = msgspec.convert(ABOUT.facts["models"], dict[str, str])
DECODERS = msgspec.convert(ABOUT.facts["decoders"], dict[str, Decoder])

DIVISIONS = {"dp": "workers", "tp": "tensor", "pp": "pipeline"}
"""Arguments of a job by the first letters of ``parallel``."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    gpu: str
    model: str
    mode: str
    seq_len: int
    global_batch: int
    e2e_latency_ms: float
    parallel: str = ""

    @property
    def division(self) -> re.Match[str] | None:
        """How several GPUs divide the work: the kind, their number, and the micro-batches."""
        return re.fullmatch(r"(dp|tp|pp)(\d+)(?:_(\d+))?", self.parallel)

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.mode != "train":
            return "inference"
        if self.parallel and not self.division:
            return f"parallel {self.parallel}"
        if self.gpu not in MACHINES:
            return f"GPU {self.gpu}"
        return "" if self.model in CATALOGUE or self.model in DECODERS else f"model {self.model}"

    @property
    def job(self) -> Job:
        """The job of the row, without an update."""
        machine = MACHINES[self.gpu]
        given: dict[str, Any] = {"workers": 1, "batch_size": self.global_batch}
        if self.division:
            kind, devices, passes = self.division.groups()
            given[DIVISIONS[kind]] = int(devices)
            given["batch_size"] = self.global_batch // given["workers"]
            given["accumulation"] = int(passes or 1)
        if self.model in CATALOGUE:
            given["model"] = CATALOGUE[self.model]
        else:
            source = Source("published", ABOUT.citation)
            decoder = DECODERS[self.model]
            given["workload"] = Profile(name=self.model, decoder=decoder, source=source)
        job = make_job(
            **given,
            sequence_length=None if self.model.startswith("bert") else self.seq_len,
            device=machine.device,
            cluster=machine.cluster or None,
            precision="float32",
            framework="pytorch",
            arch="ring",
        )
        return job.with_(workload=msgspec.structs.replace(job.workload, optimizer_s=0.0))


def cases(folder: Path) -> list[Case]:
    """Return the time of both passes of every row that the catalogue supports."""
    found: list[Run] = []
    left_out = collections.Counter[str]()
    for row in rows.read(folder / "measured_latency.csv", Row):
        if row.why_not:
            left_out[row.why_not] += 1
            continue
        try:
            job = row.job
        except InputError as error:
            left_out[str(error)] += 1
            continue
        kind = "several" if row.division else "one"
        name = f"{row.model} on {row.gpu}, batch {row.global_batch} {row.parallel}".strip()
        pools = (f"{SOURCE}/{kind}", f"{SOURCE}/none")
        step_s = row.e2e_latency_ms / 1e3
        found.append(Run(f"{SOURCE}/{kind}/{row.model}", name, job, step_s, pools=pools))
    catalogued.say(left_out)
    return predicted(found)
