"""Pools of transfers that share links, and the heaps that order them."""

from __future__ import annotations

from perfmodel.engine.codes import NONE, Id
from perfmodel.engine.world import World

MIXED = -2
"""Owner of a link that several pools share."""
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
    first, place = w.pools[r.home].first, w.places[route]
    left = r.level - r.served
    key = r.joined + left / r.weight
    later: bool = key >= w.keys[first + place]
    w.keys[first + place] = key
    if later:
        _sink(w, first, w.pools[r.home].n, place)
    else:
        _rise(w, first, place)


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
    w.places[route] = p.n
    w.members[p.first + p.n] = route
    w.keys[p.first + p.n] = INFINITE
    p.n += 1
    set_key(w, route)
    if p.rate > 0.0:
        schedule_flow(w, pool)


def leave_pool(w: World, route: int) -> None:
    """Remove a route from its pool."""
    p = w.pools[w.routes[route].home]
    p.n -= 1
    last = w.members[p.first + p.n]
    place = w.places[route]
    w.places[route] = NONE
    if last != route:
        w.members[p.first + place] = last
        w.keys[p.first + place] = w.keys[p.first + p.n]
        _sink(w, p.first, p.n, place)
        _rise(w, p.first, w.places[last])


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
            continue
        w.active[x.at].load = r.count * r.weight * x.units


def disown(w: World, route: int) -> None:
    """Clear the owners of links that a route has left empty."""
    r = w.routes[route]
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        if link.n == 0:
            link.owner = NONE


def find_home(w: World, route: int) -> int:
    """Return the pool that a new route can join without filling links again, else NONE.

    No other pool may share the links of that pool.
    """
    r = w.routes[route]
    home, free = NONE, 0
    tightest, least = NONE, INFINITE
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        if link.owner == NONE:
            free += 1
        elif link.owner == MIXED or (home != NONE and link.owner != home):
            return NONE
        else:
            home = link.owner
        share = link.capacity / link.load
        if share < least:
            tightest, least = w.paths[e].link, share
    if free == r.last - r.first:
        home = tightest
        if home == NONE:
            return NONE
        w.pools[home].limit = INFINITE
    found = False
    for e in range(r.first, r.last):
        if w.paths[e].link == home:
            found = True
    if not found:
        return NONE
    for e in range(r.first, r.last):
        w.links[w.paths[e].link].owner = home
    return home


def tighten(w: World, route: int) -> None:
    """Lower the limit of a route's pool to the route's cap, and to where its other links are full.

    The limit is not raised when a load shrinks. If it is too low, it only causes a filling, which
    corrects it.
    """
    r = w.routes[route]
    limit = min(w.pools[r.home].limit, r.cap)
    for e in range(r.first, r.last):
        x = w.paths[e].link
        if x != r.home:
            limit = min(limit, w.links[x].capacity / w.links[x].load)
    w.pools[r.home].limit = limit


def push_flow(w: World, route: Id, op: Id, level: float) -> None:
    """Add a transfer to a route; the first to end is stored separately, the others in a heap by
    level."""
    r = w.routes[route]
    if level < r.level or (level == r.level and op < r.lead):
        op, r.lead = r.lead, op
        level, r.level = r.level, level
    first, i = r.flow, r.count - 1
    while i > 0:
        parent = (i - 1) >> 1
        other, x = w.flying[first + parent], w.levels[first + parent]
        if x < level or (x == level and other < op):
            break
        w.flying[first + i], w.levels[first + i] = other, x
        i = parent
    w.flying[first + i], w.levels[first + i] = op, level


def pop_flow(w: World, route: Id) -> None:
    """Remove the transfer that ends first."""
    r = w.routes[route]
    first, n = r.flow, r.count - 2
    r.lead, r.level = w.flying[first], w.levels[first]
    op, level = w.flying[first + n], w.levels[first + n]
    i = 0
    child: Id = 1
    while child < n:
        if child + 1 < n:
            a, b = w.levels[first + child], w.levels[first + child + 1]
            if a == b:
                child += w.flying[first + child + 1] < w.flying[first + child]
            else:
                child += b < a
        other, x = w.flying[first + child], w.levels[first + child]
        if level < x or (level == x and op < other):
            break
        w.flying[first + i], w.levels[first + i] = other, x
        i = child
        child = 2 * i + 1
    w.flying[first + i], w.levels[first + i] = op, level


def _rise(w: World, first: int, i: int) -> None:
    """Sift a member of a pool up, in order of (key, route)."""
    route, key = w.members[first + i], w.keys[first + i]
    while i > 0:
        parent = (i - 1) >> 1
        other, x = w.members[first + parent], w.keys[first + parent]
        if x < key or (x == key and other < route):
            break
        w.members[first + i] = other
        w.keys[first + i] = x
        w.places[other] = i
        i = parent
    w.members[first + i] = route
    w.keys[first + i] = key
    w.places[route] = i


def _sink(w: World, first: int, n: int, i: int) -> None:
    """Sift a member of a pool down."""
    route, key = w.members[first + i], w.keys[first + i]
    while True:
        child: Id = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n:
            a, b = w.keys[first + child], w.keys[first + child + 1]
            if a == b:
                child += w.members[first + child + 1] < w.members[first + child]
            else:
                child += b < a
        other, x = w.members[first + child], w.keys[first + child]
        if key < x or (key == x and route < other):
            break
        w.members[first + i] = other
        w.keys[first + i] = x
        w.places[other] = i
        i = child
    w.members[first + i] = route
    w.keys[first + i] = key
    w.places[route] = i


def schedule_flow(w: World, pool: int) -> None:
    """Put the end of a pool's next transfer into the agenda, a heap ordered by (time, pool)."""
    s, p = w.state[0], w.pools[pool]
    if p.n == 0:
        unschedule_flow(w, pool)
        return
    left = w.keys[p.first] - p.service
    time = max(p.at + max(left, 0.0) / p.rate, s.now)
    if p.place < 0:
        s.busy_pools += 1
        _rise_to_time(w, s.busy_pools - 1, pool, time)
    elif time < w.due[p.place]:
        _rise_to_time(w, p.place, pool, time)
    else:
        sink_to_time(w, p.place, pool, time)


def unschedule_flow(w: World, pool: int) -> None:
    """Remove a pool from the agenda."""
    s, p = w.state[0], w.pools[pool]
    i = p.place
    if i < 0:
        return
    p.place = NONE
    s.busy_pools -= 1
    last = w.agenda[s.busy_pools]
    if last != pool:
        time = w.due[s.busy_pools]
        sink_to_time(w, i, last, time)
        _rise_to_time(w, w.pools[last].place, last, time)


def _rise_to_time(w: World, i: int, pool: int, time: float) -> None:
    """Sift a pool up the agenda, from the gap at ``i``."""
    while i > 0:
        parent = (i - 1) >> 1
        other = w.agenda[parent]
        if w.due[parent] < time or (w.due[parent] == time and other < pool):
            break
        w.agenda[i], w.due[i] = other, w.due[parent]
        w.pools[other].place = i
        i = parent
    w.agenda[i], w.due[i] = pool, time
    w.pools[pool].place = i


def sink_to_time(w: World, i: int, pool: int, time: float) -> None:
    """Sift a pool down the agenda, from the gap at ``i``."""
    n = w.state[0].busy_pools
    child: Id = 2 * i + 1
    while child < n:
        if child + 1 < n:
            a, b = w.due[child], w.due[child + 1]
            if a == b:
                child += w.agenda[child + 1] < w.agenda[child]
            else:
                child += b < a
        other = w.agenda[child]
        if time < w.due[child] or (time == w.due[child] and pool < other):
            break
        w.agenda[i], w.due[i] = other, w.due[child]
        w.pools[other].place = i
        i = child
        child = 2 * i + 1
    w.agenda[i], w.due[i] = pool, time
    w.pools[pool].place = i
