"""Words for what a job's ops and resources do, by the labels of their blocks."""

from __future__ import annotations

from perfmodel.communication.network import BETWEEN_SITES
from perfmodel.training import labels
from perfmodel.training.workers import FROM_HOST, ON_HOST, TO_HOST

ACTIVITIES = {
    "device of": "computation",
    "link out of": "sending",
    "link into": "receiving",
    "link inside": "sending inside a node",
    "inside link out of": "sending inside a node",
    "inside link into": "receiving inside a node",
    BETWEEN_SITES: "sending between sites",
    "core": "sending through the core",
    "cores of": "computation on shared cores",
    TO_HOST: "copying to the host",
    FROM_HOST: "copying from the host",
}
"""What is done on resources."""

OWNERS = {
    "update": "servers",
    "inside": "devices",
    "cores": "nodes",
    TO_HOST: "workers",
    FROM_HOST: "workers",
    "link": "nodes",
    "": "workers",
}
"""Owners of resources whose label ends in a preposition, by the start of the label: the first that
fits."""

TOGETHER = {
    labels.EXCHANGE: "exchanges over context-parallel devices",
    labels.SUM: "sums over tensor-parallel devices",
    labels.QUEUE: "queues before sums over tensor-parallel devices",
    labels.GRADIENT_SUM: "sums of gradients over context-parallel devices",
    labels.WAIT: "waiting for the slowest part of sequences",
    labels.EXPERT_EXCHANGE: "exchanges with experts",
    labels.EXPERT_WAIT: "waiting for the busiest experts",
    ON_HOST[1]: "updates on the workers' hosts",
}
"""What devices of a replica do together inside a node, or wait for, by the label of its ops."""
