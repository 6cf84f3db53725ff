"""Tables: CSV with a header line and errors that name line and column; Parquet output."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfmodel.base import formats
from perfmodel.base.errors import InputError, number, plain, suggestion, whole_number
from perfmodel.base.files import read_bytes, write
from perfmodel.base.limits import MOST_WHOLE
from perfmodel.base.units import dimension_of, parse

if TYPE_CHECKING:
    import pandas as pd


class TableRow(msgspec.Struct, frozen=True):
    """A row of a table: its line number in the file, and its stripped cells by column."""

    table: str
    number_in_file: int
    cells: Mapping[str, str]

    @property
    def place(self) -> str:
        """File and line, as error messages give them."""
        return f"{self.table}: line {self.number_in_file}"

    def has(self, column: str) -> bool:
        """Return whether the column exists and its cell is not empty."""
        return bool(self.cells.get(column))

    def text(self, column: str) -> str:
        """Return the text of a cell.

        Raises
        ------
        InputError : the column is missing, or the cell is empty.
        """
        if column not in self.cells:
            raise _missing(self.table, column, self.cells)
        if not self.cells[column]:
            raise InputError(f"{self.place}: {column}: is empty")
        return self.cells[column]

    def number(
        self,
        column: str,
        *,
        at_least: float = 0.0,
        above: float | None = None,
        at_most: float | None = None,
    ) -> float:
        """Return a cell as a number in range.

        Where the column's name ends in a unit (``latency_s``), the cell may have one ("25 us"); a
        plain number is in SI units.

        Raises
        ------
        InputError : as :meth:`text`; or not a number, not finite, out of range, a wrong unit.
        """
        text, where = self.text(column), f"{self.place}: {column}"
        try:
            value = float(text)
        except ValueError:
            dimension = dimension_of(column)
            if dimension is None:
                raise InputError(f"{where}: expected a number, got {text!r}") from None
            value = parse(text, dimension, where)
        return number(where, value, at_least=at_least, above=above, at_most=at_most)

    def whole(self, column: str, *, at_least: int = 1, at_most: int = MOST_WHOLE) -> int:
        """Return a cell as a whole number in range; 8.0 counts as one.

        Raises
        ------
        InputError : as :meth:`number`.
        """
        text, where = self.text(column), f"{self.place}: {column}"
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value.is_integer():
            raise InputError(f"{where}: expected a whole number, got {text!r}")
        return whole_number(where, int(value), at_least=at_least, at_most=at_most)


class Table(msgspec.Struct, frozen=True):
    """A table: the file's name, the column names, and the rows; blank lines are skipped."""

    name: str
    columns: tuple[str, ...]
    lines: tuple[TableRow, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[TableRow]:
        return iter(self.lines)

    def need(self, *columns: str) -> None:
        """Check that the table has these columns.

        Raises
        ------
        InputError : a column is missing; the text suggests the nearest existing name.
        """
        for column in columns:
            if column not in self.columns:
                raise _missing(self.name, column, self.columns)


@contextmanager
def located(table: str, place: str) -> Iterator[None]:
    """Begin the text of an error in the block with the place of a row, unless it names the table
    already."""
    try:
        yield
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(table) else f"{place}: {text}") from None


def read(path: str | Path) -> Table:
    """Read a CSV file: UTF-8, comma-separated, a header line, at least one row.

    Raises
    ------
    InputError : the file cannot be read, is empty or not UTF-8; a column name is empty or repeated;
        a row has more or fewer cells than there are columns.
    """
    return decode(read_bytes(path), name=str(path))


def csv_text(frame: pd.DataFrame, path: str | Path | None = None) -> str:
    """Return a frame as CSV text, and write it to ``path`` if given.

    Raises
    ------
    InputError : the file cannot be written.
    """
    text = frame.to_csv(index=False, lineterminator="\n")
    if path is not None:
        write(path, text.encode())
    return text


def parquet(frame: pd.DataFrame, path: str | Path | None = None) -> bytes:
    """Return a frame as a Parquet file, and write it to ``path`` if given.

    A column that mixes text and numbers becomes text.

    Raises
    ------
    InputError : pyarrow is not installed, or the file cannot be written.
    """
    need_parquet()
    copy = frame.copy()
    for name in copy:
        kinds = {type(value) for value in copy[name]} - {type(None)}
        if copy[name].dtype == object and len(kinds) > 1:
            copy[name] = [value if value is None else str(value) for value in copy[name]]
    data = copy.to_parquet(None, engine="pyarrow", compression="zstd", index=False)
    if path is not None:
        write(path, data)
    return data


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width, two blanks apart.

    >>> aligned([["a", "1 s"], ["long", "2 s", "more"]])
    ['a     1 s', 'long  2 s  more']
    """
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    cells = ([f"{cell:{w}}" for cell, w in zip(row, widths, strict=False)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]


def has_parquet() -> bool:
    """Return whether Parquet files can be read and written."""
    return importlib.util.find_spec("pyarrow") is not None


def need_parquet() -> None:
    """Check that Parquet is available.

    Raises
    ------
    InputError : pyarrow is not installed.
    """
    if not has_parquet():
        raise InputError("Parquet needs pyarrow: pip install 'perfmodel[parquet]'")


def decode(data: bytes, *, name: str) -> Table:
    """Like :func:`read`, from bytes; ``name`` is what errors call the table."""
    refused = formats.refusal(data, name, "a table (CSV)", reads=())
    if refused is not None:
        raise refused
    try:
        text = data.decode("utf-8-sig")  # spreadsheets start a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name}: line {line}: not UTF-8 (byte {data[error.start]:#04x})"
        ) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    begin = 1
    try:
        for row in reader:
            cells = [plain(cell.strip()) for cell in row]
            if any(cells):
                rows.append((begin, cells))
            begin = reader.line_num + 1  # a quoted cell may span several lines
    except csv.Error as error:
        raise InputError(f"{name}: line {begin}: not valid CSV: {error}") from None
    if not rows:
        raise InputError(f"{name}: the file is empty; expected a header line and at least one row")
    columns = _columns(name, *rows[0])
    if len(rows) == 1:
        raise InputError(f"{name}: there are no rows below the header line")
    for line, cells in rows[1:]:
        if len(cells) != len(columns):
            raise InputError(
                f"{name}: line {line}: expected {len(columns)} cells, got {len(cells)}"
            )
    lines = (
        TableRow(name, line, dict(zip(columns, cells, strict=True))) for line, cells in rows[1:]
    )
    return Table(name, tuple(columns), tuple(lines))


def _columns(name: str, line: int, columns: list[str]) -> list[str]:
    where = f"{name}: line {line}"
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t"):
        raise InputError(f"{where}: expected commas between columns, got {columns[0]!r}")
    for i, column in enumerate(columns):
        if not column:
            raise InputError(f"{where}: column {i + 1} has no name")
        if column in columns[:i]:
            raise InputError(f"{where}: column {column!r} appears twice")
    return columns


def _missing(table: str, column: str, columns: Mapping[str, str] | tuple[str, ...]) -> InputError:
    hint = suggestion(column, columns)
    return InputError(
        f"{table}: column {column!r} is missing{hint} (columns: {', '.join(columns)})"
    )
