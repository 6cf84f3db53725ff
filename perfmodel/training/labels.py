"""Names of what the devices of a stage do together, and of causes of their waits."""

from __future__ import annotations

SUM, QUEUE, EXCHANGE, GRADIENT_SUM, WAIT = (
    "sum over tensor-parallel devices",
    "queue before a sum over tensor-parallel devices",
    "exchange over context-parallel devices",
    "sum of gradients over context-parallel devices",
    "wait for the slowest part of sequences",
)
"""Labels of ops of all devices of a stage of a replica."""

EXPERT_EXCHANGE, EXPERT_WAIT = "exchange with experts", "wait for the busiest experts"
"""Labels of the transfers of tokens, and of the waits for the device with the largest load."""

PIPELINE = "pipeline"
"""Cause of waits for other stages."""

SLOWEST = "straggler"
"""Cause of waits for the slowest of the devices that divide a sequence."""

IMBALANCE = "expert_imbalance"
"""Cause of waits for the device whose experts have most tokens."""
