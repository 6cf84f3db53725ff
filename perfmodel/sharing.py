"""Links shared max-min fairly, recomputed only where something changed.

Transfers with the same links, cap and weight form a *route* and progress alike. Each route is
limited by one link (or by its cap); the routes limited by one link form its *pool*. In a pool every
transfer gets ``rate`` bytes/s per unit of weight, so one counter, the ``service`` each unit of
weight has got so far, tells how far all of them are; a new rate costs as much for a thousand
transfers as for one.

Where a pool keeps to itself, that is, where no other pool's routes cross the links of its routes,
its rate is the link's capacity over the load, as long as this stays below ``limit``, where another
of these links would be full as well (a parameter server's link, a lone transfer). Elsewhere links
are filled anew, the tightest first: those of what changed, then those of whatever else gets another
rate through it.

Max-min fairness: Bertsekas, Gallager, "Data Networks", 2nd ed., section 6.5.2. Counting service
instead of time: Parekh, Gallager, IEEE/ACM ToN 1(3), 1993, doi 10.1109/90.234856.

Like the event loop, this runs as it stands and compiled.
"""

from __future__ import annotations

from typing import Any

from perfmodel.ahead import COMPILED, look_past_flow

NONE, MIXED = -1, -2
CLEAN, DIRTY, DONE = range(3)
"""Links while rates are filled: not concerned, to be filled, filled."""
KEPT, RISING, FIXED = range(3)
"""Routes meanwhile: as before, held back by nothing that is known, at a new rate."""
INFINITE = float("inf")
ROUNDING = 1.0 + 1e-12
"""By how much a rate may exceed a limit that it equals but for rounding."""

AT_ONCE = 2.0**-46
"""Part of the time within which two events are one instant, as in the event loop."""

Id = int
World = Any


def flow_starts(w: World, op: Id, amount: float) -> None:
    """Put ``op`` among the transfers of its route, with ``amount`` bytes to go."""
    route = w.ops[op].route
    r = w.routes[route]
    if r.count == 0:
        r.served = 0.0
    elif w.places[route] >= 0:
        _bring_up(w, route)
    level = r.served + amount
    w.moved[route] += amount
    if r.count == 0:
        r.lead, r.level = op, level
    else:
        _push_flow(w, route, op, level)
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
    level = r.level
    r.served, r.joined = level, p.service
    if COMPILED:
        look_past_flow(w, pool)
    n = 0
    while r.count > 0 and r.level == level:
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
        _sink_to_time(w, p.place, pool, INFINITE)
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
    return float(w.due[0])


def settle(w: World) -> None:
    """Give every transfer its fair rate again after some have started or ended."""
    s = w.state[0]
    n, s.changed = s.changed, 0
    for k in range(n):
        _load_links(w, w.changed[k])
    pools = 0
    mixed = False  # whether pools may no longer keep to themselves
    for k in range(n):
        route = w.changed[k]
        r = w.routes[route]
        r.changed = 0
        step = r.count - r.settled
        r.step = step
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
        elif r.first < r.last:
            mixed = True
        else:
            _set_own_pace(w, route)
        if r.count == 0:
            _disown(w, route)
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
        else:
            mixed = True
    if mixed:
        _fill(w, n)
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
    left = r.level - r.served
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
    limit = min(w.pools[r.home].limit, r.cap)
    for e in range(r.first, r.last):
        x = w.paths[e].link
        if x != r.home:
            limit = min(limit, w.links[x].capacity / w.links[x].load)
    w.pools[r.home].limit = limit


# -- filling -----------------------------------------------------------------------------------


def _set_own_pace(w: World, route: int) -> None:
    """Give a route on no link the rate of its cap."""
    s, r = w.state[0], w.routes[route]
    if r.count > 0 and w.places[route] < 0:
        _join(w, route, s.n_links + route)
    _set_rate(w, s.n_links + route, r.cap)
    _schedule(w, s.n_links + route)


def _fill(w: World, n: int) -> None:
    """Make the rates fair again after the first ``n`` changed routes have changed.

    The links concerned are filled in the order of their levels, from the lowest: a link fixes the
    routes that nothing lower holds back. Where that changes what a route gets, its other links are
    concerned as well, and only there. None of them is full at a level that has been passed: what
    one route gets depends on lower levels alone.
    """
    s = w.state[0]
    s.region_links = s.region_routes = s.filling = 0
    for k in range(n):
        if w.routes[w.changed[k]].step != 0:
            _mark_path(w, w.changed[k])
    for k in range(n):
        route = w.changed[k]
        r = w.routes[route]
        if r.count > 0 and r.first < r.last and (r.step == r.count or w.places[route] < 0):
            r.rate = 0.0
            _open_route(w, route)
    level = 0.0
    for k in range(s.region_links):
        _weigh(w, w.region_links[k], level)
    while s.filling > 0:
        x = w.filling[0]
        link = w.links[x]
        level = link.share
        more = link.open > 0.0 and link.left > level * link.open * ROUNDING
        if link.stale != 0 or more:
            _weigh(w, x, level)
        else:
            _unqueue(w, x)
            _fix_routes(w, x, level)
    _apply(w)


def _mark_path(w: World, route: Id) -> None:
    """Add the links of a route that has changed to those to be filled."""
    s, r = w.state[0], w.routes[route]
    for e in range(r.first, r.last):
        x = w.paths[e].link
        link = w.links[x]
        if link.marked == CLEAN:
            if link.owner >= 0:
                _dissolve(w, link.owner)
            link.owner = MIXED if link.n > 0 else NONE
            if s.plain == 0:  # the sum of all changes to the load has been rounded often
                link.load = 0.0
                for k in range(link.first, link.first + link.n):
                    link.load += w.active[k].load
            _mark_link(w, x)


def _open_route(w: World, route: Id) -> None:
    """Let a route rise as far as its links and its cap let it."""
    s = w.state[0]
    w.routes[route].marked = RISING
    w.region_routes[s.region_routes] = route
    s.region_routes += 1


def _mark_link(w: World, x: Id) -> None:
    """Add a link to those to be filled."""
    s, link = w.state[0], w.links[x]
    link.marked = DIRTY
    link.stale = 1
    link.share = INFINITE
    link.place = NONE
    w.region_links[s.region_links] = x
    s.region_links += 1


def _weigh(w: World, x: Id, level: float) -> None:
    """Find the level at which a link is full as far as is known; it may rise later."""
    link, p = w.links[x], w.pools[x]
    share = link.left / link.open if link.stale == 0 else INFINITE
    if share > link.above * ROUNDING or link.stale != 0:
        share = _level_when_full(w, x)
    link.stale = 0
    if p.n > 0 and abs(share - p.rate) <= AT_ONCE * p.rate:
        share = p.rate
    share = max(share, level)
    _queue(w, x, share)
    if p.n > 0 and share > p.rate:
        _open_pool(w, x, level)


def _level_when_full(w: World, x: Id) -> float:
    """To what level those on a link may rise that are not held back elsewhere.

    Newton's method on what they get together, a concave function of the level. It begins where the
    link was full before, and mostly ends there.
    """
    link, p = w.links[x], w.pools[x]
    guess = p.rate if p.n > 0 else INFINITE
    while True:
        left, load = link.capacity, 0.0
        below, above, capped = 0.0, INFINITE, False
        for k in range(link.first, link.first + link.n):
            a = w.active[k]
            r = w.routes[a.route]
            rises = r.marked == RISING or (r.marked == KEPT and r.home == x)
            most = r.cap if rises else r.rate
            if most < guess:
                a.open = 0
                left -= a.load * most
                below = max(below, most)
                capped = capped or rises
            else:
                a.open = 1
                load += a.load
                above = min(above, most)
        link.left, link.open, link.above = left, load, above
        if load > 0.0:
            level = left / load
            if below <= level * ROUNDING and level <= above * ROUNDING:
                return float(level)
            guess = max(level, link.capacity / link.load)
        elif left >= link.capacity * (1.0 - ROUNDING):  # not full
            return float(below) if capped else INFINITE
        else:
            guess = link.capacity / link.load


def _open_pool(w: World, x: Id, level: float) -> None:
    """Let the routes of a pool rise; their other links may now be full at lower levels."""
    p, share = w.pools[x], w.links[x].share
    for k in range(p.first, p.first + p.n):
        route = w.members[k]
        r = w.routes[route]
        if r.marked == FIXED:
            continue
        first = r.marked == KEPT  # what is to be filled has not been weighed with it yet
        if first:
            _open_route(w, route)
        for e in range(r.first, r.last):
            y = w.paths[e].link
            link = w.links[y]
            if y == x or link.marked == DONE or (link.marked == DIRTY and not first):
                continue
            least = max(level, link.capacity / link.load)
            if link.marked == DIRTY:
                link.stale = 1
                if least < link.share:
                    _queue(w, y, least)
            elif least < share:
                _mark_link(w, y)
                _queue(w, y, least)


def _fix_routes(w: World, x: Id, level: float) -> None:
    """Fix the routes on a link that may not rise above ``level``."""
    s, link = w.state[0], w.links[x]
    full = link.open > 0.0  # else it has room for those with a cap
    if full:
        link.marked = DONE
    else:
        link.share = INFINITE
    for k in range(link.first, link.first + link.n):
        route = w.active[k].route
        r = w.routes[route]
        if r.marked == RISING:
            if r.cap <= level:
                _fix(w, route, s.n_links + route, r.cap, level)
            elif full:
                _fix(w, route, x, level, level)
        elif r.marked == KEPT and full:
            if r.rate != level if r.home == x else _is_held(w, route, level):
                _fix(w, route, x, level, level)


def _is_held(w: World, route: Id, level: float) -> bool:
    """Whether a link that is full at ``level`` is what holds back a route of another pool."""
    s, r = w.state[0], w.routes[route]
    if r.rate > level * ROUNDING:
        return True
    if r.rate * ROUNDING < level or r.home >= s.n_links:
        return False
    return bool(w.links[r.home].marked == DIRTY)  # where it might rise yet


def _fix(w: World, route: Id, goal: int, rate: float, level: float) -> None:
    """Fix a route's rate for each unit of weight: it belongs to the pool ``goal``."""
    s, r = w.state[0], w.routes[route]
    if r.marked == KEPT:
        w.region_routes[s.region_routes] = route
        s.region_routes += 1
    had = r.rate
    r.marked, r.goal, r.rate = FIXED, goal, rate
    for e in range(r.first, r.last):
        x = w.paths[e].link
        link = w.links[x]
        if link.marked == DIRTY:
            a = w.active[w.paths[e].at]
            if s.plain == 0 or a.load == link.open:
                link.stale = 1
            elif a.open != 0:
                link.left -= a.load * rate
                link.open -= a.load
            else:
                link.left += a.load * (had - rate)
        elif link.marked == CLEAN:
            if (rate > had and link.n > 1) or (rate < had and w.pools[x].n > 0):
                _mark_link(w, x)
                _queue(w, x, max(level, link.capacity / link.load))


def _apply(w: World) -> None:
    """Move routes to their new pools, at their new rates; find out who owns what."""
    s = w.state[0]
    for k in range(s.region_routes):
        route = w.region_routes[k]
        r = w.routes[route]
        if w.places[route] >= 0 and r.home != r.goal:
            _bring_up(w, route)
            _leave(w, route)
            if w.pools[r.home].n == 0:
                _unschedule(w, r.home)
    for k in range(s.region_routes):
        route = w.region_routes[k]
        r = w.routes[route]
        r.marked = KEPT
        _set_rate(w, r.goal, r.rate)
        if w.places[route] < 0:
            _join(w, route, r.goal)
        if r.goal >= s.n_links:
            _schedule(w, r.goal)
    for k in range(s.region_links):
        x = w.region_links[k]
        w.links[x].marked = CLEAN
        if w.pools[x].n > 0:
            _schedule(w, x)
            if _keeps_to_itself(w, x):
                _own(w, x)


def _keeps_to_itself(w: World, pool: int) -> bool:
    """Whether no other pool's routes cross the links of a pool's routes."""
    p = w.pools[pool]
    if p.n != w.links[pool].n:
        return False
    for k in range(p.first, p.first + p.n):
        r = w.routes[w.members[k]]
        for e in range(r.first, r.last):
            x = w.paths[e].link
            if x != pool:  # all on its own link are members
                link = w.links[x]
                for a in range(link.first, link.first + link.n):
                    if w.routes[w.active[a].route].home != pool:
                        return False
    return True


def _own(w: World, pool: int) -> None:
    """Note that a pool keeps to itself."""
    p = w.pools[pool]
    p.limit = INFINITE
    for k in range(p.first, p.first + p.n):
        r = w.routes[w.members[k]]
        for e in range(r.first, r.last):
            w.links[w.paths[e].link].owner = pool
        _tighten(w, w.members[k])


def _dissolve(w: World, pool: int) -> None:
    """Note that a pool may no longer keep to itself."""
    p = w.pools[pool]
    for k in range(p.first, p.first + p.n):
        r = w.routes[w.members[k]]
        r.rate = p.rate
        for e in range(r.first, r.last):
            w.links[w.paths[e].link].owner = MIXED


# -- heaps -------------------------------------------------------------------------------------


def _queue(w: World, x: Id, share: float) -> None:
    """Put a link in its place among those to be filled, a heap in order of (share, link)."""
    s, link = w.state[0], w.links[x]
    before, link.share = link.share, share
    if share == INFINITE:
        _unqueue(w, x)
    elif link.place < 0:
        s.filling += 1
        _rise_to_share(w, s.filling - 1, x)
    elif share < before:
        _rise_to_share(w, link.place, x)
    else:
        _sink_to_share(w, link.place, x)


def _unqueue(w: World, x: Id) -> None:
    """Take a link out of those to be filled."""
    s, link = w.state[0], w.links[x]
    i = link.place
    if i < 0:
        return
    link.place = NONE
    s.filling -= 1
    last = w.filling[s.filling]
    if last != x:
        _sink_to_share(w, i, last)
        _rise_to_share(w, w.links[last].place, last)


def _rise_to_share(w: World, i: int, x: Id) -> None:
    """Move a link up to its place from the gap at ``i``."""
    share = w.links[x].share
    while i > 0:
        parent = (i - 1) >> 1
        other = w.filling[parent]
        if w.share[parent] < share or (w.share[parent] == share and other < x):
            break
        w.filling[i], w.share[i] = other, w.share[parent]
        w.links[other].place = i
        i = parent
    w.filling[i], w.share[i] = x, share
    w.links[x].place = i


def _sink_to_share(w: World, i: int, x: Id) -> None:
    """Move a link down to its place from the gap at ``i``."""
    n, share = w.state[0].filling, w.links[x].share
    child = 2 * i + 1
    while child < n:
        if child + 1 < n:
            a, b = w.share[child], w.share[child + 1]
            if a == b:
                child += w.filling[child + 1] < w.filling[child]
            else:
                child += b < a
        other = w.filling[child]
        if share < w.share[child] or (share == w.share[child] and x < other):
            break
        w.filling[i], w.share[i] = other, w.share[child]
        w.links[other].place = i
        i = child
        child = 2 * i + 1
    w.filling[i], w.share[i] = x, share
    w.links[x].place = i


def _push_flow(w: World, route: Id, op: Id, level: float) -> None:
    """Add to the transfers of a route: the one that leads, and a heap of the others by level."""
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


def _pop_flow(w: World, route: Id) -> None:
    """Take out the transfer that leads."""
    r = w.routes[route]
    first, n = r.flow, r.count - 2
    r.lead, r.level = w.flying[first], w.levels[first]
    op, level = w.flying[first + n], w.levels[first + n]
    i, child = 0, 1
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
    """Enter when a pool's next transfer ends into the agenda, a heap in order of (time, pool)."""
    s, p = w.state[0], w.pools[pool]
    if p.n == 0:
        _unschedule(w, pool)
        return
    left = w.keys[p.first] - p.service
    time = max(p.at + max(left, 0.0) / p.rate, s.now)
    if p.place < 0:
        s.busy_pools += 1
        _rise_to_time(w, s.busy_pools - 1, pool, time)
    elif time < w.due[p.place]:
        _rise_to_time(w, p.place, pool, time)
    else:
        _sink_to_time(w, p.place, pool, time)


def _unschedule(w: World, pool: int) -> None:
    s, p = w.state[0], w.pools[pool]
    i = p.place
    if i < 0:
        return
    p.place = NONE
    s.busy_pools -= 1
    last = w.agenda[s.busy_pools]
    if last != pool:
        time = w.due[s.busy_pools]
        _sink_to_time(w, i, last, time)
        _rise_to_time(w, w.pools[last].place, last, time)


def _rise_to_time(w: World, i: int, pool: int, time: float) -> None:
    """Move a pool up the agenda to its place from the gap at ``i``."""
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


def _sink_to_time(w: World, i: int, pool: int, time: float) -> None:
    """Move a pool down the agenda to its place from the gap at ``i``."""
    n = w.state[0].busy_pools
    child = 2 * i + 1
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
