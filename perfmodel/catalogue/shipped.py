"""Which profiles come with the package: their names and files, without reading any."""

from __future__ import annotations

import functools
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
    place = folder() / kind
    changed_ns = place.stat().st_mtime_ns if place.is_dir() else 0
    return [*_kept(place, changed_ns, ending)]


@functools.lru_cache(maxsize=16)
def _kept(place: Path, _changed_ns: int, ending: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in place.glob(f"*{ending}")))
