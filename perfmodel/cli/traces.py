"""``perfmodel import``: in the making."""

from __future__ import annotations

import click


@click.command("import")
def import_() -> None:
    """In the making."""
