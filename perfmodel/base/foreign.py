"""Code from outside the project: user functions given by name, and optional libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfmodel.base.errors import InputError, nearest


def load(spec: str, what: str) -> Callable[..., Any]:
    """Import the function ``package.module:function``; the current folder is searched first.

    Raises
    ------
    InputError : the module or function does not exist; the text begins with ``what``.
    """
    path, colon, name = spec.partition(":")
    if not colon or not path or not name:
        raise InputError(f"{what}: expected package.module:function, got {spec!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise InputError(f"{what}: cannot import {path}: {error}") from None
        raise InputError(f"{what}: no module named {path!r} (searched {here} first)") from None
    except Exception as error:
        raise InputError(f"{what}: cannot import {path}: {said(error)}") from None
    found = getattr(module, name, None)
    if not callable(found):
        if found is not None:
            raise InputError(f"{what}: {spec} is a {type(found).__name__}, not a function")
        hint = nearest(name, [key for key in vars(module) if not key.startswith("_")])
        suggestion = f"; did you mean {hint!r}?" if hint else ""
        raise InputError(f"{what}: module {path} has no {name!r}{suggestion}")
    return found  # type: ignore[no-any-return]


def call(function: Callable[..., Any], spec: str, *arguments: Any) -> Any:
    """Call the user's function; an exception in it becomes an InputError that names it."""
    try:
        return function(*arguments)
    except Exception as error:
        shown = ", ".join(map(repr, arguments))
        raise InputError(f"{spec}({shown}): {said(error)}") from error


def said(error: BaseException) -> str:
    """Return an exception as one line."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
