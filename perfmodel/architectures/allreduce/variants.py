"""Options under which the laws of all architectures are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VARIANTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"overlap": False, "no_sync": False},
    {"bucket_cap_bytes": 0, "first_bucket_bytes": 0},
    {"bucket_cap_bytes": 50, "first_bucket_bytes": 10, "concurrent": 2},
    {"each_send": True, "bucket_cap_bytes": 50},
    {"bucketing": "mg_wfbp", "reduce_per_byte_s": 0.001},
    {"algorithm": "ring", "overlap": False, "broadcast_buffers": False},
    {"algorithm": "halving_doubling", "each_send": True},
    {"algorithm": "halving_doubling", "reduce_per_byte_s": 0.001},
    {"algorithm": "tree", "bucketing": "one"},
    {"algorithm": "tree", "bucketing": "layer", "each_send": True, "overlap": False},
    {"algorithm": "double_tree", "chunks": 2, "each_send": True, "bucketing": "layer"},
    {"algorithm": "double_tree", "chunks": 2, "bucketing": "layer"},
    {"algorithm": "hierarchical", "each_send": True, "bucketing": "layer"},
    {"algorithm": "hierarchical", "bucketing": "mg_wfbp"},
    {"algorithm": "node_tree", "bucketing": "layer"},
    {"bucketing": "horovod", "fusion_cycle_s": 0.5},
    {"bucketing": "horovod", "fusion_cycle_s": 2.0, "fusion_threshold_bytes": 45},
    {"bucketing": "horovod", "fusion_cycle_s": 0.5, "algorithm": "tree", "overlap": False},
    {"bucketing": "horovod", "fusion_cycle_s": 1.0, "cross_barrier": True},
    {"bucketing": "layer", "priority": True, "partition_bytes": 10, "cross_barrier": True},
    {"bucketing": "layer", "priority": True, "partition_bytes": 10, "credit_bytes": 25},
    {"compression": "top_k", "density": 0.1, "encode_per_byte_s": 0.01},
    {"compression": "dgc", "density": 0.1, "each_send": True, "decode_per_byte_s": 0.001},
    {"compression": "quantised", "decode_per_byte_s": 0.01, "cross_barrier": True},
    {"compression": "quantised", "quantised_bits": 4, "algorithm": "tree", "each_send": True},
)
