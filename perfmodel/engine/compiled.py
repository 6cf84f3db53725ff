"""The event loop as machine code: the same source as its plain twin, compiled by Numba.

Compiling takes seconds, loading what was compiled before a fraction of one, and a small job is
simulated plainly in less than that. :func:`choose` takes what is cheapest. Compiled code is kept
where Numba keeps it: beside this file, else in the user's cache directory; where neither can be
written it lasts as long as the process.
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
"""About the time that the plain event loop takes for an op."""
LOADING_S = 0.7
"""About the time to import Numba and to load compiled code."""
COMPILING_S = 15.0
"""About the time to compile."""
SMALL_S = 0.005
"""Plain simulation that is shorter than this is not worth a thought."""
INLINED = frozenset(
    (
        "_instant _timer pop_timer set_timer _take_early hand_token tokens_arrive end_op "
        "piece_moved move_piece enqueue _dequeue _goes_before _has_room dispatch _release "
        "flow_starts flow_ends settle load_links note_change bring_up advance_service _rise _sink"
    ).split()
)
"""What most events go through. Left to itself, LLVM makes calls of it, and takes a fifth longer."""
VARIABLE = "PERFMODEL_COMPILED"
"""Set to 1 or 0, this makes the choice."""


class Loop(NamedTuple):
    """The two entries of an event loop, and what brings a world into the form they take.

    ``convert`` turns a world of arrays into the one that is simulated, ``handle`` into what
    the entries take.
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
    """The loop to simulate about ``ops`` op instances with; ``compiled`` asks for one of them.

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
"""About the time that plain simulations of this process have taken."""


def spent(ops: float) -> None:
    """Note that about ``ops`` op instances were simulated plainly.

    Who has many jobs that are not worth compiling each is thereby not worse off, in the end, than
    by a factor of two.
    """
    global _spent_s
    _spent_s += ops * PLAIN_OP_S


@functools.cache
def _load() -> Loop:
    """Make the compiled loop ready; what is not on disk is compiled when first called.

    What is on disk goes by the closure of an entry, among other things: the digest in it makes
    sure that it is the code of this source.
    """
    from perfmodel.engine.numba_world import Handle

    digest = _digest()
    entries = [_entry(make(digest)) for make in (_order, _begin, _advance)]
    return Loop(_as_it_is, Handle, *entries)


def _digest() -> int:
    """A number for the functions as they are in this process, and the layout of a world.

    Not for their files: those may have changed since they were read.
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

    Each is compiled in a copy of its module's names in which the others are compiled as well,
    once, for the types it is annotated with, after those that it calls.
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
    except RuntimeError:  # there is nowhere to keep it
        return numba.njit(function)


def _is_ready(loop: Loop) -> bool:
    """Whether nothing has to be compiled."""
    import numba

    from perfmodel.engine.numba_world import world_type

    world = world_type()
    simple = _is_kept(loop.order, (world,)) and _is_kept(loop.begin, (world,))
    return simple and _is_kept(loop.advance, (world, numba.int64, numba.int64))


def _is_kept(entry: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether an entry's compiled code is on disk, or in this process already."""
    cache = entry._cache
    if kinds in entry.overloads:
        return True
    if not hasattr(cache, "_index_key"):
        return False
    key = cache._index_key(kinds, entry.targetctx.codegen())
    return key in cache._cache_file._load_index()
