"""Reads the output of the OSU micro-benchmarks, such as ``osu_latency`` or ``osu_allreduce``.

A title (``# OSU MPI Latency Test v7.3``), a header with the unit, and lines of size and value. The
output does not name ranks or nodes: those of a collective are read from a line ``# ranks: 4``, or
from the ``mpirun`` or ``srun`` command above the title; ``# nodes: 1`` says that the ranks share
nodes. See https://mvapich.cse.ohio-state.edu/benchmarks/ (``c/mpi/pt2pt``, ``c/mpi/collective``).
"""

from __future__ import annotations

import re

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.measuring.measurements import COLLECTIVES, Measurement, Measurements, Operation
from perfmodel.measuring.outputs.lines import OutputLine, measured, numbered

TESTS: dict[str, Operation] = {
    "Latency": "ping_pong",
    "Bandwidth": "stream",
    "Bi-Directional Bandwidth": "duplex",
    "Allreduce Latency": "all_reduce",
    "Allgather Latency": "all_gather",
    "Reduce_scatter Latency": "reduce_scatter",
    "Broadcast Latency": "broadcast",
}
"""Operations by the names of tests in titles."""

WINDOW = 64
"""Messages that ``osu_bw`` and ``osu_bibw`` send before they wait for an answer."""

FEWEST_BULK_BYTES = 4**8
"""Windows of smaller messages (65.5 kB) show the cost of messages, those of larger ones a rate."""

MOST_RANKS = 10**6

_TITLE = re.compile(r"# OSU MPI\S*\s+(.+?)\s+Test\b")
_HEADER = re.compile(r"#\s*Size\b.*?\((us|MB/s)\)")
_RANKS = re.compile(
    r"#\s*ranks:\s*(\d{1,7})\b|"
    r"\b(?:mpirun|mpiexec|srun)\b.*?\s(?:-np?|--ntasks)[ =]?(\d{1,7})\b.*osu_"
)
_NODES = re.compile(r"#\s*nodes:\s*(\d{1,7})\b")


class _BenchmarkOutput(msgspec.Struct):
    """A test: its title, its operation, ranks (0 if unknown), unit ("" before its header)."""

    title: OutputLine
    operation: Operation
    ranks: int
    unit: str = ""
    measurements: list[Measurement] = []


def parse(text: str, name: str) -> Measurements:
    """Make measurements of the output of OSU benchmarks; ``name`` is the file's."""
    tests: list[_BenchmarkOutput] = []
    ranks, nodes = 0, 0
    for line in numbered(text, name):
        if named := _RANKS.search(line.text):
            ranks = int(named[1] or named[2])
        elif named := _NODES.match(line.text):
            nodes = int(named[1])
        elif named := _TITLE.match(line.text):
            if named[1] not in TESTS:
                raise InputError(
                    f"{line.place}: expected a test of OSU in {', '.join(TESTS)}, got {named[1]!r}"
                )
            tests.append(_BenchmarkOutput(line, TESTS[named[1]], ranks))
        elif tests and (header := _HEADER.match(line.text)):
            tests[-1].unit = header[1]
        elif tests and re.match(r"\d+(\s|$)", line.text):
            tests[-1].measurements += _measurements(tests[-1], line)
    if not tests:
        raise InputError(f"{name}: line 1: expected a title such as '# OSU MPI Latency Test v7.3'")
    for test in tests:
        if not test.measurements:
            raise InputError(
                f"{test.title.place}: expected lines of size and value below "
                f"{test.title.text!r}; is it cut?"
            )
    most = max(m.ranks for test in tests for m in test.measurements)
    if nodes > most:
        raise InputError(f"{name}: expected at most {most} nodes for {most} ranks, got {nodes}")
    measurements = [measurement for test in tests for measurement in test.measurements]
    at = tuple(rank * nodes // most for rank in range(most)) if nodes else ()
    return measured(name, "mpi", "OSU micro-benchmarks,", measurements, nodes=at)


def _measurements(test: _BenchmarkOutput, line: OutputLine) -> list[Measurement]:
    """Return the measurement of a row; none for an empty message."""
    operation: Operation = test.operation
    unit = "MB/s" if operation in ("stream", "duplex") else "us"
    if test.unit != unit:
        raise line.unexpected(f"a header '# Size ... ({unit})' above the rows")
    if line.cells[0] == "0":
        return []
    size = line.number(0, "a size in bytes")
    value = line.number(1, f"a size and a value in {unit}")
    seconds, ranks, count = value * 1e-6, 2, 1
    if operation in COLLECTIVES:
        ranks = test.ranks
        if not 2 <= ranks <= MOST_RANKS:
            raise InputError(
                f"{test.title.place}: expected the number of ranks, at least 2, above the title: "
                "write a line such as '# ranks: 4'"
            )
        size *= ranks if operation == "all_gather" else 1  # OSU counts what one rank sends
    elif operation != "ping_pong":
        directions = 2 if operation == "duplex" else 1  # the printed rate is of both ways together
        seconds = directions * WINDOW * size / (value * 1e6)
        if size >= FEWEST_BULK_BYTES:
            size *= WINDOW
        elif operation == "duplex":
            return []
        else:
            operation, count = "messages", WINDOW
    return [
        Measurement(operation=operation, bytes=size, seconds=(seconds,), ranks=ranks, count=count)
    ]
