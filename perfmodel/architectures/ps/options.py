"""Options of the parameter server."""

import math
from typing import Annotated, ClassVar, Literal

from perfmodel.base.errors import InputError
from perfmodel.base.ranges import COUNT, FRACTION, NOT_NEGATIVE, or_inf
from perfmodel.communication.messages import Transmission
from perfmodel.inputs.options import Option

MOST_SERVERS = 10_000
"""Largest number of servers of a job; catches typing errors."""


class Options(Transmission, frozen=True, forbid_unknown_fields=True):
    """Options of the parameter server."""

    RANGES: ClassVar = {
        **Transmission.RANGES,
        "servers": COUNT._replace(at_most=MOST_SERVERS),
        "split_above_bytes": or_inf(NOT_NEGATIVE),
        "uneven": FRACTION,
        "staleness_bound": or_inf(NOT_NEGATIVE),
        "backup_workers": COUNT._replace(at_least=0),
        "softsync": COUNT,
    }

    sync: Annotated[
        Literal["bsp", "asp", "ssp"],
        Option(
            "bsp: an update waits for every worker; asp: every push is applied at once; ssp: like "
            "asp, but no worker gets further ahead of the slowest than staleness_bound"
        ),
    ] = "bsp"
    staleness_bound: Annotated[
        float,
        Option(
            "iterations that a worker may be ahead of the slowest (ssp), or inf",
            lambda o: o.sync != "ssp",
        ),
    ] = 3.0
    servers: Annotated[int, Option("number of servers that share the parameters")] = 1
    overlap: Annotated[
        bool,
        Option(
            "push each gradient once it is ready; start each layer once its parameters are back"
        ),
    ] = True
    duplex: Annotated[
        bool,
        Option("answer each pushed slice at once (MXNet) instead of one pull phase per step"),
    ] = False
    pull: Annotated[
        Literal["reply", "request"],
        Option(
            "reply: a push is answered with the new parameters; request: it is acknowledged, and "
            "the worker then requests them, queued behind its pushes (MXNet)",
            lambda o: not o.duplex,
            formulas=False,
        ),
    ] = "reply"
    sharding: Annotated[
        Literal["bytes", "hash"],
        Option(
            "placement of whole tensors: bytes (emptiest server) or hash (of the tensor's number)",
            lambda o: o.servers == 1,
        ),
    ] = "bytes"
    split_above_bytes: Annotated[
        float,
        Option(
            "cut tensors above this size evenly over all servers; inf: cut none",
            lambda o: o.servers == 1,
        ),
    ] = 4e6
    uneven: Annotated[
        float,
        Option(
            "fraction of each cut tensor that one server holds on top of its even share",
            lambda o: o.servers == 1,
        ),
    ] = 0.0
    local_aggregation: Annotated[
        bool,
        Option(
            "sum gradients inside each node first; the node then pushes once (bsp)",
            lambda o: o.sync != "bsp",
        ),
    ] = False
    backup_workers: Annotated[
        int,
        Option(
            "number of slowest workers that an update does not wait for (bsp)",
            lambda o: o.sync != "bsp",
        ),
    ] = 0
    softsync: Annotated[
        int,
        Option("gradients (of any workers) per update (asp)", lambda o: o.sync != "asp"),
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = self.staleness_bound
        if bound != math.inf and bound != int(bound):
            raise InputError(f"staleness_bound: expected a whole number or inf, got {bound:g}")
        for name, used, needs in (
            ("local_aggregation", self.local_aggregation, self.sync == "bsp"),
            ("backup_workers", self.backup_workers > 0, self.sync == "bsp"),
        ):
            if used and not needs:
                raise InputError(f"{name}: needs sync=bsp, got sync={self.sync}")
        if self.softsync > 1 and self.sync != "asp":
            raise InputError(f"softsync: needs sync=asp, got sync={self.sync}")
        if self.pull == "request" and not self.duplex:
            raise InputError("pull=request: needs duplex, which answers each push at once")
        if self.backup_workers > 0 and (self.duplex or self.local_aggregation):
            other = "duplex" if self.duplex else "local_aggregation"
            raise InputError(f"backup_workers: cannot be combined with {other}")
        if self.local_aggregation and self.compression != "none":
            raise InputError("local_aggregation: cannot be combined with compression")

    @property
    def asynchronous(self) -> bool:
        """Whether workers iterate without a barrier."""
        return self.sync != "bsp"

    @property
    def server_count(self) -> int:
        """Number of servers."""
        return self.servers

    @property
    def spare_workers(self) -> int:
        """Workers that an update does not wait for."""
        return self.backup_workers

    @property
    def bounded_lead(self) -> float | None:
        """Iterations that a worker may be ahead of the slowest; None if there is no bound."""
        return self.staleness_bound if self.sync == "ssp" else None
