"""What the errors of predicted step times should stay within, before anything was predicted."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """Median and 90th percentile of the absolute errors of a group."""

    group: str
    median: float
    p90: float


TARGETS = (
    Target("testbed/ring", 0.01, 0.04),
    Target("testbed/p2p", 0.01, 0.04),
    Target("testbed/dpsgd", 0.01, 0.04),
    Target("testbed/ps_bsp", 0.03, 0.10),
    Target("testbed/ps_async", 0.03, 0.10),
    Target("testbed/ps_ssp", 0.03, 0.10),
    Target("testbed/adpsgd", 0.06, 0.15),
    Target("testbed/mxnet_bsp", 0.06, 0.15),
    Target("testbed/mxnet_async", 0.10, 0.25),
    Target("hkbu/few", 0.04, 0.15),
    Target("pollux/a", 0.06, 0.15),
    Target("pollux/b", 0.10, 0.20),
    Target("sia/a-rtx", 0.05, 0.12),
    Target("sia/b-rtx", 0.08, 0.18),
    Target("cmdare/n4", 0.04, 0.10),
    Target("cmdare/n3", 0.04, 0.17),
    Target("dl2/few", 0.08, 0.20),
    Target("tensorflow/few", 0.05, 0.15),
    Target("horovod/few", 0.05, 0.15),
    Target("dlperf/few", 0.05, 0.15),
    Target("mxnet/few", 0.05, 0.15),
    Target("kungfu/few", 0.05, 0.15),
)
