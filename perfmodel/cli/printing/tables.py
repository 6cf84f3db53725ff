"""Tables that stay readable on narrow terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
"""Blanks between columns."""

UNBROKEN = 16
"""Cells of up to this many characters, such as "1.25 ms ± 3.1%", are not wrapped."""

MOST_LINES = 6
"""A row with more lines than this is easier to read as a record."""

Texts = Sequence[Sequence[Text]]
"""The header of each column, if there are headers, and its cells."""


class FittingTable(Table):
    """A table without lines, as wide as the terminal at most.

    Where the columns do not fit, the longest texts are wrapped between words. Where that is not
    enough, each row becomes a record: a line for each column.
    """

    def __init__(self, *columns: str) -> None:
        """Name the columns; a name may be empty."""
        super().__init__(box=None, pad_edge=False, show_header=any(columns), header_style="dim")
        for i, column in enumerate(columns):
            self.add_column(column, style="bold" if i == 0 else "", overflow="fold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for the width of a terminal; elsewhere as Rich does."""
        columns = [[Text(str(cell)) for cell in (c.header, *c.cells)] for c in self.columns]
        natural = [max(text.cell_len for text in column) for column in columns]
        gaps = GAP * (len(columns) - 1)
        if not console.is_terminal or sum(natural) + gaps <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        widths = shrunk(columns, options.max_width - gaps)
        if widths is None:
            yield from self._records(columns, options.max_width)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _records(self, columns: Texts, width: int) -> RenderResult:
        """Each row as lines of a column's name and its value; empty cells are left out."""
        heads = [column[0] for column in columns]
        names = min(max(head.cell_len for head in heads), width // 2 - GAP)
        for number, row in enumerate(zip(*(column[1:] for column in columns), strict=True)):
            if number and self.show_header:
                yield Text()
            row[0].stylize("bold")
            if row[0] and not heads[0]:
                yield row[0]
            record = Table(box=None, pad_edge=False, show_header=False)
            record.add_column(style="dim", width=names, overflow="fold")
            record.add_column(width=width - names - GAP, overflow="fold")
            for head, text in zip(heads, row, strict=True):
                if text and (head or text is not row[0]):
                    record.add_row(head, text)
            if record.rows:
                yield record


def shrunk(columns: Texts, room: int) -> list[int] | None:
    """Widths of columns that fit into ``room`` together, None if they would not be readable.

    The widest columns give way first, and none gets narrower than its longest word.
    """
    natural = [max(text.cell_len for text in column) for column in columns]
    least = [max(map(_least, column)) for column in columns]
    if sum(least) > room:
        return None
    level = max(natural)
    while sum(widths := _levelled(natural, least, level)) > room:
        level -= 1
    lines = (n / width for n, width in zip(natural, widths, strict=True) if width)
    return widths if max(lines) <= MOST_LINES else None


def _levelled(natural: Sequence[int], least: Sequence[int], level: int) -> list[int]:
    return [max(low, min(full, level)) for full, low in zip(natural, least, strict=True)]


def _least(text: Text) -> int:
    """The narrowest column in which a text is readable."""
    if text.cell_len <= UNBROKEN:
        return text.cell_len
    indent = len(text.plain) - len(text.plain.lstrip())
    return max(UNBROKEN, *(indent + len(word) for word in text.plain.split()))
