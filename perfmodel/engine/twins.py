"""The two event loops, which give the same results to the last bit, and which of them runs.

The compiled one runs wherever its library is there (:mod:`perfmodel.engine.library`). Where it is
not, but can be built, as in a checkout with Numba, a process in the background builds it: until it
is there the plain loop runs, and a simulation goes on compiled in the middle.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.errors import InputError, PerfmodelWarning
from perfmodel.engine import library, loop
from perfmodel.engine.world import DTYPES, World, as_objects

if TYPE_CHECKING:
    import subprocess

VARIABLE = "PERFMODEL_COMPILED"
"""Environment variable: 1 asks for the compiled loop, and waits until it is built; 0 for the plain
one."""

LONG_OPS = 500_000
"""Number of op instances from which on the plain loop, at some 10 µs each, is worth a warning."""


class Loop(NamedTuple):
    """The entry points of an event loop, and the conversions of a world that they need.

    ``convert`` turns a world of arrays into the one that is simulated, ``handle`` turns that into
    the argument of the entry points.
    """

    convert: Callable[[World], World]
    handle: Callable[[World], Any]
    order: Callable[[Any], int]
    begin: Callable[[Any], Any]
    advance: Callable[[Any, int, int], int]


def _as_it_is(world: World) -> World:
    return world


PLAIN = Loop(as_objects, _as_it_is, loop.order, loop.begin, loop.advance)


def wished(compiled: bool | None) -> bool | None:
    """The loop that is asked for: ``compiled``, or what the environment variable says.

    Raises
    ------
    InputError : the variable is neither 0 nor 1.
    """
    wish = os.environ.get(VARIABLE)
    if compiled is not None or not wish:
        return compiled
    if wish not in ("0", "1"):
        raise InputError(f"environment variable {VARIABLE} must be 0 or 1, got {wish!r}")
    return wish == "1"


def choose(compiled: bool | None = None) -> Loop:
    """The compiled loop if it is there, else the plain one; ``compiled`` asks for one of the two.

    Raises
    ------
    InputError : the compiled loop is asked for and cannot be built.
    """
    if compiled is False:
        return PLAIN
    found, reason = _compiled()
    if found is None and compiled:
        build = _build()
        if build is None or build.wait() != 0:
            raise InputError(f"no compiled code: {reason}; reinstall perfmodel or install Numba")
        _compiled.cache_clear()
        found, reason = _compiled()
        if found is None:
            raise InputError(f"no compiled code: {reason}")
    return found or PLAIN


def arrived() -> Loop | None:
    """The compiled loop, once the process in the background has built it."""
    if _build.cache_info().currsize == 0:
        return None
    build = _build()
    if build is None or build.poll() != 0:
        return None
    _compiled.cache_clear()
    return _compiled()[0]


def warn_if_long(ops: float) -> None:
    """Warn, once in a process, that about ``ops`` op instances are simulated without the compiled
    loop, unless it is being built."""
    reason = _compiled()[1]
    if reason and ops > LONG_OPS and _build() is None:
        _warn(reason)


@functools.cache
def _warn(reason: str) -> None:
    text = f"simulating in plain Python, many times slower, without compiled code: {reason}"
    warnings.warn(text, PerfmodelWarning, stacklevel=1)


@functools.cache
def _compiled() -> tuple[Loop | None, str]:
    """The compiled loop, or why it cannot be used."""
    found = library.find()
    reason = found.reason
    if not reason:
        try:
            return _loaded(str(found.path)), ""
        except (OSError, AttributeError) as error:
            reason = f"cannot load {found.path}: {error}"
    if _build() is None and (found.refused or not found.reason):
        _warn(reason)
    return None, reason


@functools.cache
def _build() -> subprocess.Popen[bytes] | None:
    """The process that builds the library, None if it cannot be built here."""
    found = library.find()
    folder = found.path.parent
    if found.lasting or not os.access(folder, os.W_OK):
        return None
    if importlib.util.find_spec("numba") is None:
        return None
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-m", "perfmodel.engine.building", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # goes on if this process ends first
    )


def _loaded(path: str) -> Loop:
    """Load the library.

    Raises
    ------
    OSError : it is no library for this machine.
    AttributeError : it lacks a function.
    """
    code = ctypes.CDLL(path)
    entries = (_entry(code.order, 0), _entry(code.begin, 0), _entry(code.advance, 2))
    return Loop(_as_it_is, Handle, *entries)


def _entry(function: Any, numbers: int) -> Callable[..., int]:
    """A compiled function of a world and of ``numbers`` integers, by Numba's calling convention:
    the first two arguments are where it puts its result and its exception."""
    function.restype = ctypes.c_int32
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * numbers

    def call(world: Handle, *values: int) -> int:
        result, exception = ctypes.c_int64(), ctypes.c_void_p()
        function(ctypes.byref(result), ctypes.byref(exception), world.address, *values)
        return result.value

    return call


class Handle:
    """A world as the argument of compiled code: the address of a table of its arrays' addresses."""

    def __init__(self, arrays: World) -> None:
        for name, array in zip(World._fields, arrays, strict=True):
            if array.dtype != DTYPES[name]:
                raise TypeError(f"{name} of a world is {array.dtype}, not {DTYPES[name]}")
        self.arrays = arrays  # keeps them alive
        self.table = np.array([array.ctypes.data for array in arrays], np.int64)
        self.address = self.table.ctypes.data
