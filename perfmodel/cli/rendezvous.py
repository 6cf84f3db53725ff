"""Processes of ``perfmodel measure network`` and ``training``: torchrun's, or started here."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.options import remark

if TYPE_CHECKING:
    from perfmodel.measuring.processes.ranks import Place as FormerPlace
    from perfmodel.measuring.torchrun import Place

PROCESSES = click.option(
    "--processes",
    type=int,
    metavar="N",
    help="Start N processes on this machine.  [default: torchrun has started them]",
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


OPTIONS = (
    click.option(
        "--rank",
        type=int,
        metavar="R",
        help="Rank of this process, from 0.  [default: from torchrun]",
    ),
    click.option(
        "--ranks", type=int, metavar="N", help="Number of processes.  [default: from torchrun]"
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="Address of rank 0, for the rendezvous.  [default: from torchrun, or 127.0.0.1:29500]",
    ),
    click.option(
        "--listen",
        metavar="ADDRESS|INTERFACE",
        help="Address of this machine to listen on.  [default: the one that others reach it by]",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        help="File with the secret that all processes share.  [default: PERFMODEL_TOKEN, or the "
        "user's token]",
    ),
)


def take_place(given: dict[str, Any]) -> FormerPlace:
    """This process, by :data:`OPTIONS` and the environment; removes them from ``given``."""
    from perfmodel.measuring.processes.ranks import place

    names = ("rank", "ranks", "address", "listen", "token_file")
    return place(*(given.pop(name) for name in names))


@contextmanager
def logged() -> Iterator[None]:
    """Log on standard error where rank 0 listens, and which connections it refused."""
    logger, handler = logging.getLogger("perfmodel.measuring"), _Echo()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Echo(logging.Handler):
    """A line on standard error for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        remark(f"perfmodel: {record.getMessage()}")
