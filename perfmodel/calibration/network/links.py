r"""Fits a link to measured messages: latency, bandwidth, and the cost of further messages.

k messages of n bytes, sent back to back, are assumed to arrive after

.. math:: \alpha + (k - 1) \gamma + k n \beta

with k = 1 for *ping_pong* and *stream*. All three parameters are fitted together to the median of
each measurement, by the smallest sum of relative errors. Messages of medium size are left out:
their times depend on the history of the link (a token bucket or a window that filled up during a
pause), while small ones identify the latency and large ones the long-run bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.units import show
from perfmodel.calibration.network.robust import estimates
from perfmodel.calibration.statistics import Estimate, Residuals, median_interval, rounded
from perfmodel.inputs.cluster import Link
from perfmodel.measuring.measurements import Measurement

LEAST_MOVING = 0.5
"""Minimum fraction of a message's time spent moving bytes, for it to show how directions or senders
share the link."""


LEAST_RATIO = 2.0
"""Minimum ratio of the largest stream to the smallest, for them to show a latency."""

END_FACTOR = 16.0
"""Messages within this factor of the smallest count as small, those within this factor of the
largest as large."""


class LinkFit(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted link; each estimate has a 90 % interval.

    Attributes
    ----------
    latency_s : one way; not in the file if not ``latency_measured``: long streams alone do not show
        it.
    bandwidth_bytes_per_s : of payload, one way.
    per_message_s : time that each further message takes in addition to its bytes; None if not
        measured.
    duplex_fraction : rate of each direction while both send, as a fraction of the rate of one
        alone: 1 for full duplex, 0.5 for half; None if not measured.
    incast_factor : time of several senders to one receiver, over the time of their bytes on its
        link: 1 if they share it without loss; None if not measured.
    bytes : smallest and largest message in the fit of latency and bandwidth.
    residuals : relative errors of all messages, single and back to back.
    """

    latency_s: Estimate
    bandwidth_bytes_per_s: Estimate
    per_message_s: Estimate | None
    duplex_fraction: Estimate | None
    incast_factor: Estimate | None
    bytes: tuple[float, float]
    residuals: Residuals
    latency_measured: bool = True

    def link(self, nominal_bytes_per_s: float | None = None, latency_s: float = 0.0) -> Link:
        """Make a cluster's link: its nominal bandwidth, with the achieved fraction as efficiency.

        ``latency_s`` is the latency of a link whose own was not measured.
        """
        achieved = rounded(self.bandwidth_bytes_per_s.value)
        if self.latency_measured:
            latency_s = rounded(self.latency_s.value)
        if nominal_bytes_per_s is None:
            return Link(achieved, latency_s)
        if achieved > nominal_bytes_per_s:
            raise InputError(
                f"nominal: the achieved {show(achieved, 'bytes_per_s')} exceeds the nominal "
                f"{show(nominal_bytes_per_s, 'bytes_per_s')}"
            )
        return Link(nominal_bytes_per_s, latency_s, rounded(achieved / nominal_bytes_per_s))

    def seconds(self, m: Measurement) -> float | None:
        """Fitted seconds of a measured message; None for kinds that were not fitted."""
        latency_s, sent_s = self.latency_s.value, m.bytes / self.bandwidth_bytes_per_s.value
        if m.operation == "duplex" and self.duplex_fraction is not None:
            return latency_s + sent_s / self.duplex_fraction.value
        if m.operation == "incast" and self.incast_factor is not None:
            return latency_s + (m.ranks - 1) * sent_s * self.incast_factor.value
        if m.operation == "messages" and self.per_message_s is not None:
            return latency_s + (m.count - 1) * self.per_message_s.value + m.count * sent_s
        return latency_s + sent_s if m.operation in ("ping_pong", "stream") else None


def fit_link(measurements: Sequence[Measurement]) -> LinkFit:
    """Fit a link to its *ping_pong*, *stream*, *messages*, *duplex* and *incast* measurements.

    Raises
    ------
    InputError : there is one size of ping_pong, or more bytes take no longer.

    Streams of about the same size give the bandwidth only.

    >>> def sent(n, k=1, name="stream"):
    ...     seconds = 50e-6 + (k - 1) * 2e-6 + k * n / 1e9
    ...     return Measurement(operation=name, bytes=n, count=k, seconds=(seconds,))
    >>> fit = fit_link([sent(8.0), sent(1e5), sent(1e6), sent(1e7), sent(8.0, 100, "messages")])
    >>> f"{fit.latency_s.value:.3g} {fit.per_message_s.value:.3g}"
    '5e-05 2e-06'
    """
    measurements = [m for m in measurements if m.at_once == 1]
    single = [m for m in measurements if m.operation in ("ping_pong", "stream")]
    sizes = {m.bytes for m in single}
    trains = [m for m in measurements if m.operation == "messages" and m.count > 1]
    streams = bool(single) and not trains and all(m.operation == "stream" for m in single)
    if streams and max(sizes) < LEAST_RATIO * min(sizes):
        return _bandwidth_alone(single)
    if len(sizes) < 2:
        raise InputError(
            "measurements: a link needs ping_pong or stream of at least two sizes, "
            f"got {len(sizes)}"
        )
    low, high = min(sizes) * END_FACTOR, max(sizes) / END_FACTOR
    used = [*(m for m in single if m.bytes <= low or m.bytes >= high), *trains]
    latency, per_byte, *per_message = estimates(_design(used, bool(trains)), _medians(used))
    if not per_byte.value > 0.0:
        raise InputError(
            "measurements: more bytes took no longer; a bandwidth needs ping_pong or stream of "
            "larger messages"
        )

    messages = [*single, *trains]
    values = np.array([estimate.value for estimate in (latency, per_byte, *per_message)])
    predicted = _design(messages, bool(trains)) @ values

    both, slowdowns = [], []
    for m in measurements:
        senders = m.ranks - 1 if m.operation == "incast" else 1
        moving_s = senders * m.bytes * per_byte.value
        if moving_s < LEAST_MOVING * (moving_s + latency.value):
            continue
        late = [seconds - latency.value for seconds in m.seconds if seconds > latency.value]
        if m.operation == "duplex":
            both += [moving_s / seconds for seconds in late]
        elif m.operation == "incast":
            slowdowns += [seconds / moving_s for seconds in late]
    return LinkFit(
        latency_s=latency,
        bandwidth_bytes_per_s=_inverse(per_byte),
        per_message_s=per_message[0] if per_message else None,
        duplex_fraction=median_interval(both)[0] if both else None,
        incast_factor=median_interval(slowdowns)[0] if slowdowns else None,
        bytes=(min(sizes), max(sizes)),
        residuals=Residuals.of(predicted / _medians(messages) - 1.0),
    )


def _bandwidth_alone(streams: Sequence[Measurement]) -> LinkFit:
    """Fit the bandwidth to streams so long that latency does not matter."""
    sent = np.array([[m.bytes] for m in streams])
    (per_byte,) = estimates(sent, _medians(streams))
    return LinkFit(
        latency_s=Estimate(0.0, 0.0, math.inf),
        bandwidth_bytes_per_s=_inverse(per_byte),
        per_message_s=None,
        duplex_fraction=None,
        incast_factor=None,
        bytes=(float(sent.min()), float(sent.max())),
        residuals=Residuals.of(sent[:, 0] * per_byte.value / _medians(streams) - 1.0),
        latency_measured=False,
    )


def _inverse(estimate: Estimate) -> Estimate:
    """Return the estimate of a rate from that of a time."""
    high = 1.0 / estimate.low if estimate.low > 0.0 else math.inf
    return Estimate(1.0 / estimate.value, 1.0 / estimate.high, high)


def _medians(measurements: Sequence[Measurement]) -> Floats:
    return np.array([float(np.median(m.seconds)) for m in measurements])


def _design(measurements: Sequence[Measurement], trains: bool) -> Floats:
    """Coefficients of latency, seconds per byte and seconds per further message."""
    rows = [(1.0, m.count * m.bytes, m.count - 1.0) for m in measurements]
    return np.array(rows)[:, : 3 if trains else 2]
