"""What this installation of the package can do."""

from __future__ import annotations

from perfmodel.engine import library


def how_it_simulates() -> str:
    """How this installation simulates, in words."""
    reason = library.find().reason
    if not reason:
        return "simulates with compiled code"
    return f"simulates in plain Python, many times slower, without compiled code: {reason}"
