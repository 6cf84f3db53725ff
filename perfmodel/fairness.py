"""Max-min fair rates of the transfers that share links (progressive filling)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def fair_rates(
    routes: Iterable[int],
    links_of: Sequence[Sequence[int]],
    flows: Sequence[int],
    capacity: Sequence[float],
    cap: Sequence[float],
    routes_on: Sequence[Mapping[int, None]],
) -> dict[int, float]:
    """Rate of each flow on each route, such that no flow can gain without a slower one losing.

    All flows on one route get the same rate. Links fill together; the link with the least left
    per unfinished flow fixes the rate of the flows on it, then the rest go on.

    Parameters
    ----------
    routes : a set of routes closed under sharing a link.
    links_of, flows, cap : by route: its links, how many flows are on it, their rate cap (bytes/s).
    capacity, routes_on : by link: bytes/s, and the routes that use it and carry flows.

    References
    ----------
    Bertsekas, Gallager, "Data Networks", 2nd ed., section 6.5.2 (max-min flow control).
    """
    rates: dict[int, float] = {}
    open_routes = dict.fromkeys(routes)
    load: dict[int, int] = {}
    for route in open_routes:
        n = flows[route]
        for link in links_of[route]:
            load[link] = load.get(link, 0) + n
    left = {link: capacity[link] for link in load}
    while open_routes:
        share, tightest = float("inf"), -1
        for link, n in load.items():
            if n and left[link] / n < share:
                share, tightest = left[link] / n, link
        capped = [route for route in open_routes if cap[route] < share]
        if capped:
            slowest = min(cap[route] for route in capped)
            fixed = [route for route in capped if cap[route] == slowest]
            share = slowest
        else:
            fixed = [route for route in routes_on[tightest] if route in open_routes]
        for route in fixed:
            rates[route] = share
            del open_routes[route]
            n = flows[route]
            for link in links_of[route]:
                load[link] -= n
                left[link] -= n * share
    return rates
