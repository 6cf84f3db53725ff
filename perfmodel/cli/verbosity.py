"""How much a command prints besides its answer."""

from __future__ import annotations

import click

VERBOSITY = "perfmodel.verbosity"
"""Key of the verbosity in a context's ``meta``, which a command shares with its groups."""


def verbosity() -> int:
    """-1 with --quiet, 1 with --verbose, else 0; also outside of any command."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else int(context.meta.get(VERBOSITY, 0))


def remark(text: str) -> None:
    """Print a line on standard error, unless --quiet."""
    if verbosity() >= 0:
        click.echo(text, err=True)
