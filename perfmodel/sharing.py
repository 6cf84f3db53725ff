"""Links shared max-min fairly, recomputed only where something changed.

Transfers with the same links, cap and weight form a *route* and progress alike. Each route is
limited by one link (or by its cap); the routes limited by one link form its *pool*. In a pool every
transfer gets ``rate`` bytes/s per unit of weight, so one counter, the ``service`` each unit of
weight has got so far, tells how far all of them are; a new rate costs as much for a thousand
transfers as for one.

Where a pool keeps to itself, that is, where no other pool's routes cross the links of its routes,
its rate is the link's capacity over the load, as long as this stays below ``limit``, where another
of these links would be full as well (a parameter server's link, a lone transfer). Elsewhere the
rates of all that is joined by shared links are filled anew, the tightest link first.

Max-min fairness: Bertsekas, Gallager, "Data Networks", 2nd ed., section 6.5.2. Counting service
instead of time: Parekh, Gallager, IEEE/ACM ToN 1(3), 1993, doi 10.1109/90.234856.

Like the event loop, this runs as it stands and compiled.
"""

from __future__ import annotations

from typing import Any

NONE, MIXED = -1, -2
INFINITE = float("inf")
ROUNDING = 1.0 + 1e-12
"""By how much a rate may exceed a limit that it equals but for rounding."""

AT_ONCE = 2.0**-46
"""Part of the time within which two events are one instant, as in the event loop."""

Id = int
World = Any


def flow_starts(w: World, op: Id, amount: float) -> None:
    """Put ``op`` among the transfers of its route, with ``amount`` bytes to go."""
    o = w.ops[op]
    route = o.route
    r = w.routes[route]
    if r.count == 0:
        r.served = 0.0
    elif w.places[route] >= 0:
        _bring_up(w, route)
    o.level = r.served + amount
    w.moved[route] += amount
    if r.count == 0:
        r.lead = op
    else:
        _push_flow(w, route, op)
    r.count += 1
    if w.places[route] >= 0 and r.lead == op:
        _set_key(w, route)
        _schedule(w, r.home)
    _note(w, route)


def flow_ends(w: World) -> int:
    """Take out the transfers that end next; their number, the ops are in ``ended``."""
    s = w.state[0]
    pool = w.agenda[0]
    p = w.pools[pool]
    route = w.members[p.first]
    r = w.routes[route]
    p.service, p.at = w.keys[p.first], s.now
    level = w.ops[r.lead].level
    r.served, r.joined = level, p.service
    n = 0
    while r.count > 0 and w.ops[r.lead].level == level:
        w.ended[n] = r.lead
        n += 1
        if r.count > 1:
            _pop_flow(w, route)
        r.count -= 1
    _note(w, route)
    if r.count > 0:
        _set_key(w, route)
        _schedule(w, pool)
    elif p.n == 1 or not _ends_with(w, pool):
        # it stays first in its pool for now, where it may go on with its next transfer
        p.next = INFINITE
        _agenda_sink(w, p.place)
    else:
        _leave(w, route)
        _schedule(w, pool)
    return n


def _ends_with(w: World, pool: int) -> bool:
    """Whether another of the pool's routes ends a transfer together with the first."""
    p = w.pools[pool]
    key = w.keys[p.first] + w.state[0].now * AT_ONCE * p.rate
    for k in range(1, min(p.n, 3)):
        if w.keys[p.first + k] <= key:
            return True
    return False


def next_service_s(w: World) -> float:
    """When the next transfer ends, if the rates stay as they are."""
    return float(w.pools[w.agenda[0]].next)


def settle(w: World) -> None:
    """Give every transfer its fair rate again after some have started or ended."""
    s = w.state[0]
    n, s.changed = s.changed, 0
    for k in range(n):
        _load_links(w, w.changed[k])
    pools = 0
    region = 0
    for k in range(n):
        route = w.changed[k]
        r = w.routes[route]
        r.changed = 0
        step = r.count - r.settled
        r.step = step
        r.level = w.pools[r.home].rate if r.settled > 0 else INFINITE
        r.settled = r.count
        if r.count == 0 and w.places[route] >= 0:
            _leave(w, route)
            _schedule(w, r.home)
        if step == 0:
            if r.count > 0 and w.places[route] < 0:
                _join(w, route, r.home)
            continue
        if r.count == step:  # nothing was there before
            r.home = _find_home(w, route)
        home = r.home
        if home >= 0 and home < s.n_links and w.links[home].owner == home:
            if step > 0:
                _tighten(w, route)
            if r.count > 0 and w.places[route] < 0:
                _join(w, route, home)
            if w.pools[home].noted == 0:
                w.pools[home].noted = 1
                w.region_pools[pools] = home
                pools += 1
        else:
            region = _add_links(w, route, region)
        if r.count == 0:
            _disown(w, route)
    mixed = region > 0  # pools may no longer keep to themselves
    for k in range(pools):
        pool = w.region_pools[k]
        p = w.pools[pool]
        p.noted = 0
        if p.n == 0:
            p.service = 0.0
            _unschedule(w, pool)
            continue
        rate = w.links[pool].capacity / w.links[pool].load
        if rate <= p.limit * ROUNDING and not mixed:
            _set_rate(w, pool, rate)
            _schedule(w, pool)
        elif w.links[pool].marked == 0:
            w.links[pool].marked = 1
            w.region_links[region] = pool
            region += 1
    if region > 0:
        _fill(w, region, _lowest_change(w, n))
    for k in range(n):
        w.routes[w.changed[k]].step = 0


# -- service -----------------------------------------------------------------------------------


def advance_service(w: World, pool: int) -> None:
    """Bring a pool's service up to the present."""
    p = w.pools[pool]
    now = w.state[0].now
    if p.n > 0:
        p.service += (now - p.at) * p.rate
    p.at = now


def _bring_up(w: World, route: int) -> None:
    """Bring what each transfer of a route has got up to the present."""
    r = w.routes[route]
    advance_service(w, r.home)
    service = w.pools[r.home].service
    r.served += (service - r.joined) * r.weight
    r.joined = service


def _set_rate(w: World, pool: int, rate: float) -> None:
    p = w.pools[pool]
    if rate != p.rate:
        advance_service(w, pool)
        p.rate = rate


def _set_key(w: World, route: int) -> None:
    """Place a route in its pool by the service at which its next transfer ends."""
    r = w.routes[route]
    first, place = w.pools[r.home].first, w.places[route]
    left = w.ops[r.lead].level - r.served
    key = r.joined + left / r.weight
    later = key >= w.keys[first + place]
    w.keys[first + place] = key
    if later:
        _sink(w, first, w.pools[r.home].n, place)
    else:
        _rise(w, first, place)


def _join(w: World, route: int, pool: int) -> None:
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
    _set_key(w, route)
    if p.rate > 0.0:
        _schedule(w, pool)


def _leave(w: World, route: int) -> None:
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


def _note(w: World, route: int) -> None:
    s, r = w.state[0], w.routes[route]
    if r.changed == 0:
        r.changed = 1
        w.changed[s.changed] = route
        s.changed += 1


def _load_links(w: World, route: int) -> None:
    """Add what has changed on a route to the load of its links."""
    r = w.routes[route]
    step = r.count - r.settled
    if step == 0:
        return
    for e in range(r.first, r.last):
        x = w.paths[e]
        link = w.links[x.link]
        link.load += step * r.weight * x.units
        if r.settled == 0:
            x.at = link.n
            w.active[link.first + link.n] = e
            link.n += 1
        elif r.count == 0:
            link.n -= 1
            last = w.active[link.first + link.n]
            w.active[link.first + x.at] = last
            w.paths[last].at = x.at
            if link.n == 0:
                link.load = 0.0


def _disown(w: World, route: int) -> None:
    r = w.routes[route]
    for e in range(r.first, r.last):
        link = w.links[w.paths[e].link]
        if link.n == 0:
            link.owner = NONE


def _find_home(w: World, route: int) -> int:
    """The pool that keeps to itself and that a new route can simply join; NONE if there is none."""
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


def _tighten(w: World, route: int) -> None:
    """Lower the limit of a route's pool to where the route's cap or its other links would be full.

    It is not raised when a load shrinks: too low a limit costs a filling, after which it is right.
    """
    r = w.routes[route]
    limit = min(w.pools[r.home].limit, r.cap / r.weight)
    for e in range(r.first, r.last):
        x = w.paths[e].link
        if x != r.home:
            limit = min(limit, w.links[x].capacity / w.links[x].load)
    w.pools[r.home].limit = limit


# -- filling -----------------------------------------------------------------------------------


def _add_links(w: World, route: int, region: int) -> int:
    """Add a route's links to the region; the number of links in it."""
    s, r = w.state[0], w.routes[route]
    for e in range(r.first, r.last):
        x = w.paths[e].link
        if w.links[x].marked == 0:
            w.links[x].marked = 1
            w.region_links[region] = x
            region += 1
    if r.first == r.last:
        # on no link at all: its cap alone sets the pace
        if r.count > 0 and w.places[route] < 0:
            _join(w, route, s.n_links + route)
        _set_rate(w, s.n_links + route, r.cap / r.weight)
        _schedule(w, s.n_links + route)
    return region


def _lowest_change(w: World, n: int) -> float:
    """A level below which the changes of the first ``n`` changed routes leave every rate alone.

    All rates rise together up to the level of a transfer that ended, or to where the first link of
    one that started is full, just as they did without the change.
    """
    lowest = INFINITE
    for k in range(n):
        r = w.routes[w.changed[k]]
        if r.step < 0:
            lowest = min(lowest, r.level)
        elif r.step > 0:
            lowest = min(lowest, r.cap / r.weight)
            for e in range(r.first, r.last):
                lowest = min(lowest, _level_when_full(w, w.paths[e].link))
    return lowest


def _level_when_full(w: World, x: Id) -> float:
    """To what level those on a link may rise that are not held back elsewhere, as things were."""
    link = w.links[x]
    level = link.capacity / link.load
    while True:
        left, load = link.capacity, 0.0
        for k in range(link.first, link.first + link.n):
            e = w.paths[w.active[k]]
            r = w.routes[e.route]
            had = _level(w, e.route)
            if had < level:
                left -= r.count * r.weight * e.units * had
            else:
                load += r.count * r.weight * e.units
        if load == 0.0 or left / load <= level * ROUNDING:
            return float(level)
        level = left / load


def _level(w: World, route: int) -> float:
    """Rate per unit of weight that a route has; without bound if it has none yet."""
    r = w.routes[route]
    return INFINITE if w.places[route] < 0 or r.step == r.count else float(w.pools[r.home].rate)


def _fill(w: World, region: int, lowest: float) -> None:
    """Fill the first ``region`` of region_links and what is joined to them, until all are fair.

    All rates rise together; the link with the least left for each unit of load fixes the rates on
    it, then the others go on. Rates below ``lowest`` stay. Links that are not full are left out;
    should one turn out too full, it is filled as well.
    """
    routes = 0
    dirty = region
    while True:
        region, routes = _gather(w, dirty, lowest)
        _raise_levels(w, region, routes)
        dirty = _overfull(w, region, routes)
        if dirty == region:
            break
        for k in range(routes):
            w.routes[w.region_routes[k]].fixed = 0
    _apply(w, region, routes)


def _gather(w: World, region: int, lowest: float) -> tuple[int, int]:
    """Find the links and routes to fill, and what each link has left for them."""
    routes = 0
    done = 0
    while done < region:
        link = w.links[w.region_links[done]]
        done += 1
        link.left, link.open, link.unfixed = link.capacity, 0.0, 0
        for k in range(link.first, link.first + link.n):
            entry = w.paths[w.active[k]]
            r = w.routes[entry.route]
            load = r.count * r.weight * entry.units
            if r.fixed == 0:
                had = _level(w, entry.route)
                if had * ROUNDING < lowest:
                    link.left -= load * had
                    continue
                r.fixed = 1
                w.region_routes[routes] = entry.route
                routes += 1
                for e in range(r.first, r.last):
                    other = w.paths[e].link
                    if w.links[other].marked == 0 and w.pools[other].n > 0:
                        w.links[other].marked = 1
                        w.region_links[region] = other
                        region += 1
            link.open += load
            link.unfixed += 1
    return region, routes


def _overfull(w: World, region: int, routes: int) -> int:
    """Add links outside the region that its new rates overfill; the number of links then."""
    for k in range(routes):
        r = w.routes[w.region_routes[k]]
        for e in range(r.first, r.last):
            x = w.paths[e].link
            link = w.links[x]
            if link.marked == 0:
                used = 0.0
                for a in range(link.first, link.first + link.n):
                    entry = w.paths[w.active[a]]
                    other = w.routes[entry.route]
                    level = other.goal_level if other.fixed == 2 else _level(w, entry.route)
                    used += other.count * other.weight * entry.units * level
                if used > link.capacity * ROUNDING:
                    link.marked = 1
                    w.region_links[region] = x
                    region += 1
    return region


def _raise_levels(w: World, region: int, routes: int) -> None:
    s = w.state[0]
    n = 0
    for k in range(region):
        x = w.region_links[k]
        link = w.links[x]
        if s.weighted != 0:
            link.load = _load(w, x, 0)
        if link.unfixed > 0:
            n = _push_share(w, n, link.left / link.open, x)
    for k in range(routes):
        r = w.routes[w.region_routes[k]]
        if r.cap < INFINITE:
            n = _push_share(w, n, r.cap / r.weight, s.n_links + w.region_routes[k])
    level = 0.0
    open_routes = routes
    while open_routes > 0:
        share, pool = w.share[0], w.share_of[0]
        n = _pop_share(w, n)
        if pool >= s.n_links:
            if w.routes[pool - s.n_links].fixed == 1:
                level = max(level, share)
                _fix(w, pool - s.n_links, pool, level)
                open_routes -= 1
            continue
        link = w.links[pool]
        if link.unfixed == 0:
            continue
        if s.weighted != 0:
            link.open = _load(w, pool, 1)
        now = link.left / link.open
        if now > share:
            n = _push_share(w, n, now, pool)
            continue
        level = max(level, share)
        for k in range(link.first, link.first + link.n):
            route = w.paths[w.active[k]].route
            if w.routes[route].fixed == 1:
                _fix(w, route, pool, level)
                open_routes -= 1


def _load(w: World, x: Id, fixed: int) -> float:
    """Load of a link by its routes that are ``fixed`` (1: not yet, 0: all), added up afresh."""
    link = w.links[x]
    total = 0.0
    for k in range(link.first, link.first + link.n):
        e = w.paths[w.active[k]]
        r = w.routes[e.route]
        if fixed == 0 or r.fixed == 1:
            total += r.count * r.weight * e.units
    return total


def _fix(w: World, route: int, pool: int, level: float) -> None:
    """Fix a route's rate: it belongs to ``pool``, at ``level`` for each unit of weight."""
    r = w.routes[route]
    r.fixed = 2
    r.goal = pool
    r.goal_level = level
    total = r.count * r.weight
    for e in range(r.first, r.last):
        x = w.paths[e]
        link = w.links[x.link]
        if link.marked != 0:
            link.left -= total * x.units * level
            link.open -= total * x.units
            link.unfixed -= 1


def _apply(w: World, region: int, routes: int) -> None:
    """Move the region's routes to their new pools, at their new rates; find out who owns what."""
    s = w.state[0]
    for k in range(routes):
        route = w.region_routes[k]
        r = w.routes[route]
        if w.places[route] >= 0 and r.home != r.goal:
            _bring_up(w, route)
            _leave(w, route)
            if w.pools[r.home].n == 0:
                _unschedule(w, r.home)
    for k in range(routes):
        route = w.region_routes[k]
        r = w.routes[route]
        _set_rate(w, r.goal, r.goal_level)
        if w.places[route] < 0:
            _join(w, route, r.goal)
    for k in range(region):
        x = w.region_links[k]
        w.pools[x].limit = INFINITE
        w.links[x].owner = _common_home(w, x)
        _schedule(w, x)
    for k in range(routes):
        r = w.routes[w.region_routes[k]]
        r.fixed = 0
        if r.home >= s.n_links:
            _schedule(w, r.home)
        for e in range(r.first, r.last):
            x = w.paths[e].link
            if w.links[x].marked == 0:
                w.links[x].owner = _common_home(w, x)
    for k in range(region):
        if w.links[w.region_links[k]].owner == MIXED:
            _mix(w, w.region_links[k])
    for k in range(routes):
        r = w.routes[w.region_routes[k]]
        for e in range(r.first, r.last):
            x = w.paths[e].link
            if w.links[x].marked == 0 and w.links[x].owner == MIXED:
                _mix(w, x)
    for k in range(region):
        w.links[w.region_links[k]].marked = 0
    for k in range(routes):
        r = w.routes[w.region_routes[k]]
        if r.home < s.n_links and w.links[r.home].owner == r.home:
            _tighten(w, w.region_routes[k])


def _common_home(w: World, x: Id) -> int:
    """The pool that all routes over a link belong to; MIXED if they belong to several."""
    link = w.links[x]
    common = NONE
    for k in range(link.first, link.first + link.n):
        home = w.routes[w.paths[w.active[k]].route].home
        if common == NONE:
            common = home
        elif common != home:
            return MIXED
    return int(common)


def _mix(w: World, x: Id) -> None:
    """Pools that meet on a link no longer keep to themselves."""
    s, link = w.state[0], w.links[x]
    for k in range(link.first, link.first + link.n):
        home = w.routes[w.paths[w.active[k]].route].home
        if home < s.n_links:
            w.links[home].owner = MIXED


# -- heaps -------------------------------------------------------------------------------------


def _push_share(w: World, n: int, share: float, pool: int) -> int:
    """Add to the shares, a binary heap in order of (share, pool); their number."""
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if w.share[parent] < share or (w.share[parent] == share and w.share_of[parent] < pool):
            break
        w.share[i] = w.share[parent]
        w.share_of[i] = w.share_of[parent]
        i = parent
    w.share[i] = share
    w.share_of[i] = pool
    return n + 1


def _pop_share(w: World, n: int) -> int:
    """Drop the least of the shares; their number."""
    n -= 1
    share, pool = w.share[n], w.share_of[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n:
            a, b = w.share[child], w.share[child + 1]
            if b < a or (b == a and w.share_of[child + 1] < w.share_of[child]):
                child += 1
        if share < w.share[child] or (share == w.share[child] and pool < w.share_of[child]):
            break
        w.share[i] = w.share[child]
        w.share_of[i] = w.share_of[child]
        i = child
    w.share[i] = share
    w.share_of[i] = pool
    return n


def _push_flow(w: World, route: Id, op: Id) -> None:
    """Add to the transfers of a route: the one that leads, and a binary heap of the others."""
    r = w.routes[route]
    if _ends_before(w, op, r.lead):
        op, r.lead = r.lead, op
    i = r.count - 1
    while i > 0:
        parent = (i - 1) >> 1
        other = w.flying[r.flow + parent]
        if not _ends_before(w, op, other):
            break
        w.flying[r.flow + i] = other
        i = parent
    w.flying[r.flow + i] = op


def _pop_flow(w: World, route: Id) -> None:
    """Take out the transfer that leads."""
    r = w.routes[route]
    n = r.count - 2
    r.lead = w.flying[r.flow]
    op = w.flying[r.flow + n]
    i, child = 0, 1
    while child < n:
        a = w.flying[r.flow + child]
        if child + 1 < n and _ends_before(w, w.flying[r.flow + child + 1], a):
            child += 1
            a = w.flying[r.flow + child]
        if not _ends_before(w, a, op):
            break
        w.flying[r.flow + i] = a
        i = child
        child = 2 * i + 1
    w.flying[r.flow + i] = op


def _ends_before(w: World, a: Id, b: Id) -> bool:
    x, y = w.ops[a].level, w.ops[b].level
    return bool(x < y or (x == y and a < b))


def _rise(w: World, first: int, i: int) -> None:
    """Move a member of a pool up to its place, in order of (key, route)."""
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
    """Move a member of a pool down to its place."""
    route, key = w.members[first + i], w.keys[first + i]
    while True:
        child = 2 * i + 1
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


def _schedule(w: World, pool: int) -> None:
    """Enter when a pool's next transfer ends into the agenda, a heap in order of (next, pool)."""
    s, p = w.state[0], w.pools[pool]
    if p.n == 0:
        _unschedule(w, pool)
        return
    left = w.keys[p.first] - p.service
    p.next = max(p.at + max(left, 0.0) / p.rate, s.now)
    if p.place < 0:
        p.place = s.busy_pools
        w.agenda[s.busy_pools] = pool
        s.busy_pools += 1
    if s.busy_pools > 1:
        _agenda_sink(w, p.place)
        _agenda_rise(w, p.place)


def _unschedule(w: World, pool: int) -> None:
    s, p = w.state[0], w.pools[pool]
    if p.place < 0:
        return
    s.busy_pools -= 1
    last = w.agenda[s.busy_pools]
    place = p.place
    p.place = NONE
    if last != pool:
        w.agenda[place] = last
        w.pools[last].place = place
        _agenda_sink(w, place)
        _agenda_rise(w, w.pools[last].place)


def _agenda_rise(w: World, i: int) -> None:
    pool = w.agenda[i]
    time = w.pools[pool].next
    while i > 0:
        parent = (i - 1) >> 1
        other = w.agenda[parent]
        x = w.pools[other]
        if x.next < time or (x.next == time and other < pool):
            break
        w.agenda[i] = other
        x.place = i
        i = parent
    w.agenda[i] = pool
    w.pools[pool].place = i


def _agenda_sink(w: World, i: int) -> None:
    n = w.state[0].busy_pools
    pool = w.agenda[i]
    time = w.pools[pool].next
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        a = w.agenda[child]
        if child + 1 < n:
            b = w.agenda[child + 1]
            ta, tb = w.pools[a].next, w.pools[b].next
            if ta == tb:
                child += b < a
            else:
                child += tb < ta
            a = w.agenda[child]
        x = w.pools[a]
        if time < x.next or (time == x.next and pool < a):
            break
        w.agenda[i] = a
        x.place = i
        i = child
    w.agenda[i] = pool
    w.pools[pool].place = i
