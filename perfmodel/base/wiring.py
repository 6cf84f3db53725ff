"""Calls from a lower room to a higher one, connected in ``perfmodel/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

report_of: Callable[[Any], Any] | None = None
"""The report around a prediction, which takes further predictions; it returns None where the job is
not known."""

make_job: Callable[..., Any]
"""Makes a job of its arguments."""

change_job: Callable[[Any, Mapping[str, Any]], Any]
"""The job with some of its arguments changed."""
