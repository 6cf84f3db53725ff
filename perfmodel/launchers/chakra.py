"""Reads the number of ranks of a Chakra execution trace, as PyTorch's ExecutionTraceObserver writes
it (JSON), or converted (protobuf); for the size of its gradients, see :mod:`perfmodel.traces`."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.chakra import GROUP_SIZE, read_chakra
from perfmodel.base.errors import InputError
from perfmodel.launchers.launch import Launch


def parse(text: str, name: str) -> Launch:
    """Read the size of the largest process group.

    Raises
    ------
    InputError : it has none.
    """
    return _of_sizes([int(size) for size in GROUP_SIZE.findall(text)], name)


def parse_protobuf(data: bytes, name: str) -> Launch:
    """Read the size of the largest process group of a trace in protobuf form.

    Raises
    ------
    InputError : it has none, is damaged, or protobuf is not installed.
    """
    return _of_sizes(read_chakra(data, name).group_sizes, name)


def _of_sizes(sizes: Sequence[int], name: str) -> Launch:
    if not sizes:
        raise InputError(
            f"{name}: a Chakra execution trace without process groups; expected "
            "process_group:init, which tells the number of ranks"
        )
    return Launch("a Chakra execution trace", devices=max(sizes))
