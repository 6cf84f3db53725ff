"""Options under which the laws of all architectures are checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"sync": "bsp"},
    {"sync": "asp"},
    {"sync": "bsp", "duplex": True},
    {"sync": "asp", "duplex": True, "servers": 2},
    {"sync": "bsp", "overlap": False},
    {"sync": "asp", "overlap": False, "servers": 3, "split_above_bytes": math.inf},
    {"sync": "ssp", "staleness_bound": 1},
    {"sync": "ssp", "staleness_bound": 0, "duplex": True, "sharding": "hash", "servers": 2},
    {"sync": "ssp", "staleness_bound": 2, "duplex": True, "pull": "request"},
    {"sync": "bsp", "duplex": True, "servers": 3, "split_above_bytes": 4, "uneven": 0.4},
    {"local_aggregation": True, "servers": 2},
    {"local_aggregation": True, "overlap": False},
    {"local_aggregation": True, "duplex": True},
    {"backup_workers": 1},
    {"backup_workers": 1, "overlap": False, "servers": 2},
    {"sync": "asp", "softsync": 2},
    {"sync": "asp", "softsync": 3, "duplex": True},
    {"duplex": True, "pull": "request"},
    {"sync": "asp", "duplex": True, "pull": "request", "servers": 2},
    {"transmission": "priority", "partition_bytes": 7, "duplex": True},
    {"transmission": "quantum", "quantum_bytes": 11, "compression": "top_k", "density": 0.2},
    {"transmission": "quantum", "quantum_bytes": 11, "duplex": True, "sync": "asp"},
    {"transmission": "shared", "sync": "asp", "compression": "dgc", "encode_per_byte_s": 0.1},
    {"transmission": "priority", "credit_bytes": 20, "partition_bytes": 10},
    {"transmission": "random", "sync": "asp", "servers": 2},
    {"compression": "quantised", "quantised_bits": 4, "decode_per_byte_s": 0.01},
)
