"""OPT-350M on nodes of four GH200, divided in the node, by pipeline and data: Megatron-DeepSpeed.

``layer_profiles.csv`` has the times of every layer on a node, whose devices divide it, and
``layer_sizes.csv`` its parameters: with these, a node is a device (*profiled*). ``runs.csv`` has
the iterations on up to 32 nodes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about
from perfmodel import Cluster, Job, Workload, WorkloadLayer, make_job
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.passes import accumulated

SOURCE, FILE = "sailor", "runs.csv"
ABOUT = about(SOURCE)

DEVICES = {"GH200-96GB": "gh200"}
PROFILES = {"opt-350m": "OPT-350"}
"""Names of devices and of models in the table, and here or in the profiles."""

GRADIENT_BYTES, ACTIVATION_BYTES = 4.0, 2.0


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table; embedding and head count among ``layers_per_stage``."""

    layers_per_stage: str = ""
    stage_devices: str = ""

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if len(set(self.stage_devices.replace("|", " ").split())) > 1:
            return "devices differ"
        return super().why_not if self.device in DEVICES else f"device {self.device}"


def name(row: Row) -> str:
    """Return what a row is a measurement of."""
    return f"{row.model} on {row.devices}, batch {row.micro_batch}"


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's time on a node of ``tp`` devices."""

    model: str
    device: str
    micro_batch: int
    tp: int
    layer: int
    forward_s: float
    backward_s: float
    update_s: float


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's parameters on each of ``tp`` devices, and the values that it passes on."""

    model: str
    tp: int
    layer: int
    parameters: int
    activation_output_elements: int


def stages(row: Row, ends: int = 1) -> dict[str, Any]:
    """Return the stages: layers of each, without ``ends`` layers before and after the blocks."""
    counts = [int(count) for count in row.layers_per_stage.split() if count.isdecimal()]
    if (row.pp or 1) == 1 or not counts:
        return {}
    counts[0], counts[-1] = counts[0] - ends, counts[-1] - ends
    return {"stage_layers": "+".join(map(str, counts)), "transfers": "blocking"}


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job, from its dimensions."""
    return layouts.layout_of(row) | stages(row) | layouts.SUMMED_AT_END | {
        "workload": layouts.profile_of(row, ABOUT.citation, flash=False),
        "device": DEVICES[row.device],
        "cluster": "quad-gh200",
    }  # fmt: skip


def profiled(row: Row, times: list[Time], sizes: list[Size]) -> Job:
    """Return the job whose devices are nodes, with the profile's times.

    Raises
    ------
    InputError : there are none for its layers.
    """
    key = (PROFILES.get(row.model), row.tp)
    found = [time for time in times if (time.model, time.tp) == key
             and (time.device, time.micro_batch) == (row.device, row.micro_batch)]  # fmt: skip
    known = {size.layer: size for size in sizes if (size.model, size.tp) == key}
    if not found or {time.layer for time in found} - set(known) or row.devices_per_node != row.tp:
        raise InputError("no profile of a node")
    many = row.tp or 1
    layers = [
        WorkloadLayer(
            f"layer {time.layer}", time.forward_s, time.backward_s,
            (known[time.layer].parameters * many * GRADIENT_BYTES,),
            known[time.layer].activation_output_elements * many * ACTIVATION_BYTES
            * time.micro_batch,
        )
        for time in sorted(found, key=lambda time: time.layer)
    ]  # fmt: skip
    work = Workload.of(row.model, layers, batch_size=row.micro_batch or 1, device="gh200",
                       optimizer_s=sum(time.update_s for time in found))  # fmt: skip
    given = stages(row, 0) | ({"pipeline": row.pp} if (row.pp or 1) > 1 else {})
    return make_job(
        workload=accumulated(work, row.microbatches or 1),
        cluster=node_as_device(),
        workers=row.dp or 1,
        **given,
        **layouts.SUMMED_AT_END,
    )


def node_as_device() -> Cluster:
    """Return the cluster in which a node is a device."""
    nodes = catalogue.cluster("quad-gh200")
    return msgspec.structs.replace(nodes, devices_per_node=1, nics_per_node=1, intra_node=None,
                                   nic=nodes.nic.times(nodes.nics_per_node))  # fmt: skip


def cases(folder: Path) -> list[Case]:
    """Return every run, in three ways; anchored ones from that of the same micro-batch on the
    fewest devices."""
    table = rows.read(folder / FILE, Row)
    times = rows.read(folder / "layer_profiles.csv", Time)
    sizes = rows.read(folder / "layer_sizes.csv", Size)
    profiles = []
    for row in table:
        job = layouts.made(row, partial(profiled, row, times, sizes)) if not row.why_not else None
        if job is not None:
            profiles.append(layouts.run_of(SOURCE, "profiled", row, job, name))
    return layouts.cases_of(
        SOURCE, table, arguments, alike=lambda row: row.model, setting=name, more=profiles,
        unlike=lambda row, other: float(row.micro_batch != other.micro_batch))  # fmt: skip
