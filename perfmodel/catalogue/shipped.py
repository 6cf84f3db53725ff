"""Which profiles come with the package: their names and files, without reading any."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from perfmodel.base.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def folder() -> Path:
    """Folder of the shipped profiles.

    Raises
    ------
    InputError : as :func:`home`.
    """
    from pathlib import Path

    return Path(home())


@functools.cache
def home() -> str:
    """Path of the shipped profiles: inside the installed package, or next to it in a checkout.

    Raises
    ------
    InputError : neither place exists.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    for place in (f"{package}/_profiles", f"{os.path.dirname(package)}/profiles"):
        if os.path.isdir(place):
            return place
    raise InputError("the shipped profiles are missing: reinstall perfmodel")


def model_names() -> list[str]:
    """Names of the shipped models."""
    return names("models", ".json")


def device_names() -> list[str]:
    """Names of the shipped devices."""
    return names("devices", ".toml")


def cluster_names() -> list[str]:
    """Names of the shipped clusters."""
    return names("clusters", ".toml")


def names(kind: str, ending: str) -> list[str]:
    """Names of the files with an ending in one of the folders, cached until the folder changes."""
    place = f"{home()}/{kind}"
    try:
        changed_ns = os.stat(place).st_mtime_ns
    except FileNotFoundError:
        return []
    return [*_kept(place, changed_ns, ending)]


@functools.lru_cache(maxsize=16)
def _kept(place: str, _changed_ns: int, ending: str) -> tuple[str, ...]:
    with os.scandir(place) as files:
        found = [file.name.removesuffix(ending) for file in files if file.name.endswith(ending)]
    return tuple(sorted(found))
