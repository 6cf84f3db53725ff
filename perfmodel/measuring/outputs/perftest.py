"""Reads the output of perftest: ``ib_write_bw``, ``ib_read_bw``, ``ib_send_bw`` and latencies.

A title (``RDMA_Write BW Test``), a header with units, and lines of size, iterations and values. See
https://github.com/linux-rdma/perftest (``src/perftest_parameters.c``): MB and MiB are both 2**20
bytes, and Gb are 10**9 bits. The output names no ranks: it measures the link of two nodes.
"""

from __future__ import annotations

import re

from perfmodel.base.errors import InputError
from perfmodel.measuring.measurements import Measurement, Measurements
from perfmodel.measuring.outputs.lines import OutputLine, measured, numbered

UNITS = {"MB": 2.0**20, "MiB": 2.0**20, "Gb": 1.25e8}
"""Bytes per second of a unit of bandwidth."""

_TITLE = re.compile(
    r"(RDMA_Write|RDMA_Read|Send|Atomic\S*)( Bidirectional)? (BW|Latency|.*) Test\b"
)
_HEADER = re.compile(r"#bytes\s+#iterations\s")
_AVERAGE = re.compile(r"BW average\[(\w+)/sec\]")

BW_AVERAGE = 3
"""Column of the average bandwidth, after size, iterations and peak."""


def parse(text: str, name: str) -> Measurements:
    """Make measurements of the output of perftest; ``name`` is the file's.

    All messages of a bandwidth test count as one transfer: they follow each other without waiting.
    """
    title = header = None
    measurements: list[Measurement] = []
    for line in numbered(text, name):
        if _TITLE.match(line.text):
            title, header = line, None
        elif _HEADER.match(line.text):
            header = line
        elif re.match(r"\d+(\s+\d+\s|\s*$|\s+\d+$)", line.text):
            measurements.append(_measurement(title, header, line))
    if not measurements:
        place = (header or title or OutputLine(f"{name}: line 1", "")).place
        raise InputError(
            f"{place}: expected lines of size, iterations and values of perftest below; is it cut?"
        )
    return measured(name, "verbs", "perftest,", measurements)


def _measurement(
    title: OutputLine | None, header: OutputLine | None, line: OutputLine
) -> Measurement:
    named = None if title is None else _TITLE.match(title.text)
    if title is None or named is None:
        raise line.unexpected("a title such as 'RDMA_Write BW Test' above the rows")
    if header is None:
        raise line.unexpected("a header '#bytes #iterations ...' above the rows")
    size = line.number(0, "a size in bytes")
    iterations = line.number(1, "a number of iterations")
    if unit := _AVERAGE.search(header.text):
        if unit[1] not in UNITS:
            raise header.unexpected(f"a bandwidth in {', '.join(UNITS)} per second")
        rate = line.number(BW_AVERAGE, "size, iterations, peak and average bandwidth")
        directions = 2 if named[2] else 1  # the printed rate is of both ways together
        moved = size * iterations
        return Measurement(
            operation="duplex" if named[2] else "stream",
            bytes=moved,
            seconds=(directions * moved / (rate * UNITS[unit[1]]),),
        )
    columns = header.text.split()
    if named[3] != "Latency" or named[1] not in ("RDMA_Write", "Send"):
        raise title.unexpected("a BW test, or a Latency test of RDMA_Write or Send")
    if "t_typical[usec]" not in columns:
        raise header.unexpected("a column t_typical[usec]")
    typical_us = line.number(columns.index("t_typical[usec]"), "a typical time in microseconds")
    return Measurement(operation="ping_pong", bytes=size, seconds=(typical_us * 1e-6,))
