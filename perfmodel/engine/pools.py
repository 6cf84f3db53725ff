"""Pools of transfers that share links, and the order in which their transfers end."""

from __future__ import annotations

from perfmodel.engine.codes import NONE, Id
from perfmodel.engine.heaps import pop, push, remove, update
from perfmodel.engine.world import World

MIXED = -2
"""Owner of a link that routes of several pools cross."""
INFINITE = float("inf")
ROUNDING = 1.0 + 1e-12
"""Tolerance within which a rate equals its limit up to rounding."""

AT_ONCE = 2.0**-46
"""Relative difference within which two events are one instant; the event loop's is the same."""

# -- service -----------------------------------------------------------------------------------


def advance_service(w: World, pool: int) -> None:
    """Update a pool's service to the current time."""
    p = w.pools[pool]
    now = w.state[0].now
    if p.n > 0:
        p.service += (now - p.at) * p.rate
    p.at = now


def bring_up(w: World, route: int) -> None:
    """Update the bytes served to each transfer of a route to the current time."""
    r = w.routes[route]
    advance_service(w, r.home)
    service = w.pools[r.home].service
    r.served += (service - r.joined) * r.weight
    r.joined = service


def set_rate(w: World, pool: int, rate: float) -> None:
    """Set the rate of a pool from now on."""
    p = w.pools[pool]
    if rate != p.rate:
        advance_service(w, pool)
        p.rate = rate


def set_key(w: World, route: int) -> None:
    """Sort a route into its pool by the service at which its next transfer ends."""
    r = w.routes[route]
    p = w.pools[r.home]
    left = r.level - r.served
    p.n = update(w.members, w.keys, w.places, p.first, p.n, route, r.joined + left / r.weight)


def join_pool(w: World, route: int, pool: int) -> None:
    """Add a route to a pool, at the pool's rate."""
    r, p = w.routes[route], w.pools[pool]
    if p.n == 0:
        p.service = 0.0
        p.at = w.state[0].now
    else:
        advance_service(w, pool)
    r.home = pool
    r.joined = p.service
    set_key(w, route)
    if p.rate > 0.0:
        schedule_flow(w, pool)


def leave_pool(w: World, route: int) -> None:
    """Remove a route from its pool."""
    p = w.pools[w.routes[route].home]
    p.n = remove(w.members, w.keys, w.places, p.first, p.n, route)


# -- loads and owners --------------------------------------------------------------------------


def note_change(w: World, route: int) -> None:
    """Mark a route for a rate update at the end of the instant."""
    s, r = w.state[0], w.routes[route]
    if r.changed == 0:
        r.changed = 1
        w.changed[s.changed] = route
        s.changed += 1


def load_links(w: World, route: int) -> None:
    """Add a change in a route's number of transfers to the load of its links."""
    r = w.routes[route]
    step = r.count - r.settled
    if step == 0:
        return
    for e in range(r.first, r.last):
        x = w.paths[e]
        link = w.links[x.link]
        link.load += step * r.weight * x.units
        if r.settled == 0:
            if link.n == 0:
                link.busy = w.state[0].now
            x.at = link.first + link.n
            link.n += 1
            w.active[x.at].path, w.active[x.at].route = e, route
        elif r.count == 0:
            link.n -= 1
            last, gap = w.active[link.first + link.n], w.active[x.at]
            gap.path, gap.route, gap.load = last.path, last.route, last.load
            w.paths[last.path].at = x.at
            if link.n == 0:
                link.load = 0.0
                link.owner = NONE
                if link.busy < w.state[0].now:
                    link.idle = w.state[0].now
            continue
        w.active[x.at].load = r.count * r.weight * x.units


def passed_at_once(w: World, route: int, amount: float) -> float:
    """Return how much of a transfer its links let pass at once, because they were idle before.

    Each link has a bucket of the route's ``burst`` bytes, which fills at the link's capacity while
    the link is idle; ``idle`` is when it was empty. Nothing passes at once if a link is busy.
    """
    r, now = w.routes[route], w.state[0].now
    passing = min(r.burst, amount)
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        saved = (now - link.idle) * link.capacity
        passing = min(passing, saved if link.n == 0 or link.busy == now else 0.0)
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        saved = min((now - link.idle) * link.capacity, r.burst)
        link.idle = now - (saved - passing) / link.capacity if passing == amount else now
    return float(passing)


def queued_s(w: World, route: int) -> float:
    """Return how long a message without bytes waits behind what is queued on its busy links.

    At most the route's ``queued`` bytes of the transfers under way are in the queue of a link.
    """
    late, r = 0.0, w.routes[route]
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        left = 0.0
        for k in range(link.first, link.first + link.n):
            other = w.active[k].route
            if w.places[other] >= 0:
                bring_up(w, other)
            left += w.routes[other].level - w.routes[other].served
        late += min(left, r.queued) / link.capacity
    return late


def find_home(w: World, route: int) -> int:
    """Return the pool that a new route can join without filling links again, else NONE.

    It is the only pool of a link on its way, or else that of the tightest of these links, if no
    other route crosses this link.
    """
    r = w.routes[route]
    home, tightest, least = NONE, NONE, INFINITE
    for e in range(r.first, r.last):
        x = w.paths[e].link
        link = w.links[x]
        if (link.owner == x or link.owner == MIXED) and w.pools[x].n > 0:
            if home != NONE:
                return NONE
            home = x
        share = link.capacity / link.load
        if share < least:
            tightest, least = x, share
    if home != NONE:
        return home if w.pools[home].independent != 0 else NONE
    if tightest == NONE or w.links[tightest].owner != NONE:
        return NONE
    w.pools[tightest].independent = 1
    w.pools[tightest].limit = INFINITE
    return tightest


def next_rate(w: World, pool: int) -> float:
    """Return the rate of a pool after this instant, unless links have to be filled."""
    if w.pools[pool].noted == 0:
        return float(w.pools[pool].rate)
    return float(w.links[pool].capacity / w.links[pool].load)


def own_links(w: World, route: int) -> None:
    """Record on the links of a route that its pool crosses them."""
    r = w.routes[route]
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        if link.owner == NONE:
            link.owner = r.home
        elif link.owner != r.home:
            link.owner = MIXED


def tighten_path(w: World, route: int) -> None:
    """Lower the limits of pools for the sake of the links of a route of an independent pool."""
    r = w.routes[route]
    p = w.pools[r.home]
    limit = min(p.limit, r.cap)
    for e in range(r.first, r.last):
        x = w.paths[e].link
        if x == r.home:
            continue
        if w.links[x].owner >= 0:
            limit = min(limit, w.links[x].capacity / w.links[x].load)
        else:
            tighten(w, x)
    p.limit = min(p.limit, limit)


def tighten(w: World, x: Id) -> None:
    """Lower the limits of independent pools whose routes cross a link that no pool has for its own,
    so that the link is not full as long as none of their rates is above its limit.

    Limits are not raised when a load shrinks. If one is too low, it only causes a filling, which
    corrects it.
    """
    link = w.links[x]
    fair = link.capacity / link.load
    if link.owner >= 0:
        w.pools[link.owner].limit = min(w.pools[link.owner].limit, fair)
        return
    total, highest, independent = 0.0, 0.0, 0
    for k in range(link.first, link.first + link.n):
        a = w.active[k]
        home: Id = w.routes[a.route].home
        independent += w.pools[home].independent
        rate = next_rate(w, home)
        total += a.load * rate
        highest = max(highest, rate)
    if independent == 0:
        return
    for k in range(link.first, link.first + link.n):
        pool: Id = w.routes[w.active[k].route].home
        p = w.pools[pool]
        if p.independent != 0:
            # all rates may rise to the fair one, or else all in proportion
            limit = fair
            if highest > fair:
                limit = next_rate(w, pool) * (link.capacity / total)
            p.limit = min(p.limit, limit)


def push_flow(w: World, route: Id, op: Id, level: float) -> None:
    """Add a transfer to a route; the first to end is stored separately, the others in a heap by
    level."""
    r = w.routes[route]
    if level < r.level or (level == r.level and op < r.lead):
        op, r.lead = r.lead, op
        level, r.level = r.level, level
    push(w.flying, w.levels, r.flow, r.count - 1, op, level)


def pop_flow(w: World, route: Id) -> None:
    """Remove the transfer that ends first."""
    r = w.routes[route]
    r.lead, r.level = w.flying[r.flow], w.levels[r.flow]
    pop(w.flying, w.levels, r.flow, r.count - 2)


def schedule_flow(w: World, pool: int) -> None:
    """Put the end of a pool's next transfer into the agenda, a heap ordered by (time, pool)."""
    s, p = w.state[0], w.pools[pool]
    if p.n == 0:
        unschedule_flow(w, pool)
        return
    left = w.keys[p.first] - p.service
    time = max(p.at + max(left, 0.0) / p.rate, s.now)
    schedule(w, pool, time)


def schedule(w: World, pool: int, time: float) -> None:
    """Put a pool into the agenda, or move it there."""
    s = w.state[0]
    s.busy_pools = update(w.agenda, w.due, w.pool_places, 0, s.busy_pools, pool, time)


def unschedule_flow(w: World, pool: int) -> None:
    """Remove a pool from the agenda."""
    s = w.state[0]
    s.busy_pools = remove(w.agenda, w.due, w.pool_places, 0, s.busy_pools, pool)
