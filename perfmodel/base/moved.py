"""Modules that programs may still import under the names they had in version 0.1, with a warning.

Only what was described in the documentation is here. The next release drops it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

PACKAGE = "perfmodel"

NEW_HOMES: Mapping[str, tuple[str, ...]] = {
    "calibration.collectives": ("calibration.network.collectives",),
    "calibration.synchronous_server": ("calibration.servers.synchronous",),
    "calibration.trainings": ("calibration.placements.table",),
    "catalogue": ("inputs.catalogue",),
    "coarse": ("predicting.coarse", "predicting.variants"),
    "errors": ("base.errors",),
    "formulas": ("studies.formulas",),
    "incast": ("theory.incast",),
    "measuring.run": ("measuring.training.run",),
    "queueing": ("theory.queueing",),
    "units": ("base.units",),
}
"""Modules that have what a module of old had; names without the package."""


class Finder:
    """Finds the modules of :data:`NEW_HOMES` under their former names."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """The module of that name, if it is one that has moved."""
        package, _, old = name.partition(".")
        known = package == PACKAGE and old in NEW_HOMES
        return ModuleSpec(name, cast(Any, Loader())) if known else None


class Loader:
    """Makes a module that takes its names from where they are now."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module that looks its names up when they are used."""
        homes = NEW_HOMES[spec.name.partition(".")[2]]
        said = " and ".join(f"{PACKAGE}.{home}" for home in homes)
        warnings.warn(
            f"{spec.name} is now {said}; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        modules = [importlib.import_module(f"{PACKAGE}.{home}") for home in homes]

        def look_up(name: str) -> Any:
            for module in modules:
                if hasattr(module, name):
                    return getattr(module, name)
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")

        made = ModuleType(spec.name, f"Alias of {said}.")
        made.__dict__["__getattr__"] = look_up
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


def install() -> None:
    """Let ``import`` find the modules that have moved."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
