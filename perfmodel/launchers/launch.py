"""What one file of a launcher says, and what several say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perfmodel.base.errors import InputError


class Launch(NamedTuple):
    """What a file says of a job; None for what it does not say.

    Attributes
    ----------
    what : the format, for messages.
    nodes, devices_per_node, devices : of the job.
    arguments : of :func:`perfmodel.make_job`, without numbers of devices. ``global_batch_size`` may
        take the place of ``batch_size``.
    """

    what: str
    nodes: int | None = None
    devices_per_node: int | None = None
    devices: int | None = None
    arguments: Mapping[str, Any] = {}


def joined(launches: Sequence[Launch]) -> Launch:
    """What several files say together; of two that say the same, the later counts.

    >>> joined([Launch("hosts", nodes=2), Launch("torchrun", devices_per_node=8)]).devices
    16
    """
    nodes = devices_per_node = devices = None
    values: dict[str, Any] = {}
    for launch in launches:
        nodes = launch.nodes or nodes
        devices_per_node = launch.devices_per_node or devices_per_node
        devices = launch.devices or devices
        options = {**values.get("options", {}), **launch.arguments.get("options", {})}
        values |= launch.arguments
        if options:
            values["options"] = options
    if devices is None and nodes is not None and devices_per_node is not None:
        devices = nodes * devices_per_node
    if devices_per_node is None and devices is not None and nodes and devices % nodes == 0:
        devices_per_node = devices // nodes
    what = " and ".join(dict.fromkeys(launch.what for launch in launches))
    return Launch(what, nodes, devices_per_node, devices, values)


DEGREES = ("tensor", "pipeline", "context")
"""Arguments that divide a model, so that a job has more devices than workers."""


def arguments_of(launch: Launch, name: str, workers: int | None = None) -> dict[str, Any]:
    """Arguments of :func:`perfmodel.make_job` of what files called ``name`` say.

    Parameters
    ----------
    workers : their number, if it is given elsewhere; 0 if it is, but is not one number. Then only
        the number of nodes may be known.

    Raises
    ------
    InputError : only the number of nodes is known.
    """
    values = dict(launch.arguments)
    divided = any(values.get(degree, 1) > 1 for degree in DEGREES)
    if launch.devices is not None:
        values["devices" if divided else "workers"] = launch.devices
    elif launch.nodes is not None and launch.nodes > 1 and workers is None:
        raise InputError(
            f"{name}: {launch.what}: {launch.nodes} nodes, but not how many devices each: give "
            f"--workers, such as {8 * launch.nodes}"
        )
    if launch.devices_per_node is not None:
        values["devices_per_node"] = launch.devices_per_node
    elif workers and launch.nodes and workers % launch.nodes == 0 and not divided:
        values["devices_per_node"] = workers // launch.nodes
    if "global_batch_size" in values:
        values.pop("batch_size", None)
    return values
