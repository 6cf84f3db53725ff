"""``perfmodel profile``: in the making."""

from __future__ import annotations

import click


@click.command("profile")
def profile() -> None:
    """In the making."""
