"""Numbered lines of the output of another program, the numbers in them, and what they make."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Source
from perfmodel.measuring.measurements import Measurement, Measurements

_TAG = re.compile(r"^(\[\d+,\d+\]<std\w+>|\d+):\s?")  # mpirun --tag-output, srun --label


class OutputLine(NamedTuple):
    """A line: file and line number as in error messages, and its text without launchers' tags."""

    place: str
    text: str

    @property
    def cells(self) -> list[str]:
        """The words of the line."""
        return self.text.split()

    def number(self, index: int, what: str) -> float:
        """Return cell ``index`` as a number above 0; ``what`` names it, with its unit."""
        cells = self.cells
        try:
            value = float(cells[index])
        except (IndexError, ValueError):
            value = math.nan
        if not 0.0 < value < math.inf:
            raise self.unexpected(what)
        return value

    def unexpected(self, what: str) -> InputError:
        """Return the error for a line that is not ``what`` was expected."""
        return InputError(f"{self.place}: expected {what}, got {self.text[:60]!r}; is it cut?")


def numbered(text: str, name: str) -> Iterator[OutputLine]:
    """Yield the lines of the text of file ``name``, without spaces around them."""
    for number, line in enumerate(text.splitlines(), start=1):
        yield OutputLine(f"{name}: line {number}", _TAG.sub("", line.strip()).strip())


def measured(
    file: str,
    backend: str,
    program: str,
    measurements: Iterable[Measurement],
    *,
    nodes: tuple[int, ...] = (),
    more: str = "",
) -> Measurements:
    """Measurements of a file that a ``program`` printed, with its name; ``more`` is appended to the
    text about their source."""
    path = Path(file)
    return Measurements(
        name=path.stem.strip("<>"),
        backend=backend,
        measurements=tuple(measurements),
        nodes=nodes,
        source=Source("measured", f"{program} {path.name}{more}"),
    )
