"""Max-min fair rates of transfers, computed link by link."""

from __future__ import annotations

from perfmodel.engine.codes import NONE, Id
from perfmodel.engine.heaps import remove, update
from perfmodel.engine.pools import (
    AT_ONCE,
    INFINITE,
    MIXED,
    ROUNDING,
    bring_up,
    join_pool,
    leave_pool,
    own_links,
    schedule_flow,
    set_rate,
    tighten,
    unschedule_flow,
)
from perfmodel.engine.world import World

CLEAN, DIRTY, FILLED = range(3)
"""States of links during filling: unaffected, to be filled, filled."""
KEPT, RISING, FIXED = range(3)
"""States of routes during filling: unchanged, not limited so far, fixed at a new rate."""


def set_own_pace(w: World, route: int) -> None:
    """Set the rate of a route without links to its cap."""
    s, r = w.state[0], w.routes[route]
    if r.count > 0 and w.places[route] < 0:
        join_pool(w, route, s.n_links + route)
    set_rate(w, s.n_links + route, r.cap)
    schedule_flow(w, s.n_links + route)


def fill_links(w: World, n: int) -> None:
    """Make the rates fair again after changes to the first ``n`` routes in ``changed``.

    Affected links are filled in the order of their levels, from the lowest. A link fixes the rates
    of the routes that no lower link limits. If this changes a route's rate, its other links become
    affected too. None of them can be full at a level already passed, because a route's rate only
    depends on lower levels.
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
        more: bool = link.open > 0.0 and link.left > level * link.open * ROUNDING
        if link.stale != 0 or more:
            _weigh(w, x, level)
        else:
            s.filling = remove(w.filling, w.share, w.link_places, 0, s.filling, x)
            _fix_routes(w, x, level)
    _apply(w)


def _mark_path(w: World, route: Id) -> None:
    """Add the links of a changed route to the links to be filled."""
    s, r = w.state[0], w.routes[route]
    for e in range(r.first, r.last):
        x = w.paths[e].link
        link = w.links[x]
        if link.marked == CLEAN:
            if s.plain == 0:  # the load is a running sum, with accumulated rounding errors
                link.load = 0.0
                for k in range(link.first, link.first + link.n):
                    link.load += w.active[k].load
            _mark_link(w, x)


def _open_route(w: World, route: Id) -> None:
    """Let a route's rate rise to the limits of its links and its cap."""
    s = w.state[0]
    w.routes[route].marked = RISING
    w.region_routes[s.region_routes] = route
    s.region_routes += 1


def _mark_link(w: World, x: Id) -> None:
    """Add a link to the links to be filled."""
    s, link = w.state[0], w.links[x]
    link.marked = DIRTY
    link.stale = 1
    link.share = INFINITE
    w.region_links[s.region_links] = x
    s.region_links += 1


def _weigh(w: World, x: Id, level: float) -> None:
    """Find the level at which a link is full, as far as known; it may rise later."""
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
    """Return the level that routes on a link reach if no other link limits them.

    This is Newton's method on their total rate, a concave function of the level. It starts from the
    link's previous level, which is usually still the solution.
    """
    link, p = w.links[x], w.pools[x]
    guess = p.rate if p.n > 0 else INFINITE
    while True:
        left, load = link.capacity, 0.0
        below, above = 0.0, INFINITE
        capped: bool = False
        for k in range(link.first, link.first + link.n):
            a = w.active[k]
            r = w.routes[a.route]
            rises: bool = r.marked == RISING or (r.marked == KEPT and r.home == x)
            most = r.cap if rises else _rate_so_far(w, a.route)
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
    """Let the routes of a pool rise; their other links may now become full at lower levels."""
    p, share = w.pools[x], w.links[x].share
    for k in range(p.first, p.first + p.n):
        route = w.members[k]
        r = w.routes[route]
        if r.marked == FIXED:
            continue
        first: bool = r.marked == KEPT  # links still to be filled have been weighed without it
        if first:
            r.rate = p.rate
            _open_route(w, route)
        for e in range(r.first, r.last):
            y = w.paths[e].link
            link = w.links[y]
            if y == x or link.marked == FILLED or (link.marked == DIRTY and not first):
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
    full: bool = link.open > 0.0  # else it has room for all routes with a cap
    if full:
        link.marked = FILLED
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
            if w.pools[x].rate != level if r.home == x else _is_held(w, route, level):
                _fix(w, route, x, level, level)


def _is_held(w: World, route: Id, level: float) -> bool:
    """Return whether a link that is full at ``level`` limits a route of another pool."""
    s, r = w.state[0], w.routes[route]
    rate = w.pools[r.home].rate
    if rate > level * ROUNDING:
        return True
    if rate * ROUNDING < level or r.home >= s.n_links:
        return False
    return bool(w.links[r.home].marked == DIRTY)  # its rate may still rise there


def _rate_so_far(w: World, route: Id) -> float:
    """Return the rate that a route has had, or has been given, while links are filled."""
    r = w.routes[route]
    if r.marked == KEPT:
        return float(w.pools[r.home].rate)
    return float(r.rate)


def _fix(w: World, route: Id, goal: int, rate: float, level: float) -> None:
    """Fix a route's rate per unit of weight, and assign it to the pool ``goal``."""
    s, r = w.state[0], w.routes[route]
    had = _rate_so_far(w, route)
    if r.marked == KEPT:
        w.region_routes[s.region_routes] = route
        s.region_routes += 1
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
    """Move routes to their new pools at their new rates, and update the owners of links."""
    s = w.state[0]
    for k in range(s.region_routes):
        route = w.region_routes[k]
        r = w.routes[route]
        if w.places[route] >= 0 and r.home != r.goal:
            bring_up(w, route)
            leave_pool(w, route)
            if w.pools[r.home].n == 0:
                unschedule_flow(w, r.home)
    for k in range(s.region_routes):
        route = w.region_routes[k]
        r = w.routes[route]
        r.marked = KEPT
        set_rate(w, r.goal, r.rate)
        if w.places[route] < 0:
            join_pool(w, route, r.goal)
            own_links(w, route)
        if r.goal >= s.n_links:
            schedule_flow(w, r.goal)
    for k in range(s.region_links):
        w.links[w.region_links[k]].marked = CLEAN
        _find_owner(w, w.region_links[k])
    for k in range(s.region_links):
        x = w.region_links[k]
        if w.pools[x].n > 0:
            schedule_flow(w, x)
        elif w.links[x].n > 0:
            tighten(w, x)
    for k in range(s.region_links):
        if w.pools[w.region_links[k]].n > 0:
            _find_independent(w, w.region_links[k])


def _find_owner(w: World, x: Id) -> None:
    """Record which pool's routes cross a link that was filled.

    If the link is some pool's own, neither this pool nor any other that crosses it is independent,
    until it is found to be so.
    """
    link = w.links[x]
    owned: bool = w.pools[x].n > 0
    owner = NONE
    for k in range(link.first, link.first + link.n):
        home: Id = w.routes[w.active[k].route].home
        if owned:
            w.pools[home].independent = 0
        if owner == NONE:
            owner = home
        elif owner != home:
            owner = MIXED
            if not owned:
                break
    link.owner = owner


def _find_independent(w: World, pool: int) -> None:
    """Record whether a pool is independent, and up to which rate."""
    s, p = w.state[0], w.pools[pool]
    if w.links[pool].owner != pool:
        return
    for k in range(p.first, p.first + p.n):
        r = w.routes[w.members[k]]
        for e in range(r.first, r.last):
            if w.paths[e].link != pool and w.pools[w.paths[e].link].n > 0:
                return
    p.independent = 1
    p.limit = INFINITE
    s.visits += 1
    for k in range(p.first, p.first + p.n):
        r = w.routes[w.members[k]]
        p.limit = min(p.limit, r.cap)
        for e in range(r.first, r.last):
            x = w.paths[e].link
            if x != pool and w.links[x].visit != s.visits:
                w.links[x].visit = s.visits
                tighten(w, x)


def _queue(w: World, x: Id, share: float) -> None:
    """Insert or move a link in the heap of links to be filled; an infinite share removes it."""
    s = w.state[0]
    w.links[x].share = share
    if share == INFINITE:
        s.filling = remove(w.filling, w.share, w.link_places, 0, s.filling, x)
    else:
        s.filling = update(w.filling, w.share, w.link_places, 0, s.filling, x, share)
