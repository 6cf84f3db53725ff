"""``perfmodel measure``: what a network does, and how fast real training runs on it."""

from __future__ import annotations

import click

from perfmodel.cli.commands.measure_network import network
from perfmodel.cli.commands.measure_training import training
from perfmodel.cli.help import Group


@click.group(cls=Group)
def measure() -> None:
    """Measure a network, or a real training run."""


measure.add_command(network)
measure.add_command(training)
