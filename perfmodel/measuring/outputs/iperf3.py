"""Reads the output of ``iperf3 --json``: the rate of a long transfer over TCP.

Its round-trip times are those of a full link, so it says nothing about latency. See
https://software.es.net/iperf/.
"""

from __future__ import annotations

import msgspec

from perfmodel.base.errors import InputError, number
from perfmodel.base.files import ready
from perfmodel.measuring.measurements import Measurement, Measurements
from perfmodel.measuring.outputs.lines import measured


class _Sum(msgspec.Struct, frozen=True):
    bytes: float = 0.0
    seconds: float = 0.0


class _TestStart(msgspec.Struct, frozen=True):
    protocol: str = "TCP"
    num_streams: int = 1
    bidir: int = 0


class _Start(msgspec.Struct, frozen=True):
    version: str = "iperf3"
    test_start: _TestStart = _TestStart()


class _End(msgspec.Struct, frozen=True):
    sum_received: _Sum | None = None


class _Output(msgspec.Struct, frozen=True):
    start: _Start = _Start()
    end: _End = _End()
    error: str = ""


def parse(text: str, name: str) -> Measurements:
    """Make a measurement of the output of iperf3: what was received, as one transfer.

    Parallel connections (``--parallel``) count together, because they share the link.
    """
    try:
        output = msgspec.json.decode(text, type=ready(_Output))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{name}: cannot read the output of iperf3: {error}") from None
    test, received = output.start.test_start, output.end.sum_received
    if output.error:
        raise InputError(f"{name}: iperf3 failed: {output.error}")
    if test.protocol.upper() != "TCP":
        raise InputError(
            f"{name}: iperf3 sent over {test.protocol} at a given rate; measure the bandwidth over "
            "TCP, without --udp"
        )
    if test.bidir:
        raise InputError(f"{name}: iperf3 sent both ways at once; measure one way, without --bidir")
    if received is None or not received.bytes:
        raise InputError(f"{name}: the output of iperf3 has no end.sum_received; is it cut?")
    number(f"{name}: end.sum_received.seconds", received.seconds, above=0.0)
    more = f", {test.num_streams} connections together" if test.num_streams > 1 else ""
    sent = Measurement(operation="stream", bytes=received.bytes, seconds=(received.seconds,))
    return measured(name, "tcp", f"{output.start.version},", [sent], more=more)
