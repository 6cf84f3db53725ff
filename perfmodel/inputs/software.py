"""The software that a job trains with, where times are estimated."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perfmodel.base.errors import unknown_name
from perfmodel.base.units import parse

AS_FOUND, RECENT, TUNED = "as_found", "recent", "tuned"

STACKS: Mapping[str, str] = {
    AS_FOUND: "frameworks as users find them, with the attention kernels that they have by default",
    RECENT: "PyTorch of 2025 or later as it comes, which has the newest attention kernels",
    TUNED: "the newest kernels and containers, as vendors publish their results",
}
"""Levels of software on a device, by what they mean."""

EAGER, COMPILED, GRAPHS = "eager", "compiled", "graphs"

LAUNCH_S: Mapping[str, float] = {EAGER: 30e-6, COMPILED: 10e-6, GRAPHS: 0.0}
"""Time of the host per kernel of the operators, by how operators are launched.

An operator of an eager framework takes the host 5 to 20 us, and a kernel here stands for about
three of them, with the casts and views that surround it; compiled code launches one. CUDA graphs
launch all at once.
"""


class Software(msgspec.Struct, frozen=True):
    """Level of the software, one of :data:`STACKS` (default *as_found*), and how it launches
    operators, one of :data:`LAUNCH_S` (default *eager*) or a time per kernel such as *80us*, both
    for estimates from operators; and the ``framework``, and perhaps its version, whose timings are
    preferred."""

    stack: str | None = None
    launches: str | None = None
    framework: str | None = None

    def __post_init__(self) -> None:
        if self.stack is not None and self.stack not in STACKS:
            raise unknown_name("stack", self.stack, STACKS)
        if self.launches is not None:
            launch_s(self.launches)

    @property
    def estimates(self) -> bool:
        """Whether it says something about estimates from operators."""
        return self.stack is not None or self.launches is not None


def launch_s(launches: str) -> float:
    """Return the host's time per kernel of the operators: that of a name, or a measured one.

    >>> launch_s("compiled"), launch_s("80us")
    (1e-05, 8e-05)

    Raises
    ------
    InputError : neither one of :data:`LAUNCH_S` nor a time.
    """
    if launches in LAUNCH_S:
        return LAUNCH_S[launches]
    if not launches[:1].isdigit():
        raise unknown_name("launches", launches, LAUNCH_S)
    return parse(launches, "s", "launches")


UNSAID = Software()
"""The defaults."""

OF_SOFTWARE = ("stack", "launches", "framework")
"""Arguments of :func:`perfmodel.make_job` that make a :class:`Software`."""
