"""Functions of the user, given by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfmodel.base.errors import InputError, exception_line, suggestion


def load(spec: str, what: str) -> Callable[..., object]:
    """Import the function ``package.module:function``; the current folder is searched first.

    Raises
    ------
    InputError : the module or function does not exist; the text begins with ``what``.
    """
    path, colon, name = spec.partition(":")
    if not colon or not path or not name:
        raise InputError(f"{what}: expected package.module:function, got {spec!r}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise InputError(f"{what}: cannot import {path}: {error}") from None
        raise InputError(f"{what}: no module named {path!r} (searched {folder} first)") from None
    except Exception as error:
        raise InputError(f"{what}: cannot import {path}: {exception_line(error)}") from None
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    if function is not None:
        raise InputError(f"{what}: {spec} is a {type(function).__name__}, not a function")
    hint = suggestion(name, [key for key in vars(module) if not key.startswith("_")])
    raise InputError(f"{what}: module {path} has no {name!r}{hint}")


def call(function: Callable[..., object], spec: str, *arguments: object) -> object:
    """Call the user's function; an exception in it becomes an InputError that names it."""
    with reported(f"{spec}({', '.join(map(repr, arguments))})"):
        return function(*arguments)


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Report exceptions of the user's code as an InputError of one line that begins with
    ``what``."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {exception_line(error)}") from error
