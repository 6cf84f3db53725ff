"""The documents that the sequences of a job are packed from, as users give them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base import files
from perfmodel.base.errors import InputError, number
from perfmodel.base.provenance import Assumption
from perfmodel.base.units import is_number
from perfmodel.theory.packing import MOST_SPREAD, Documents

if TYPE_CHECKING:
    from pathlib import Path

OF_DOCUMENTS = ("document_length", "document_spread", "document_lengths")
"""Arguments of :func:`perfmodel.make_job` that define documents."""

SPREAD = 1.0
"""Spread of lengths of which only the mean is known: that of the exponential distribution, which
has the largest entropy for a mean."""

LONGEST = 1e9
"""Largest length of a document, in tokens; a limit that catches typing errors."""


def documents_of(
    arguments: Mapping[str, Any],
) -> tuple[Documents | None, tuple[Assumption, ...]]:
    """Return the documents that arguments of :func:`perfmodel.make_job` define, and assumptions;
    None if sequences are whole.

    Raises
    ------
    InputError : an argument is out of range, needs another, or contradicts it; a file of lengths
        cannot be read.
    """
    length, spread, lengths = (arguments.get(name) for name in OF_DOCUMENTS)
    if lengths is not None:
        if length is not None or spread is not None:
            raise InputError(
                "document_lengths: not with document_length or document_spread, which it replaces"
            )
        known = lengths
        if isinstance(lengths, (str, os.PathLike)):
            known = read_lengths(os.fspath(lengths))
        return Documents.of(tuple(known)), ()
    if length is None:
        if spread is not None:
            raise InputError("document_spread: needs document_length")
        return None, ()
    mean = number("document_length", length, at_least=1.0, at_most=LONGEST)
    if spread is not None:
        return Documents(mean, number("document_spread", spread, at_most=MOST_SPREAD)), ()
    why = "default: as of exponential lengths"
    return Documents(mean, SPREAD), (Assumption("document_spread", SPREAD, "", why),)


def read_lengths(path: str | Path) -> Sequence[float]:
    """Read the lengths of documents in tokens: one a line, or those of the column ``tokens`` or
    ``length`` of a CSV file with a header; of a file with one column its header may be any.

    Raises
    ------
    InputError : the file cannot be read, has no length, or a line is no length from 1 on.
    """
    text = files.without_mark(files.read_bytes(path)).decode(errors="replace")
    lines = text.splitlines()
    rows = [(place, line.strip()) for place, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{path}: expected lengths of documents in tokens, one a line; got none")
    cells = [cell.strip() for cell in rows[0][1].split(",")]
    column = 0
    if not is_number(cells[0]) or len(cells) > 1:
        known = [k for k, cell in enumerate(cells) if cell.lower() in ("tokens", "length")]
        if not known and len(cells) > 1:
            raise InputError(
                f"{path}: line {rows[0][0]}: expected a column 'tokens' or 'length', got "
                f"{', '.join(cells)}"
            )
        column, rows = (known or [0])[0], rows[1:]
        if not rows:
            raise InputError(f"{path}: expected lengths below the header; got none")
    lengths = []
    for place, line in rows:
        parts = line.split(",")
        text = parts[column].strip() if column < len(parts) else ""
        where = f"{path}: line {place}"
        if not is_number(text):
            raise InputError(f"{where}: expected a length in tokens, got {text!r}")
        lengths.append(number(where, float(text), at_least=1.0, at_most=LONGEST))
    return lengths
