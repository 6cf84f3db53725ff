"""Which profiles come with the package: their names and files, without reading any."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from perfmodel.base.errors import InputError


@functools.cache
def folder() -> Path:
    """Folder of the shipped profiles: inside the installed package, or next to it in a checkout.

    Raises
    ------
    InputError : neither place exists.
    """
    here = Path(__file__).parents[1]
    for place in (here / "_profiles", here.parent / "profiles"):
        if place.is_dir():
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
    place = _place(folder(), kind)
    try:
        changed_ns = os.stat(place).st_mtime_ns  # noqa: PTH116 (twice as fast, and most of this)
    except FileNotFoundError:
        return []
    return [*_kept(place, changed_ns, ending)]


@functools.lru_cache(maxsize=16)
def _place(home: Path, kind: str) -> str:
    return str(home / kind)


@functools.lru_cache(maxsize=16)
def _kept(place: str, _changed_ns: int, ending: str) -> tuple[str, ...]:
    with os.scandir(place) as files:
        found = [file.name.removesuffix(ending) for file in files if file.name.endswith(ending)]
    return tuple(sorted(found))
