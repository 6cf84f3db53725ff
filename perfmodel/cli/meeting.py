"""Rendezvous of processes: options of ``perfmodel measure network`` and ``training``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perfmodel.measuring.processes.ranks import Place

WHO = (
    click.option("--rank", type=int, metavar="R", help="Of this process, from 0 (torchrun)."),
    click.option("--ranks", type=int, metavar="N", help="How many processes there are (torchrun)."),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="Of rank 0, where all meet.  [default: what torchrun says, or 127.0.0.1:29500]",
    ),
    click.option(
        "--listen",
        metavar="ADDRESS|INTERFACE",
        help="Listen on this address of this machine.  [default: that by which others reach it]",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        help="Has the secret that lets a process take part.  [default: PERFMODEL_TOKEN, or the "
        "user's own]",
    ),
)


def take_place(given: dict[str, Any]) -> Place:
    """The process that :data:`WHO` and the environment say; takes these out of ``given``."""
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
        click.echo(f"perfmodel: {record.getMessage()}", err=True)
