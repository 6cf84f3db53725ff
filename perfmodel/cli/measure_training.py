"""``perfmodel training``: in the making."""

from __future__ import annotations

import click


@click.command("training")
def training() -> None:
    """In the making."""
