"""Calls of :class:`perfmodel.Job` to higher rooms, connected in ``perfmodel/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

make_job: Callable[..., Any]
"""Makes a job of its arguments."""

read_job: Callable[[str | Path], dict[str, Any]]
"""The arguments that a job file gives."""

change_job: Callable[[object, Mapping[str, object]], Any]
"""The job with some of its arguments changed."""
