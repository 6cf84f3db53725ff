"""``perfmodel network``: in the making."""

from __future__ import annotations

import click


@click.command("network")
def network() -> None:
    """In the making."""
