"""Aligned text, for what is printed most often: importing Rich takes longer than a prediction."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TextIO

import click

NO_WRAP = 1_000_000
"""Width of lines where standard output is a file or a pipe: they are not wrapped."""

LEAST_REMARK = 32
"""Narrowest column of remarks; on narrower terminals they are below the values."""

GAP = 2
"""Blanks between columns."""


def styled(stream: TextIO) -> bool:
    """Whether to write colours, bold and dim text to a stream.

    NO_COLOR turns them off and FORCE_COLOR on, if they are not empty (no-color.org); otherwise only
    terminals that know escape codes get them.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or moves_cursor(stream)


def moves_cursor(stream: TextIO) -> bool:
    """Whether a stream is a terminal that knows escape codes."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def show(text: str) -> None:
    """Print lines, with styles where standard output takes them; a terminal gets no wider ones."""
    if sys.stdout.isatty():
        width = _terminal_width()
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    click.echo(text, color=styled(sys.stdout))


def _wrapped(line: str, width: int) -> str:
    """Wrap a line between words; it goes on below its text, behind a label and a gap."""
    plain = click.unstyle(line)
    if len(plain) <= width:
        return line
    label = re.match(_LABEL, plain)
    indent = label.end() if label is not None and label.end() <= width // 2 else 0
    return click.wrap_text(line, width, subsequent_indent=" " * indent)


_LABEL = r" *(\d+\. |- |\S+ {2,})?"


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
    names = min(max(len(name) for name, _, _ in table), width // 3) + GAP
    if width - names - values - GAP < LEAST_REMARK:
        show("\n".join(line for row in table for line in _below(*row, names, width)))
        return
    lines = [(bold(name), f"{value:{values}}{' ' * GAP}{remark}") for name, value, remark in table]
    formatter = click.HelpFormatter(width=width)
    formatter.write_dl(lines, col_max=width // 3, col_spacing=GAP)
    show(formatter.getvalue().rstrip("\n"))


def _below(name: str, value: str, remark: str, names: int, width: int) -> list[str]:
    """Lines of a row with the remark below the value."""
    from textwrap import wrap

    texts = [line for text in (value, remark) for line in wrap(text, width - names)]
    if len(name) + GAP > names:
        return [bold(name), *(" " * names + text for text in texts)]
    first, *others = texts or [""]
    return [f"{bold(name)}{' ' * (names - len(name))}{first}", *(" " * names + t for t in others)]


def _terminal_width() -> int:
    from shutil import get_terminal_size  # the import takes a millisecond

    return get_terminal_size().columns
