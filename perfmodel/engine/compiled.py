"""The event loop as machine code: the same source as its plain twin, compiled by Numba.

Compiling takes seconds, loading cached code a fraction of a second, and the plain loop simulates a
small job in less than that. :func:`choose` selects the cheapest. Numba caches compiled code beside
this file, or in the user's cache directory; if neither is writable, it is kept in memory only.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from perfmodel.base.errors import InputError
from perfmodel.engine import (
    draws,
    ending,
    filling,
    pools,
    prefetch,
    sharing,
    starting,
    timers,
    waits,
)
from perfmodel.engine import loop as eventloop
from perfmodel.engine.world import DTYPES, World, as_objects

PLAIN_OP_S = 10e-6
"""Approximate time per op of the plain event loop."""
LOADING_S = 0.7
"""Approximate time to import Numba and to load compiled code."""
COMPILING_S = 15.0
"""Approximate time to compile."""
SMALL_S = 0.005
"""Below this, always run the plain loop."""
INLINED = frozenset(
    (
        "_instant _timer pop_timer set_timer _take_early hand_token tokens_arrive end_op "
        "piece_moved move_piece enqueue _dequeue _goes_before _has_room dispatch _release "
        "flow_starts flow_ends settle load_links note_change bring_up advance_service _rise _sink"
    ).split()
)
"""Functions on the path of most events. They are inlined, without which LLVM's code is a fifth
slower."""
VARIABLE = "PERFMODEL_COMPILED"
"""Environment variable: 1 forces the compiled loop, 0 the plain one."""


class Loop(NamedTuple):
    """The two entry points of an event loop, and the conversions of a world that they need.

    ``convert`` turns a world of arrays into the one that is simulated, ``handle`` turns that into
    the argument of the entry points.
    """

    convert: Callable[[World], World]
    handle: Callable[[World], Any]
    order: Callable[[Any], int]
    begin: Callable[[Any], None]
    advance: Callable[[Any, int, int], int]


def _as_it_is(world: World) -> World:
    return world


PLAIN = Loop(as_objects, _as_it_is, eventloop.order, eventloop.begin, eventloop.advance)


def choose(ops: float, compiled: bool | None = None) -> Loop:
    """Select the loop for about ``ops`` op instances; ``compiled`` forces one of the two.

    Raises
    ------
    InputError : compiled code is asked for, and Numba is missing, or the variable is not 0 or 1.
    """
    if compiled is None and (wish := os.environ.get(VARIABLE)):
        if wish not in ("0", "1"):
            raise InputError(f"environment variable {VARIABLE} must be 0 or 1, got {wish!r}")
        compiled = wish == "1"
    if compiled is False:
        return PLAIN
    if importlib.util.find_spec("numba") is None:
        if compiled:
            raise InputError("compiled simulation needs Numba: pip install numba")
        return PLAIN
    plain_s = ops * PLAIN_OP_S
    if compiled is None and plain_s < SMALL_S:
        return PLAIN
    plain_s += _spent_s
    loaded = _load.cache_info().currsize > 0
    if compiled is None and plain_s < LOADING_S and not loaded:
        return PLAIN
    loop = _load()
    if not _is_ready(loop):
        if compiled is None and plain_s < COMPILING_S:
            return PLAIN
        globals().update({name: _functions()[name] for name in ("order", "begin", "advance")})
    return loop


_spent_s = 0.0
"""Approximate time spent in the plain loop by this process."""


def spent(ops: float) -> None:
    """Record that about ``ops`` op instances were simulated by the plain loop.

    With many small jobs the total time is then at most twice that of the best choice.
    """
    global _spent_s
    _spent_s += ops * PLAIN_OP_S


@functools.cache
def _load() -> Loop:
    """Prepare the compiled loop; functions that are not cached on disk are compiled on their first
    call.

    Numba's cache key includes the closure of an entry point. The digest in the closure ensures that
    cached code belongs to this source.
    """
    from perfmodel.engine.numba_world import Handle

    digest = _digest()
    entries = [_entry(make(digest)) for make in (_order, _begin, _advance)]
    return Loop(_as_it_is, Handle, *entries)


def _digest() -> int:
    """Hash of the functions loaded in this process and of the layout of a world.

    It does not use the source files, which may have changed since they were imported.
    """
    sources = hashlib.sha256(repr((World._fields, DTYPES)).encode())
    for module in _MODULES:
        for name, value in vars(module).items():
            if isinstance(value, FunctionType):
                code = value.__code__
                parts = (name, code.co_code, code.co_consts, code.co_names, code.co_varnames)
                sources.update(repr(parts).encode())
            elif isinstance(value, (int, float)):
                sources.update(repr((name, value)).encode())
    return int.from_bytes(sources.digest()[:7], "big")


@functools.cache
def _functions() -> dict[str, Any]:
    """The compiled functions by name.

    Each function is compiled once, for its annotated types, after the functions that it calls, in a
    copy of its module's namespace where those are replaced by their compiled versions.
    """
    import numba

    from perfmodel.engine.numba_world import REPLACED, world_type

    made: dict[str, Any] = {}
    options: Any = {
        "error_model": "numpy",  # nothing here divides by zero
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    scopes = [dict(vars(module)) for module in _MODULES]
    for module, scope in zip(_MODULES, scopes, strict=True):
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                if name in made:
                    raise TypeError(f"two functions of the event loop are called {name}")
                copy = FunctionType(value.__code__, scope, name)
                copy.__annotations__ = value.__annotations__
                made[name] = numba.njit(**options, forceinline=name in INLINED)(copy)
    for scope in scopes:
        scope.update(made | REPLACED)
    types = {
        "World": world_type(),
        "Id": numba.int64,
        "int": numba.int64,
        "float": numba.float64,
        "bool": numba.boolean,
    }
    done: set[str] = set()

    def compile_after_callees(name: str) -> None:
        if name not in done:
            done.add(name)
            function = made[name].py_func
            for callee in sorted(made.keys() & set(function.__code__.co_names)):
                compile_after_callees(callee)
            kinds = [types[k] for key, k in function.__annotations__.items() if key != "return"]
            made[name].compile(tuple(kinds))
            made[name].disable_compile()

    for name in made:
        compile_after_callees(name)
    return made


_MODULES: tuple[ModuleType, ...] = (
    *(prefetch, pools, filling, sharing),
    *(timers, draws, waits, starting, ending, eventloop),
)


order: Any = None
begin: Any = None
advance: Any = None


def _order(digest: int) -> Callable[[Any], int]:
    def run(w: Any) -> int:
        return order(w) if digest >= 0 else 0

    return run


def _begin(digest: int) -> Callable[[Any], None]:
    def run(w: Any) -> None:
        if digest >= 0:
            begin(w)

    return run


def _advance(digest: int) -> Callable[[Any, int, int], int]:
    def run(w: Any, rounds: int, budget: int) -> int:
        return advance(w, rounds, budget) if digest >= 0 else 0

    return run


def _entry(function: Callable[..., Any]) -> Any:
    import numba

    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # no writable cache directory
        return numba.njit(function)


def _is_ready(loop: Loop) -> bool:
    """Whether nothing has to be compiled."""
    import numba

    from perfmodel.engine.numba_world import world_type

    world = world_type()
    simple = _is_kept(loop.order, (world,)) and _is_kept(loop.begin, (world,))
    return simple and _is_kept(loop.advance, (world, numba.int64, numba.int64))


def _is_kept(entry: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether the compiled code of an entry point is on disk, or already in this process."""
    cache = entry._cache
    if kinds in entry.overloads:
        return True
    if not hasattr(cache, "_index_key"):
        return False
    key = cache._index_key(kinds, entry.targetctx.codegen())
    return key in cache._cache_file._load_index()
