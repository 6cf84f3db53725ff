r"""Unequal shares of a link among connections when its queue overflows (incast).

Many connections send to one receiver at the same time. Their windows fill the queue of its link,
and from then on each gets a share of the link in proportion to its window. Windows are equal if all
begin together over equal links (else see :data:`SLOWER`). When the queue overflows, one connection
loses a packet and multiplies its window by :math:`\beta`. The window grows back by :math:`\alpha`
segments per round trip, and a round trip takes as long as the queue. With n senders, a queue of q
bytes and segments of s bytes, a sender has one loss every

.. math:: T = \frac{(1 - \beta) \, q / (n s)}{\alpha}

round trips. While all senders send m bytes each there are :math:`n m / q` round trips, and so
:math:`k = n m / (q T)` losses per sender. Losses occur at random. A
window that begins at its mean, grows linearly, and is multiplied by :math:`\beta` at random times
has, averaged over the time of k losses, a variance of

.. math:: c^2 = \frac{1 - \beta}{1 + \beta} \, \frac{2}{x^2} \left( x -
   \frac{1 - e^{-(1 + \beta) x}}{1 + \beta} - 1 + e^{-x} +
   \frac{e^{-x} - e^{-(1 + \beta) x}}{\beta} \right), \quad x = (1 - \beta) k

times the square of its mean. The first factor is the long-run variance of the window. The
exponentials describe how its first and second moments relax from their initial values. Nothing here
is fitted except :data:`SLOWER`.

:math:`\beta` = 0.7 is CUBIC's, and :math:`\alpha = 3 (1 - \beta) / (1 + \beta)` is its growth for
short round trips (RFC 9438, sections 4.6 and 4.3). Queues must be longer than the round trip
without them. Losses that lead to a timeout are left out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DECREASE = 0.7
"""Factor on a window at a loss (beta)."""

GROWTH = 3.0 * (1.0 - DECREASE) / (1.0 + DECREASE)
"""Growth of a window per round trip, in segments (alpha)."""

SEGMENT_BYTES = 1448.0
"""Payload of a TCP segment with time stamps in a 1500-byte Ethernet frame."""

SLOWER = 0.4
"""Exponent of the window of a sender behind a slower link: the window is proportional to this power
of the link's rate. With 0 windows are equal, as if losses alone decided; with 1 they are as large
as the link fills them, as before the first loss. This value best predicts 22 measured runs of 2 to
6 synchronous workers in which one link had a tenth to a half of the others' rate
(docs/decisions/0030); 0.3 and 0.5 are hardly worse."""

NEARLY_EQUAL = 0.02
"""Standard deviation of the shares of connections that are taken as equal, where exactly equal ones
would keep workers in step (docs/decisions/0098): :func:`spread` of 245 MB from 8 to 16 senders is
0.01 to 0.09 with a queue of 128 to 512 KiB. Anything from 0.01 to 0.2 dissolves such a step."""

FEW = 1e-3
"""Value of x below which the first term of the series is used."""

_INCAST = 2
"""Separates these random numbers from others with the same seed."""


def losses(senders: int, sent_bytes: float, queue_bytes: float) -> float:
    """Return each sender's losses while each sends ``sent_bytes`` (k in the module's text).

    >>> round(losses(senders=8, sent_bytes=2.65e6, queue_bytes=2**19), 2)
    1.58
    """
    window = queue_bytes / (senders * SEGMENT_BYTES)
    apart = (1.0 - DECREASE) * window / GROWTH
    return senders * sent_bytes / queue_bytes / apart


def spread(senders: int, sent_bytes: float, queue_bytes: float) -> float:
    """Return the standard deviation of a sender's share of the link, relative to its mean.

    >>> round(spread(senders=8, sent_bytes=2.65e6, queue_bytes=2**19), 2)
    0.19
    """
    x = (1.0 - DECREASE) * losses(senders, sent_bytes, queue_bytes)
    if x < FEW:  # first term of the series, because differences would cancel
        return math.sqrt((1.0 - DECREASE) * x / 3.0)
    once, twice = math.exp(-x), math.exp(-(1.0 + DECREASE) * x)
    lasting = x - (1.0 - twice) / (1.0 + DECREASE) - 1.0 + once + (once - twice) / DECREASE
    return math.sqrt((1.0 - DECREASE) / (1.0 + DECREASE) * 2.0 * lasting) / x


def parts(
    rates: NDArray[np.float64], spread: float, *, seed: int, link: int
) -> NDArray[np.float64]:
    """Return each sender's share of a full link, as a multiple of the median, (senders,).

    The shares are those of :func:`drawn` with this ``spread``, less for senders with lower
    ``rates``.

    >>> parts(np.ones(3), 0.09, seed=0, link=0).round(2).tolist()
    [0.92, 1.09, 1.0]
    >>> parts(np.array([1.0, 0.25, 1.0]), 0.09, seed=0, link=0).round(2).tolist()
    [0.92, 0.63, 1.0]
    """
    slower: NDArray[np.float64] = (rates / rates.max()) ** SLOWER
    return drawn(len(rates), spread, seed=seed, link=link) * slower


def drawn(senders: int, spread: float, *, seed: int, link: int) -> NDArray[np.float64]:
    """Return equally likely values of a lognormal distribution with median 1, (senders,).

    ``spread`` is its standard deviation over its mean. Their order is random, for each ``link`` and
    seed.

    >>> drawn(3, 0.02, seed=0, link=0).round(3).tolist()
    [0.981, 1.02, 1.0]
    """
    from statistics import NormalDist  # slow to import, and rarely needed

    sigma = math.sqrt(math.log1p(spread**2))
    normal = NormalDist()
    values = [math.exp(sigma * normal.inv_cdf((i + 0.5) / senders)) for i in range(senders)]
    sequence = np.random.SeedSequence([seed, _INCAST, link])
    return np.random.Generator(np.random.Philox(sequence)).permutation(np.array(values))
