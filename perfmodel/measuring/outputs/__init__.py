"""Reads what other programs print about networks they measured, as measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perfmodel.base import files, formats
from perfmodel.base.errors import InputError
from perfmodel.measuring.measurements import Measurements, read_measurements
from perfmodel.measuring.outputs import iperf3, nccl_tests, osu, perftest
from perfmodel.measuring.outputs.lines import measured

READERS: Mapping[str, Callable[[str, str], Measurements]] = {
    formats.NCCL_TESTS: nccl_tests.parse,
    formats.IPERF3: iperf3.parse,
    formats.OSU: osu.parse,
    formats.PERFTEST: perftest.parse,
}
"""Makes measurements of the text of a file and the file's name, by the name of its format."""


def reads(path: str | Path) -> bool:
    """Return whether a file is the output of another program that :func:`read` reads."""
    kind = formats.recognise(files.read_bytes(path))
    return kind is not None and kind.name in READERS


def read(path: str | Path) -> Measurements:
    """Read a measurement file, or the output of a program in :data:`READERS`.

    Raises
    ------
    InputError : the file cannot be read; or its output is cut, or of something that no cluster has.
    """
    data = files.read_bytes(path)
    kind = formats.recognise(data)
    if kind is None and not files.is_json(data) and Path(path).suffix != ".toml":
        raise InputError(
            f"{path}: not known what it is; read are measurement files, the output of nccl-tests, "
            "iperf3 --json, OSU and perftest, and tables (.csv)"
        )
    if kind is None or kind.name not in READERS:
        return read_measurements(path)
    return READERS[kind.name](formats.text_of(data) or "", str(path))


__all__ = ["READERS", "measured", "read", "reads"]
