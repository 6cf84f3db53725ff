"""Reads Chakra execution traces in protobuf form (``.et``): :func:`read_chakra`.

A file is a sequence of messages, each behind its length: one of ``GlobalMetadata``, then one for
each ``Node``. The messages are those of MLCommons' ``et_def.proto``; the fields that are read are
in :data:`FIELDS`, and protobuf skips others.

References
----------
Sridharan et al., "Chakra: advancing performance benchmarking and co-design using standardized
execution traces", 2023, arXiv:2305.14516.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.base.errors import InputError

if TYPE_CHECKING:
    from google.protobuf.message import Message

FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "AttributeProto": {
        "name": (1, "string"),
        "int32_val": (7, "int32"),
        "int64_val": (9, "int64"),
        "uint32_val": (11, "uint32"),
        "uint64_val": (13, "uint64"),
        "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "*AttributeProto")},
    "IOInfo": {"values": (1, "string"), "shapes": (2, "string"), "types": (3, "string")},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "int32"),
        "duration_micros": (7, "uint64"),
        "inputs": (8, "IOInfo"),
        "attr": (10, "*AttributeProto"),
    },
}
"""Number and type of each field that is read, by message; * is repeated. Enumerations are read as
whole numbers, which they are in a file."""

COLLECTIVE, ALL_REDUCE = 7, 0
"""Type of a node that is a collective, and its ``comm_type`` if it is an all-reduce."""

GROUP_SIZE = re.compile(r"group_size\\?\"[ \t]*:[ \t]*(\d{1,7})")
"""Size of a process group, as PyTorch records it when it makes the group."""

NUMBERS = ("int64_val", "uint64_val", "int32_val", "uint32_val")


class ChakraTrace(NamedTuple):
    """What a Chakra trace tells: its version, the number of its nodes, the sizes of its process
    groups, and the bytes that all-reduces sum."""

    version: str
    nodes: int
    group_sizes: tuple[int, ...]
    reduced_bytes: int


def read_chakra(data: bytes, name: str) -> ChakraTrace:
    """Read a trace; ``name`` is what errors call it.

    Raises
    ------
    InputError : protobuf is not installed, or the file is truncated or damaged.
    """
    messages = _messages(data, name)
    metadata = next(messages, None)
    if metadata is None:
        raise InputError(f"{name}: empty; expected a Chakra execution trace")
    version = str(getattr(metadata, "version", ""))
    count, sizes, reduced = 0, [], 0
    for node in messages:
        count += 1
        inputs = getattr(node, "inputs")  # noqa: B009 (made at run time)
        numbers = {a.name: _number(a) for a in getattr(node, "attr")}  # noqa: B009
        sizes += [int(size) for size in GROUP_SIZE.findall(inputs.values)]
        if getattr(node, "type") == COLLECTIVE and numbers.get("comm_type") == ALL_REDUCE:  # noqa: B009
            reduced += numbers.get("comm_size", 0)
    return ChakraTrace(version, count, tuple(sizes), reduced)


def _number(attribute: Message) -> int:
    """The number of an attribute; 0 if it has none."""
    return next((n for field in NUMBERS if (n := int(getattr(attribute, field)))), 0)


def _messages(data: bytes, name: str) -> Iterator[Message]:
    """The metadata, then the nodes."""
    try:
        from google.protobuf import proto
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(
            f"{name}: a Chakra trace in protobuf form needs protobuf: pip install "
            "'perfmodel[chakra]'"
        ) from None
    classes = message_classes()
    stream = BytesIO(data)
    kind = classes["GlobalMetadata"]
    while stream.tell() < len(data):
        try:
            message = proto.parse_length_prefixed(kind, stream)
        except (DecodeError, ValueError, EOFError) as error:
            raise InputError(
                f"{name}: truncated or damaged Chakra trace, at byte {stream.tell()}: {error}"
            ) from None
        if message is None:
            raise InputError(f"{name}: truncated Chakra trace, at byte {stream.tell()}")
        yield message
        kind = classes["Node"]


@functools.cache
def message_classes() -> dict[str, type[Message]]:
    """Classes of the messages, by name, made of :data:`FIELDS`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "perfmodel.chakra"
    file = descriptor_pb2.FileDescriptorProto(
        name="perfmodel/chakra.proto", package=package, syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in FIELDS.items():
        made = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            repeated, inner = kind.startswith("*"), kind.removeprefix("*")
            added = made.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if inner in FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{inner}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{inner.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in FIELDS
    }
