"""The two event loops, whose results agree to the last bit, and the choice between them.

The compiled loop runs if its library is available (:mod:`perfmodel.engine.library`). If it is not,
but can be built, as in a checkout with Numba, a background process builds it. Until then the plain
loop runs; a running simulation switches to the compiled loop in the middle.
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
"""Environment variable: 1 selects the compiled loop, and waits until it is built; 0 selects the
plain loop."""

LONG_OPS = 500_000
"""Number of op instances above which the plain loop, at about 10 µs each, deserves a warning."""


class Loop(NamedTuple):
    """The entry points of an event loop, and the world conversions that they need.

    ``convert`` turns a world of arrays into the world that is simulated; ``handle`` turns that into
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


def requested(compiled: bool | None) -> bool | None:
    """Return the requested loop: ``compiled``, or else the value of the environment variable.

    Raises
    ------
    InputError : the variable is neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE)
    if compiled is not None or not value:
        return compiled
    if value not in ("0", "1"):
        raise InputError(f"environment variable {VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


def choose(compiled: bool | None = None) -> Loop:
    """Return the compiled loop if it is available, else the plain loop; ``compiled`` forces one.

    Raises
    ------
    InputError : the compiled loop is requested but cannot be built.
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


def just_built() -> Loop | None:
    """Return the compiled loop once the background process has built it, else None."""
    if _build.cache_info().currsize == 0:
        return None
    build = _build()
    if build is None or build.poll() != 0:
        return None
    _compiled.cache_clear()
    return _compiled()[0]


def warn_if_long(ops: float) -> None:
    """Warn once per process if about ``ops`` op instances run without the compiled loop, unless it
    is being built."""
    reason = _compiled()[1]
    if reason and ops > LONG_OPS and _build() is None:
        _warn(reason)


@functools.cache
def _warn(reason: str) -> None:
    text = f"simulating in plain Python, many times slower than compiled code: {reason}"
    warnings.warn(text, PerfmodelWarning, stacklevel=1)


@functools.cache
def _compiled() -> tuple[Loop | None, str]:
    """Return the compiled loop, or why it cannot be used."""
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
    """Start the process that builds the library; None if it cannot be built here."""
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
        start_new_session=True,  # continues if this process ends first
    )


def _loaded(path: str) -> Loop:
    """Load the library.

    Raises
    ------
    OSError : it is not a library for this machine.
    AttributeError : it lacks a function.
    """
    code = ctypes.CDLL(path)
    entries = (_entry(code.order, 0), _entry(code.begin, 0), _entry(code.advance, 2))
    return Loop(_as_it_is, Handle, *entries)


def _entry(function: Any, numbers: int) -> Callable[..., int]:
    """Wrap a compiled function of a world and ``numbers`` integers in Numba's calling convention.

    Its first two arguments point to its result and its exception.
    """
    function.restype = ctypes.c_int32
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * numbers

    def call(world: Handle, *values: int) -> int:
        result, exception = ctypes.c_int64(), ctypes.c_void_p()
        function(ctypes.byref(result), ctypes.byref(exception), world.address, *values)
        return result.value

    return call


class Handle:
    """A world as the argument of compiled code: the address of a table of array addresses."""

    def __init__(self, arrays: World) -> None:
        for name, array in zip(World._fields, arrays, strict=True):
            if array.dtype != DTYPES[name]:
                raise TypeError(f"world array {name} has type {array.dtype}, not {DTYPES[name]}")
        self.arrays = arrays  # keeps them alive
        self.table = np.array([array.ctypes.data for array in arrays], np.int64)
        self.address = self.table.ctypes.data
