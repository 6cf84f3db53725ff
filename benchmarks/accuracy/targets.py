"""Targets for errors, set before anything was predicted."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Target(NamedTuple):
    """Limits of the median and the 90th percentile of the absolute errors of a group."""

    group: str
    median: float
    p90: float


TARGETS = (
    Target("field/none", 0.08, 0.30),
    Target("internevo/nodes", 0.06, 0.12),
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
    Target("llm_foundry/models", 0.08, 0.20),
    Target("lambda_pytorch/none", 0.10, 0.30),
    Target("nvidia/none", 0.10, 0.30),
    Target("mlperf/none", 0.10, 0.30),
    Target("gavel/none", 0.10, 0.30),
    Target("neusight/none", 0.10, 0.30),
    Target("diloco_measured/shaped", 0.03, 0.10),
    Target("testbed_hybrid/pp", 0.02, 0.06),
    Target("testbed_hybrid/tp", 0.02, 0.06),
    Target("testbed_hybrid/pp_dp", 0.02, 0.06),
    Target("testbed_hybrid/tp_dp", 0.02, 0.06),
    Target("testbed_hybrid/fsdp", 0.02, 0.06),
    Target("libai/anchored-pipeline", 0.03, 0.08),
    Target("libai/anchored-pipeline x data", 0.03, 0.08),
    Target("vtrain_llm/anchored-pipeline", 0.03, 0.08),
    Target("vtrain_llm/anchored-pipeline x data", 0.03, 0.08),
    Target("simumax_b200/anchored-pipeline x data", 0.03, 0.08),
    Target("megatron_bridge/anchored-pipeline x data", 0.03, 0.08),
    Target("libai/anchored-tensor", 0.08, 0.15),
    Target("libai/anchored-tensor x data", 0.08, 0.15),
    Target("vtrain_llm/anchored-tensor", 0.08, 0.15),
    Target("simumax_b200/anchored-tensor", 0.08, 0.15),
    Target("simumax_b200/anchored-tensor x data", 0.08, 0.15),
    Target("sailor/anchored-tensor x data", 0.08, 0.15),
    Target("vtrain_llm/anchored-3D", 0.06, 0.15),
    Target("bigscience_tr11/anchored-3D", 0.06, 0.15),
    Target("sailor/anchored-3D", 0.06, 0.15),
    Target("megatron_bridge/anchored-3D", 0.06, 0.15),
    Target("libai/estimated", 0.12, 0.30),
    Target("vtrain_llm/estimated", 0.12, 0.30),
    Target("simumax_b200/estimated", 0.12, 0.30),
    Target("bigscience_tr11/estimated", 0.12, 0.30),
    Target("sailor/estimated", 0.12, 0.30),
    Target("torchtitan/estimated", 0.12, 0.30),
    Target("megatron_bridge/estimated", 0.12, 0.30),
    Target("small_tables/estimated", 0.12, 0.30),
)


class Limit(NamedTuple):
    """Limit of the mean or worst absolute error of a group: a fraction of the time, updates, or a
    fraction of the mean staleness."""

    group: str
    statistic: Literal["mean", "worst"]
    most: float


LIMITS = (
    Limit("pollux/a:idle", "mean", 0.03),
    Limit("sia/a-rtx:idle", "mean", 0.03),
    Limit("bytedance/half:idle", "mean", 0.05),
    Limit("adsp/waiting:idle", "mean", 0.05),
    Limit("testbed_hybrid/all:rank_idle", "worst", 0.02),
    Limit("staleness_delay/mean-BCD:staleness", "worst", 0.005),
    Limit("staleness_delay/p90-BCD:staleness", "worst", 1.0),
    Limit("staleness_delay/p99-BCD:staleness", "worst", 1.0),
)

COVERED = (0.85, 0.97)
"""Fraction of measured values that 90 % intervals should hold."""
