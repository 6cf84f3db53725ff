"""Options of the parameter server."""

from __future__ import annotations

import math
from typing import Literal

from perfmodel.architectures.parts.messages import Transmission
from perfmodel.base.errors import InputError, number, whole_number

MOST_SERVERS = 10_000
"""Servers of one job; more is taken for a slip of the keyboard."""


class Options(Transmission, frozen=True, forbid_unknown_fields=True):
    """Options of the parameter server; the registry entry below says what each means."""

    sync: Literal["bsp", "asp", "ssp"] = "bsp"
    staleness_bound: float = 3.0
    servers: int = 1
    overlap: bool = True
    duplex: bool = False
    pull: Literal["reply", "request"] = "reply"
    sharding: Literal["bytes", "hash"] = "bytes"
    split_above_bytes: float = 4e6
    local_aggregation: bool = False
    backup_workers: int = 0
    softsync: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("servers", self.servers, at_most=MOST_SERVERS)
        if self.split_above_bytes != math.inf:
            number("split_above_bytes", self.split_above_bytes)
        bound = self.staleness_bound
        if bound != math.inf and (number("staleness_bound", bound) != int(bound)):
            raise InputError(f"staleness_bound: expected a whole number or inf, got {bound:g}")
        whole_number("backup_workers", self.backup_workers, at_least=0)
        whole_number("softsync", self.softsync)
        for name, used, needs in (
            ("local_aggregation", self.local_aggregation, self.sync == "bsp"),
            ("backup_workers", self.backup_workers > 0, self.sync == "bsp"),
        ):
            if used and not needs:
                raise InputError(f"{name}: needs sync=bsp, got sync={self.sync}")
        if self.softsync > 1 and self.sync != "asp":
            raise InputError(f"softsync: needs sync=asp, got sync={self.sync}")
        if self.pull == "request" and not self.duplex:
            raise InputError("pull=request: needs duplex, where a push is answered at once")
        if self.backup_workers > 0 and (self.duplex or self.local_aggregation):
            other = "duplex" if self.duplex else "local_aggregation"
            raise InputError(f"backup_workers: cannot be combined with {other}")
        if self.local_aggregation and self.compression != "none":
            raise InputError("local_aggregation: cannot be combined with compression")

    @property
    def unused(self) -> set[str]:
        """Options that have no effect, given the others."""
        return super().unused | {
            name
            for name, without_effect in (
                ("staleness_bound", self.sync != "ssp"),
                ("sharding", self.servers == 1),
                ("split_above_bytes", self.servers == 1),
                ("pull", not self.duplex),
                ("local_aggregation", self.sync != "bsp"),
                ("backup_workers", self.sync != "bsp"),
                ("softsync", self.sync != "asp"),
            )
            if without_effect
        }
