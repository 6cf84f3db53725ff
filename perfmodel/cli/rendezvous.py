"""Processes of ``perfmodel measure network`` and ``training``: torchrun's, or started here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.options import option
from perfmodel.cli.types import WHOLE

if TYPE_CHECKING:
    from perfmodel.measuring.torchrun import Place

PROCESSES = option(
    "--processes",
    WHOLE,
    "Start N processes on this machine.  [default: torchrun has started them]",
)


def place_or_launch(processes: int | None) -> Place:
    """This process under torchrun; else start processes, wait, and exit with their code."""
    from perfmodel.measuring import torchrun

    place = torchrun.place()
    if place is None:
        if processes is None:
            torchrun.import_distributed()
            raise InputError(
                "--processes: needed, the number of processes on this machine; on several machines "
                "start the command with torchrun --nnodes N ... -m perfmodel"
            )
        code = torchrun.launch(processes, sys.argv[1:])
        click.get_current_context().exit(code)
    if processes not in (None, place.ranks):
        raise InputError(f"--processes: got {processes}, but torchrun has started {place.ranks}")
    return place
