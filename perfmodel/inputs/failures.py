"""Failures of devices, and the checkpoints that a run goes back to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.quantities import Quantity
from perfmodel.base.ranges import NOT_NEGATIVE, POSITIVE, Ranged, or_none
from perfmodel.inputs.offload import COPY_BYTES_PER_S

DAY_S = 86400.0

PUBLISHED: Mapping[str, float] = {
    "llama-3": 419 / (54 * 16384),
    "bloom": 1.5 / (7 * 384),
    "opt": 35 / (60 * 992),
}
"""Interruptions per device and day of published runs, by the model trained.

- *llama-3*: 419 unexpected interruptions in 54 days of 16,384 H100 (Llama Team, "The Llama 3 herd
  of models", 2024, arXiv 2407.21783, section 3.3.4);
- *bloom*: one or two failures of GPUs a week on 384 A100 (Le Scao et al., "BLOOM", 2022, arXiv
  2211.05100, section 3.2);
- *opt*: 35 restarts by hand in about two months on 992 A100 (Zhang et al., "OPT", 2022, arXiv
  2205.01068, section 2.5); others were automatic.
"""

STORAGE_BYTES_PER_S = 2e12 / 16384
"""Bytes/s of storage per device: 2 TB/s for the cluster of Llama 3 (section 3.3.1); the 2.3 TB that
BLOOM wrote in 40 s are 0.15 GB/s for each of its devices."""

RESTART_S = 600.0
"""Time from a failure to the first step after it, without reading the checkpoint. Llama 3 trained
for more than 90 % of the time with a failure every 3.1 h: 18 minutes per failure, in which the work
since the last checkpoint was repeated too."""

WRITING = ("blocking", "asynchronous")


class Failures(Ranged, frozen=True, kw_only=True):
    """How often a run fails, and how it goes on.

    Attributes
    ----------
    per_device_day : failures of the run per device and day.
    interruptions_per_node_day : nodes that are taken away, such as spot instances, per node and
        day; each stops the run as a failure does, unless the run is ``elastic``.
    replacement_s : time until there is a node instead of one that was taken away, before the
        restart.
    elastic : whether the run goes on with the nodes that are left.
    resize_s : time that an elastic run stands still when a node goes or comes; None for
        ``restart_s``, or for 0 if workers update on their own.
    restart_s : time from a failure to the next step, besides reading the checkpoint; includes the
        wait for a replacement where there is no spare node.
    checkpoint_interval_s : work between checkpoints; None for what makes the run shortest.
    storage_bytes_per_s : rate at which all devices together write and read checkpoints; None for
        :data:`STORAGE_BYTES_PER_S` each.
    checkpointing : *blocking*, or *asynchronous*: steps pause only for a copy to the host's memory.

    Raises
    ------
    InputError : a value is out of range, or a word is unknown.
    """

    RANGES: ClassVar = {
        "per_device_day": NOT_NEGATIVE,
        "restart_s": NOT_NEGATIVE,
        "interruptions_per_node_day": NOT_NEGATIVE,
        "replacement_s": NOT_NEGATIVE,
        **dict.fromkeys(("checkpoint_interval_s", "storage_bytes_per_s"), or_none(POSITIVE)),
        "resize_s": or_none(NOT_NEGATIVE),
    }

    per_device_day: float = 0.0
    interruptions_per_node_day: float = 0.0
    restart_s: float = RESTART_S
    replacement_s: float = 0.0
    elastic: bool = False
    resize_s: float | None = None
    checkpoint_interval_s: float | None = None
    storage_bytes_per_s: float | None = None
    checkpointing: str = "blocking"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpointing not in WRITING:
            raise unknown_name("checkpointing", self.checkpointing, WRITING)
        if self.elastic and not self.replacement_s:
            raise InputError("elastic: needs replacement_s, the time until another node is there")

    @classmethod
    def rate(cls, text: str) -> float:
        """Read failures per device and day: a number, or the name of a published run.

        >>> Failures.rate("0.001"), round(Failures.rate("llama-3"), 6)
        (0.001, 0.000474)
        """
        if text in PUBLISHED:
            return PUBLISHED[text]
        try:
            return float(text)
        except ValueError:
            unknown = unknown_name("published run", text, PUBLISHED)
            raise InputError(f"failures-per-device-day: not a number, and {unknown}") from None

    def rates_per_s(self, devices: Quantity, nodes: Quantity) -> tuple[Quantity, Quantity]:
        """Failures, and nodes taken away, per second of a run on so many devices and nodes."""
        failing = self.per_device_day / DAY_S * devices
        return failing, self.interruptions_per_node_day / DAY_S * nodes

    def moving_s(self, checkpoint_bytes: Quantity, devices: Quantity) -> Quantity:
        """Seconds to write a checkpoint to the storage, or to read it."""
        rate = self.storage_bytes_per_s or STORAGE_BYTES_PER_S * devices
        return checkpoint_bytes / rate

    def pause_s(self, checkpoint_bytes: Quantity, devices: Quantity) -> Quantity:
        """Seconds that training stands still for a checkpoint."""
        if self.checkpointing == "blocking":
            return self.moving_s(checkpoint_bytes, devices)
        return checkpoint_bytes / devices / COPY_BYTES_PER_S  # a copy to the host's memory

    def recovery_s(self, checkpoint_bytes: Quantity, devices: Quantity) -> Quantity:
        """Seconds from a failure to the work after the last checkpoint, with all nodes there.

        A checkpoint counts once it is in the storage. One that is still being written when the run
        fails is lost: on average the time of a write is repeated besides.
        """
        moving_s = self.moving_s(checkpoint_bytes, devices)
        late_s = moving_s if self.checkpointing == "asynchronous" else 0.0
        return self.restart_s + moving_s + late_s
