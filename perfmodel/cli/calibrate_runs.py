"""``perfmodel calibrate runs`` and ``server``: in the making."""

from __future__ import annotations

import click


@click.command()
def runs() -> None:
    """In the making."""


@click.command()
def server() -> None:
    """In the making."""
