"""Keeps the module names of version 0.1 importable, with a deprecation warning.

Only documented names are here. The next release removes them.
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
"""Former modules and the modules that now have their names; both without the package."""


class Finder:
    """Finds the modules of :data:`NEW_HOMES` under their former names."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module that has moved, else None."""
        package, _, old = name.partition(".")
        known = package == PACKAGE and old in NEW_HOMES
        return ModuleSpec(name, cast(Any, Loader())) if known else None


class Loader:
    """Makes an alias module that takes its names from the new modules."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty module that looks up its names when they are used."""
        homes = NEW_HOMES[spec.name.partition(".")[2]]
        names = " and ".join(f"{PACKAGE}.{home}" for home in homes)
        warnings.warn(
            f"{spec.name} is now {names}; the next release removes the old name",
            DeprecationWarning,
            stacklevel=2,
        )
        modules = [importlib.import_module(f"{PACKAGE}.{home}") for home in homes]

        def look_up(name: str) -> Any:
            for module in modules:
                if hasattr(module, name):
                    return getattr(module, name)
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")

        made = ModuleType(spec.name, f"Alias of {names}.")
        made.__dict__["__getattr__"] = look_up
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""


def install() -> None:
    """Make the former module names importable."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
