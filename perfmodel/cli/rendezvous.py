"""Rendezvous of processes: options of ``perfmodel measure network`` and ``training``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.options import remark

if TYPE_CHECKING:
    from perfmodel.measuring.processes.ranks import Place

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


def take_place(given: dict[str, Any]) -> Place:
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
