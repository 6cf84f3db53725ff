"""Rows of a CSV file as structs."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from perfmodel.errors import InputError

Row = TypeVar("Row", bound=msgspec.Struct)


def read(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file; empty fields are as if they were not there, other columns are ignored.

    Raises
    ------
    InputError : there is no such file, or a row lacks a field or has a wrong one.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            given = {key: value for key, value in row.items() if key is not None and value}
            try:
                found.append(msgspec.convert(given, kind, strict=False))
            except msgspec.ValidationError as error:
                raise InputError(f"{path}: line {reader.line_num}: {error}") from None
    return found


def say_left_out(why: str, names: Iterable[str]) -> None:
    """Say on standard error which rows are not predicted, if any."""
    listed = "; ".join(sorted(set(names)))
    if listed:
        click.echo(f"{why}, left out: {listed}", err=True)
