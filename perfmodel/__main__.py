"""``perfmodel`` and ``python -m perfmodel``: the command line as a process."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from typing import NoReturn

gc.set_threshold(100_000)  # one short run: frequent collections only cost time

from perfmodel.cli import main  # noqa: E402 - a tenth of the collections are of its imports


def run() -> NoReturn:
    """Run the command line, and end the process immediately.

    Normal interpreter shutdown tears down all modules object by object, which takes 7 to 20 ms: as
    long as the simulation of a job. The system frees the memory anyway. Handlers registered with
    :mod:`atexit` still run, and standard output and error are flushed. If other threads are alive
    the interpreter ends as usual, and waits for them.

    NumPy's linear algebra gets one thread, unless OPENBLAS_NUM_THREADS says otherwise: the matrices
    are small, and a thread that waits for work keeps a core busy for a tenth of a second.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        main()
    except SystemExit as ended:
        if threading.active_count() > 1 or not isinstance(ended.code, int):
            raise
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # closed or full: there is nowhere to report it
                if stream is not None:
                    stream.flush()
        os._exit(ended.code)


if __name__ == "__main__":
    run()
