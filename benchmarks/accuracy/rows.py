"""Rows of a CSV file as structs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from perfmodel.base.errors import InputError

Row = TypeVar("Row", bound=msgspec.Struct)


def read(path: Path, kind: type[Row], columns: Mapping[str, str] | None = None) -> list[Row]:
    """Return the rows of a file; empty fields count as missing, other columns are ignored.

    ``columns`` maps names of columns to names of fields, if they differ.

    Raises
    ------
    InputError : the file does not exist or is not UTF-8, or a row has a missing or wrong field.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found, named = [], columns or {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for row in reader:
        given = {named.get(k, k): value for k, value in row.items() if k is not None and value}
        try:
            found.append(msgspec.convert(given, kind, strict=False))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: line {reader.line_num}: {error}") from None
    return found


def read_json_lines(path: Path, *, needed: bool = True) -> Iterator[tuple[str, Any]]:
    """Return the values in a file of JSON lines, each with its location for messages.

    Raises
    ------
    InputError : the file does not exist although it is ``needed``, or a line is not JSON.
    """
    if not path.is_file():
        if not needed:
            return
        raise InputError(f"{path}: no such file")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield f"{path}: line {number}", json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {number}: not JSON: {error.msg}") from None


def say_from_fits(names: Iterable[str]) -> None:
    """Report on standard error which runs with one GPU are taken from the fits, if any."""
    listed = "; ".join(sorted(set(names)))
    if listed:
        click.echo(f"no run with one GPU, taken from the fits: {listed}", err=True)


def say_left_out(why: str, names: Iterable[str]) -> None:
    """Report on standard error which rows are not predicted, if any."""
    listed = "; ".join(sorted(set(names)))
    if listed:
        click.echo(f"{why}, left out: {listed}", err=True)
