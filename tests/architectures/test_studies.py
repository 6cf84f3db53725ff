"""Measurements of two published studies, on the jobs described on their pages.

The set-ups are those of the pages: their first block of code is run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import Cluster, Prediction, make_job, predict
from tests.project.test_docs import BLOCK, ROOT


def _setup(page: str, *more: str) -> dict[str, Any]:
    """The names defined by the first code block of a page and by the blocks that contain
    ``more``."""
    text = (ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = [block["body"] for block in BLOCK.finditer(text) if block["kind"] == "python"]
    for body in (blocks[0], *(b for word in more for b in blocks if word in b)):
        exec(compile(body, page, "exec"), names)
    return names


JIA = _setup("study-ipccc20.md")
"""Jia et al., IPCCC 2020: four virtual machines of 8 cores."""

KO = _setup("study-ipdps21.md", "def trained")
"""Ko et al., IPDPS 2021: seven algorithms on 24 devices."""


def run(model: str, sync: str, *, servers: int = 4, **changes: Any) -> Prediction:
    """8 workers on the machines of the page, with some fields changed."""
    where: Cluster = msgspec.structs.replace(JIA["machines"](8), **changes)
    options = {"servers": servers, **JIA["MXNET"]}
    work = JIA["network"](model)
    jitter = JIA["JITTER"]
    job = make_job(
        workload=work, cluster=where, workers=8, arch=sync, options=options, jitter=jitter
    )
    return predict(job, rel_ci=0.05)


def update_s(**changes: Any) -> float:
    """Duration of a synchronous update of Inception-v1."""
    return run("inception_v1", "bsp", **changes).operation_s["update"]


def test_an_update_is_slowed_by_the_threads_of_workers() -> None:
    """Table II: 6.327 ms, where the time per part is that of ResNet-18 (5.659 ms)."""
    assert update_s() == pytest.approx(6.327e-3, rel=0.2)


def test_canary_an_update_with_a_core_to_itself_is_too_short() -> None:
    assert update_s(core_sharing="operation") < 0.6 * 6.327e-3


def busy(**changes: Any) -> list[float]:
    """CPU utilisation without and with synchronisation."""
    found = [run("resnet18", name, **changes).utilisation.cores for name in ("bsp", "asp")]
    return [sum(each.values()) / len(each) for each in found]


@pytest.mark.slow
def test_core_utilisation_is_high_and_higher_without_synchronisation() -> None:
    """Table II: 96 % and 98 % of the cores."""
    sync, free = busy()
    assert sync == pytest.approx(0.96, abs=0.055)
    assert free == pytest.approx(0.98, abs=0.055)
    assert sync < free


@pytest.mark.slow
def test_canary_workers_of_few_threads_leave_cores_idle() -> None:
    assert max(busy(worker_threads=2)) < 0.6


def idle(latency_s: float, window_bytes: float) -> float:
    where = JIA["machines"](8, latency_s=latency_s, flow_bytes_per_s=window_bytes / (2 * latency_s))
    options = {"servers": 4, **JIA["MXNET"]}
    work, jitter = JIA["network"]("inception_v1"), JIA["JITTER"]
    job = make_job(
        workload=work, cluster=where, workers=8, arch="bsp", options=options, jitter=jitter
    )
    return predict(job, rel_ci=0.05).idle_fraction.mean


@pytest.mark.slow
def test_with_a_tcp_window_idleness_follows_latency_even_for_long_steps() -> None:
    """Figure 11c: from 10 % at 10 ms to 72 % at 200 ms."""
    assert idle(0.01, 210e3) == pytest.approx(0.10, abs=0.02)
    assert idle(0.2, 210e3) == pytest.approx(0.72, abs=0.04)


def test_canary_without_the_window_latency_is_hidden() -> None:
    assert idle(0.2, 1e9) < 0.2


@pytest.mark.slow
def test_training_gets_slower_with_colocated_servers() -> None:
    """Figure 9c: for both kinds of training, more servers on the same machines take longer."""
    for sync in ("bsp", "asp"):
        few, many = (run("resnet18", sync, servers=n).iteration_s for n in (4, 16))
        assert few < many


def test_canary_on_accelerators_servers_cost_nothing() -> None:
    few, many = (
        run("resnet18", "bsp", servers=n, worker_threads=None).iteration_s for n in (4, 16)
    )
    assert many <= few


# -- Ko et al. ---------------------------------------------------------------------------------


def lost(algorithm: str, setting: str) -> float:
    """Accuracy of the page's task with 4 workers minus that with 24."""
    few, many = (KO["trained"]((algorithm, setting), workers) for workers in (4, 24))
    return float(few - many)


@pytest.mark.slow
def test_infrequent_averaging_loses_accuracy_with_more_workers() -> None:
    """Table III: EASGD of period 8 loses 0.25, GoSGD of probability 0.01 loses 0.28."""
    assert lost("EASGD", "period 8") > 0.1
    assert lost("GoSGD", "probability 0.01") > 0.1


@pytest.mark.slow
def test_canary_nothing_is_lost_if_gradients_reach_all_workers() -> None:
    """Table III: BSP and AD-PSGD lose less than 0.01."""
    assert lost("BSP", "") < 0.05
    assert lost("AD-PSGD", "") < 0.05
