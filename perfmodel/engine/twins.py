"""The two event loops, whose results agree to the last bit, and the choice between them.

The compiled loop runs if it is there (:mod:`perfmodel.engine.library`), else the plain loop.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from perfmodel.base.errors import InputError, PerfmodelWarning
from perfmodel.engine import library
from perfmodel.engine.world import DTYPES, World, as_objects

VARIABLE = "PERFMODEL_COMPILED"
"""Environment variable: 1 selects the compiled loop, 0 the plain loop."""

LONG_OPS = 500_000
"""Number of op instances above which the plain loop, at about 10 µs each, deserves a warning."""


class Loop(msgspec.Struct, frozen=True):
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


@functools.cache
def plain() -> Loop:
    """Return the plain loop."""
    from perfmodel.engine import loop  # not imported where the compiled loop runs

    return Loop(as_objects, _as_it_is, loop.order, loop.begin, loop.advance)


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

    A compiled loop that is there but cannot be used causes a warning.

    Raises
    ------
    InputError : the compiled loop is requested but not available.
    """
    if compiled is False:
        return plain()
    extension, reason = library.compiled()
    if extension is not None:
        entries = (extension.call_order, extension.call_begin, extension.call_advance)
        return Loop(_as_it_is, Handle, *entries)
    if compiled:
        raise InputError(f"no compiled event loop: {reason}")
    if reason != library.MISSING:
        _warn(reason)
    return plain()


def warn_if_long(ops: float) -> None:
    """Warn once per process if about ``ops`` op instances run in the plain loop, for lack of the
    compiled one."""
    reason = library.compiled()[1]
    if reason and ops > LONG_OPS:
        _warn(reason)


@functools.cache
def _warn(reason: str) -> None:
    text = f"simulating in plain Python, many times slower than compiled code: {reason}"
    warnings.warn(text, PerfmodelWarning, stacklevel=1)


class Handle:
    """A world as the argument of compiled code: the address of a table of array addresses."""

    def __init__(self, arrays: World) -> None:
        for name, array in arrays._asdict().items():
            if array.dtype != DTYPES[name]:
                raise TypeError(f"world array {name} has type {array.dtype}, not {DTYPES[name]}")
        self.arrays = arrays  # keeps them alive
        self.table = np.array([array.ctypes.data for array in arrays], np.int64)
        self.address = self.table.ctypes.data
