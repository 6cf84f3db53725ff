"""Max-min fair sharing of links, recomputed only where something changed.

Transfers with the same links, cap and weight form a *route* and progress alike. Each route is
limited by one link (or by its cap); the routes limited by one link form its *pool*. In a pool every
transfer gets ``rate`` bytes/s per unit of weight. So a single counter, the ``service`` per unit of
weight so far, gives the progress of all, and changing the rate costs the same for a thousand
transfers as for one.

A pool is *independent* if all routes on its link are its own, and none of their other links is full
(a parameter server's link, a single transfer). Then the pool's rate is the link's capacity over its
load, up to ``limit``, at which another of these links might also be full. Otherwise links are
filled again, starting from the tightest: first the links of the routes that changed, then those of
routes whose rates change as a result.

Max-min fairness: Bertsekas, Gallager, "Data Networks", 2nd ed., section 6.5.2. Counting service
instead of time: Parekh, Gallager, IEEE/ACM ToN 1(3), 1993, doi 10.1109/90.234856.

Like the event loop, this code runs both as plain Python and compiled.
"""

from __future__ import annotations

from perfmodel.engine.codes import Id
from perfmodel.engine.filling import fill_links, set_own_pace
from perfmodel.engine.pools import (
    AT_ONCE,
    INFINITE,
    ROUNDING,
    bring_up,
    find_home,
    join_pool,
    leave_pool,
    load_links,
    note_change,
    own_links,
    passed_at_once,
    pop_flow,
    push_flow,
    schedule,
    schedule_flow,
    set_key,
    set_rate,
    tighten_path,
    unschedule_flow,
)
from perfmodel.engine.prefetch import COMPILED, look_past_flow
from perfmodel.engine.world import World


def flow_starts(w: World, op: Id, amount: float) -> None:
    """Add ``op`` to the transfers of its route, with ``amount`` bytes to move."""
    route = w.ops[op].route
    r = w.routes[route]
    if r.count == 0:
        r.served = 0.0
    elif w.places[route] >= 0:
        bring_up(w, route)
    w.moved[route] += amount
    if r.burst > 0.0 and r.first < r.last:
        amount -= passed_at_once(w, route, amount)
    level = r.served + amount
    if r.count == 0:
        r.lead, r.level = op, level
    else:
        push_flow(w, route, op, level)
    r.count += 1
    if w.places[route] >= 0 and r.lead == op:
        set_key(w, route)
        schedule_flow(w, r.home)
    note_change(w, route)


def flow_ends(w: World) -> int:
    """Remove the transfers that end next; return their number, with the ops in ``ended``."""
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
            pop_flow(w, route)
        r.count -= 1
    note_change(w, route)
    if r.count > 0:
        set_key(w, route)
        schedule_flow(w, pool)
    elif p.n == 1 or not _ends_with(w, pool):
        # it stays first in its pool for now, because its next transfer may follow at once
        schedule(w, pool, INFINITE)
    else:
        leave_pool(w, route)
        schedule_flow(w, pool)
    return n


def _ends_with(w: World, pool: int) -> bool:
    """Return whether another of the pool's routes ends a transfer at the same time as the first."""
    p = w.pools[pool]
    key = w.keys[p.first] + w.state[0].now * AT_ONCE * p.rate
    for k in range(1, min(p.n, 3)):
        if w.keys[p.first + k] <= key:
            return True
    return False


def next_service_s(w: World) -> float:
    """Return when the next transfer ends at current rates."""
    return float(w.due[0])


def settle(w: World) -> None:
    """Update the fair rates after transfers have started or ended."""
    s = w.state[0]
    n, s.changed = s.changed, 0
    for k in range(n):
        load_links(w, w.changed[k])
    pools = 0
    mixed = False  # whether links have to be filled
    for k in range(n):
        route = w.changed[k]
        r = w.routes[route]
        r.changed = 0
        step = r.count - r.settled
        r.step = step
        r.settled = r.count
        if r.count == 0 and w.places[route] >= 0:
            leave_pool(w, route)
            schedule_flow(w, r.home)
        if step == 0:
            if r.count > 0 and w.places[route] < 0:
                join_pool(w, route, r.home)
            continue
        if r.first == r.last:
            set_own_pace(w, route)
            continue
        if r.count == step:  # the route was empty before
            r.home = find_home(w, route)
        if r.home < 0 or w.pools[r.home].independent == 0:
            mixed = True
            continue
        if w.pools[r.home].noted == 0:
            w.pools[r.home].noted = 1
            w.region_pools[pools] = r.home
            pools += 1
        if r.count > 0 and w.places[route] < 0:
            join_pool(w, route, r.home)
            own_links(w, route)
    for k in range(n):
        if w.routes[w.changed[k]].step > 0 and not mixed:
            tighten_path(w, w.changed[k])
    for k in range(pools):
        pool = w.region_pools[k]
        p = w.pools[pool]
        p.noted = 0
        if p.n == 0:
            p.service = 0.0
            unschedule_flow(w, pool)
            continue
        rate = w.links[pool].capacity / w.links[pool].load
        if mixed or rate > p.limit * ROUNDING:
            mixed = True
        else:
            set_rate(w, pool, rate)
            schedule_flow(w, pool)
    if mixed:
        fill_links(w, n)
    for k in range(n):
        w.routes[w.changed[k]].step = 0
