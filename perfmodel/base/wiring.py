"""Calls from a lower room to a higher one, connected in ``perfmodel/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

report_of: Callable[[Any], Any] | None = None
"""The report around a prediction, which takes further predictions; it returns None where the job is
not known."""
