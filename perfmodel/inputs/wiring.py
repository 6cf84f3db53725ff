"""Calls of :class:`perfmodel.Job` to higher rooms, connected in ``perfmodel/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

make_job: Callable[..., Any]
"""Makes a job of its arguments."""

read_job: Callable[[Any], dict[str, Any]]
"""The arguments that a job file gives."""

change_job: Callable[[Any, Mapping[str, Any]], Any]
"""The job with some of its arguments changed."""
