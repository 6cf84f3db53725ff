"""``python -m benchmarks.crossings [ARGUMENTS]``: count calls from one module into another.

It runs ``perfmodel predict`` of a small job, or with other arguments, and counts calls from a
function of one module of the package directly into a function of another. Calls into a room that
comes later in the table of rooms (``tests/project/test_layering.py``) go upward, against the
imports: callbacks and methods of subclasses.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import perfmodel
from perfmodel.cli import main
from tests.project.test_layering import ROOMS, room_of

PACKAGE = Path(perfmodel.__file__).parent
JOB = ("predict", "--model", "resnet18", "--arch", "ps", "--workers", "8")
SHOWN = 20

Call = tuple[str, str, str, str]
"""Module and function of the caller and of the called."""


def calls_between_modules(arguments: tuple[str, ...]) -> Counter[Call]:
    """Return how often each function of one module calls one of another in a command."""
    modules: dict[str, str] = {}
    calls: Counter[Call] = Counter()

    def module_of(code: CodeType) -> str:
        if code.co_filename not in modules:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE)
            parts = path.relative_to(PACKAGE).with_suffix("").parts if inside else ()
            modules[code.co_filename] = ".".join(parts)
        return "" if code.co_name == "<module>" else modules[code.co_filename]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_back is not None:
            callee, caller = frame.f_code, frame.f_back.f_code
            target, source = module_of(callee), module_of(caller)
            if target and source and target != source:
                calls[source, caller.co_name, target, callee.co_qualname] += 1

    before, sys.argv = sys.argv, ["perfmodel", *arguments]
    sys.setprofile(count)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.setprofile(None)
        sys.argv = before
    return calls


def upward(call: Call) -> bool:
    """Return whether a call goes into a later room of the table."""
    order = list(ROOMS)
    return order.index(room_of(call[2])) > order.index(room_of(call[0]))


def run() -> None:
    """Print the numbers of calls, and the most frequent ones."""
    calls = calls_between_modules(tuple(sys.argv[1:]) or JOB)
    print(f"calls between modules: {calls.total()}")
    print(f"of them upward: {sum(n for call, n in calls.items() if upward(call))}")
    for call, number in calls.most_common(SHOWN):
        print(f"{number:6}  {call[0]} {call[1]} > {call[2]} {call[3]}")


if __name__ == "__main__":
    run()
