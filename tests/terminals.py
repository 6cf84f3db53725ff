"""Commands on a terminal of some width: in a process on a pseudo-terminal, or in this process."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest

from perfmodel.cli import cli

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""A code that sets a style or moves the cursor."""

STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""A code that sets a style: a colour, bold or dim."""


OURS = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Environment variables about terminals, apart from TERM."""


def environment(**more: str) -> dict[str, str]:
    """The environment of a usual terminal, whatever that of the tests is."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    return {**kept, "TERM": "xterm-256color", **more}


def on_terminal(words: Sequence[str], columns: int = 80, **more: str) -> str:
    """What a process writes to a terminal that is its standard output and standard error.

    ``more`` are environment variables. Lines end in newlines, as they do in a file.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        words, stdin=its, stdout=its, stderr=its, env=environment(**more), start_new_session=True
    )
    os.close(its)
    seen = bytearray()
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(ours)
        process.wait()
    return seen.decode().replace("\r\n", "\n")


def perfmodel(*words: str) -> list[str]:
    """The words that run a command in a process of its own."""
    return [sys.executable, "-m", "perfmodel", *words]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed_here(
    patch: pytest.MonkeyPatch, words: Sequence[str], columns: int = 80, **more: str
) -> str:
    """What a command prints as its answer on a terminal, run in this process: far less time."""
    stream = Terminal()
    with patch.context() as changed:
        for name in OURS:
            changed.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), **more}.items():
            changed.setenv(name, value)
        changed.setattr(sys, "stdout", stream)
        changed.setattr(sys, "stderr", io.StringIO())  # no terminal: no progress
        cli.main(list(words), standalone_mode=False)
    return stream.getvalue()
