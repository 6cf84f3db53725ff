"""Lets compiled code access a world, through one pointer to a table of array addresses.

A world is a Numba type whose attributes are the arrays. Passing a tuple of all arrays to every
function would make compilation ten times slower.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from llvmlite import ir
from numba import from_dtype, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import populate_array

from perfmodel.engine.world import DTYPES, World


class WorldType(types.Type):
    """A world, with its arrays as attributes."""

    def __init__(self) -> None:
        self.index = {name: i for i, name in enumerate(World._fields)}
        self.arrays = [types.Array(from_dtype(DTYPES[name]), 1, "C") for name in World._fields]
        digest = hashlib.sha256(repr(DTYPES).encode()).hexdigest()
        super().__init__(name=f"World_{digest[:16]}")


@functools.cache
def world_type() -> WorldType:
    """Return the type that all worlds share."""
    return WorldType()


register_model(WorldType)(models.OpaqueModel)


@infer_getattr
class _Attributes(AttributeTemplate):
    key = WorldType

    def generic_resolve(self, world: WorldType, name: str) -> Any:  # type: ignore[override]
        return world.arrays[world.index[name]] if name in world.index else None


@lower_getattr_generic(WorldType)
def _getattr(context: Any, builder: Any, world: WorldType, pointer: Any, name: str) -> Any:
    """Build the array from its address in the table, which does not change while code runs.

    Its length is set to 0, because it is not used and indices then need no wrap-around.
    """
    kind = world.arrays[world.index[name]]
    word = ir.IntType(64)
    table = builder.bitcast(pointer, word.as_pointer())
    address = builder.load(builder.gep(table, [ir.Constant(word, world.index[name])]))
    address.set_metadata("invariant.load", builder.module.add_metadata([]))
    item = context.get_data_type(kind.dtype)
    size = ir.Constant(word, context.get_abi_sizeof(item))
    array = context.make_array(kind)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(address, item.as_pointer()),
        shape=[ir.Constant(word, 0)],
        strides=[size],
        itemsize=size,
        meminfo=None,
    )
    return array._getvalue()


def _prefetch(*names: str) -> Any:
    """Return a function that prefetches an entry of these arrays into the cache, for writing."""

    @intrinsic
    def prefetch(_: Any, world: Any, index: Any) -> Any:
        def lower(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            pointer, at = arguments
            byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
            call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            write, near, data = flag(1), flag(3), flag(1)
            for name in names:
                array = _getattr(context, builder, world, pointer, name)
                kind = world.arrays[world.index[name]]
                first = context.make_array(kind)(context, builder, array).data
                place = builder.bitcast(builder.gep(first, [at]), byte)
                builder.call(call, [place, write, near, data])
            return context.get_dummy_value()

        return types.void(world, index), lower

    return prefetch


REPLACED = {
    "COMPILED": True,
    "prefetch_op": _prefetch("ops"),
    "prefetch_edge": _prefetch("edges"),
    "prefetch_slot": _prefetch("slots"),
    "prefetch_route": _prefetch("routes"),
}
"""Names whose values differ from those of the plain event loop."""
