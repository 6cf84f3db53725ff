"""Errors of the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from perfmodel.base.errors import InputError


@contextmanager
def located(table: str, place: str) -> Iterator[None]:
    """Begin the text of an error in the block with the place of a row, unless it names the table
    already."""
    try:
        yield
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(table) else f"{place}: {text}") from None
