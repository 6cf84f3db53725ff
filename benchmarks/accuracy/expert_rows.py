"""Models with experts, and how devices divide them, as rows of tables describe them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_parts import Experts

LIKE = {"deepseekv2": "deepseek-v2", "deepseekv3": "deepseek-v3", "grok1-314b": "grok-1",
        "llama4-maverick-400b": "llama4-maverick", "llama4-scout-109b": "llama4-scout"}  # fmt: skip
"""Models of the catalogue that have another name in tables."""

OF_MODEL = ("head_width", "latent", "window", "head_norms", "outer_norms", "tied")
"""Fields of a decoder that tables do not state."""


class Row(Protocol):
    """A row of a table; None where not stated."""

    @property
    def model(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def experts(self) -> int | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def expert_ffn(self) -> int | None: ...
    @property
    def shared_ffn(self) -> int | None: ...
    @property
    def dense_layers(self) -> int | None: ...
    @property
    def ep(self) -> int | None: ...
    @property
    def etp(self) -> int | None: ...


def known(row: Row) -> Decoder | None:
    """Return the decoder of the catalogue's model that a row names, if it has experts."""
    name = LIKE.get(row.model, row.model)
    decoder = catalogue.model(name).decoder if name in catalogue.model_names() else None
    return decoder if decoder is not None and decoder.experts is not None else None


def decoder_fields(row: Row) -> dict[str, Any]:
    """Return the fields of a decoder that are about its experts, and those that go with them."""
    if not row.experts:
        return {}
    like = known(row)
    experts = Experts(
        routed=row.experts,
        active=row.top_k or 1,
        width=row.expert_ffn or 1,
        shared_width=row.shared_ffn or 0,
        dense_first=row.dense_layers or 0,
        every=like.experts.every if like is not None and like.experts is not None else 1,
    )
    fields: dict[str, Any] = {
        "experts": experts, "gated": True, "biases": False, "positions": None, "tied": False,
    }  # fmt: skip
    if like is not None:
        fields |= {name: getattr(like, name) for name in OF_MODEL}
        fields |= {"kv_heads": None} if like.latent is not None else {}
    return fields


def layout_fields(row: Row) -> dict[str, Any]:
    """Return the arguments of a job that say how devices divide experts, whose loads are made
    equal."""
    if not row.experts or ((row.ep or 1) == 1 and not row.etp):
        return {}
    found: dict[str, Any] = {"expert": row.ep or 1, "expert_capacity": 1.0}
    return found | ({"expert_tensor": row.etp} if row.etp else {})


IN_RACK = {"gb200-nvl72": 64}
"""Devices of a rack that large jobs use, so that groups of 8, 16 ... devices stay within racks."""


def cluster_of(row: Row, name: str) -> Cluster | str:
    """Return the cluster of a row; the name of one of the catalogue, or one with the devices of
    racks that a job with experts uses."""
    if not row.experts or name not in IN_RACK or row.devices <= IN_RACK[name]:
        return name
    return msgspec.structs.replace(catalogue.cluster(name), devices_per_node=IN_RACK[name])
