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

PIPELINE = "pipeline"
"""Cause of waits for other stages."""

SLOWEST = "straggler"
"""Cause of waits for the slowest of the devices that divide a sequence."""
