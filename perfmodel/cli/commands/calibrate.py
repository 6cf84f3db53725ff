"""``perfmodel calibrate``: from measurements to cluster and workload files."""

from __future__ import annotations

import click

from perfmodel.cli.commands.calibrate_network import network
from perfmodel.cli.commands.calibrate_runs import runs, server
from perfmodel.cli.help import Group


@click.group(cls=Group)
def calibrate() -> None:
    """Fit a cluster or a workload to measurements."""


for _command in (network, runs, server):
    calibrate.add_command(_command)
