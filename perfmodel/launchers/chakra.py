"""Reads the number of ranks of a Chakra execution trace, as PyTorch's ExecutionTraceObserver writes
it. It has no times; for the size of its gradients, see :mod:`perfmodel.traces`."""

from __future__ import annotations

import re

from perfmodel.base.errors import InputError
from perfmodel.launchers.launch import Launch

_GROUP = re.compile(r"group_size\\?\"[ \t]*:[ \t]*(\d{1,7})")


def parse(text: str, name: str) -> Launch:
    """Read the size of the largest process group.

    Raises
    ------
    InputError : it has none.
    """
    sizes = [int(size) for size in _GROUP.findall(text)]
    if not sizes:
        raise InputError(
            f"{name}: a Chakra execution trace without process groups; expected "
            "process_group:init, which tells the number of ranks"
        )
    return Launch("a Chakra execution trace", devices=max(sizes))
