"""``perfmodel`` and ``python -m perfmodel``: the command line as a process."""

from __future__ import annotations

import gc
import os
from typing import NoReturn

from perfmodel.cli import main


def run() -> NoReturn:
    """Run the command line.

    NumPy's linear algebra gets one thread, unless OPENBLAS_NUM_THREADS says otherwise: the matrices
    are small, and a thread that waits for work keeps a core busy for a tenth of a second. The
    garbage collector runs rarely, and at the end leaves all objects to the system; each saves
    about 5 % of a short command.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000)
    try:
        main()
    finally:
        gc.freeze()


if __name__ == "__main__":
    run()
