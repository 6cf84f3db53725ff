"""Aligned text, for what is printed most often: importing Rich takes longer than a prediction."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

NO_WRAP = 1_000_000
"""Width of lines where standard output is a file or a pipe: they are not wrapped."""

GAP = 2
"""Blanks between columns."""


def show(text: str) -> None:
    """Print a line, without colours where the user or the output does not take them."""
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def bold(text: str) -> str:
    """Text in bold, on a terminal."""
    return click.style(text, bold=True)


def dim(text: str) -> str:
    """Text that stands back, on a terminal."""
    return click.style(text, dim=True)


def show_rows(rows: Iterable[tuple[str, str, str]]) -> None:
    """Print rows of a name, a value and a remark in columns; long ones go on below the value."""
    table = list(rows)
    width = _terminal_width() if sys.stdout.isatty() else NO_WRAP
    values = min(max(len(value) for _, value, _ in table), width // 3)
    lines = [(bold(name), f"{value:{values}}{' ' * GAP}{remark}") for name, value, remark in table]
    formatter = click.HelpFormatter(width=width)
    formatter.write_dl(lines, col_max=width // 3, col_spacing=GAP)
    show(formatter.getvalue().rstrip("\n"))


def _terminal_width() -> int:
    from shutil import get_terminal_size  # the import takes a millisecond

    return get_terminal_size().columns
