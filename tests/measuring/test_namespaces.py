"""Emulated nodes, and measurements on links with a known rate."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.measuring.measurements import Measurements, read_measurements
from tests import namespaces
from tests.measuring.processes import PATIENCE_S, PORT, outcomes

NOMINAL_BITS_PER_S = 200e6
STREAM_S = 0.5
"""The shortest time of a stream."""

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@pytest.fixture
def need_namespaces() -> None:
    if reason := namespaces.available():
        pytest.skip(reason)


def measured(bits_per_s: float, folder: Path, *more: str) -> Measurements:
    """What two nodes measure on links of this rate."""
    path = folder / "network.json"
    words = ["measure", "network", "--output", str(path), "--repetitions", "3", *more]
    with namespaces.cluster(2, bits_per_s) as nodes:
        ended = outcomes([[*words, "--seconds", "60"]] * 2, nodes)
    assert [code for code, _, _ in ended] == [0, 0], ended
    return read_measurements(path)


def best_bits_per_s(bits_per_s: float, folder: Path) -> float:
    """Goodput of the fastest of a few streams."""
    size = f"{bits_per_s / 8.0 * STREAM_S:.0f}B"
    found = measured(bits_per_s, folder, "--operations", "stream", "--sizes", size)
    (stream,) = found.measurements
    return 8.0 * stream.bytes / min(stream.seconds)


def is_nominal(found_bits_per_s: float) -> bool:
    """Whether goodput is at most what a link of the nominal rate allows, and close to it."""
    return 0.85 * NOMINAL_BITS_PER_S <= found_bits_per_s <= NOMINAL_BITS_PER_S


@needs_torch
@pytest.mark.usefixtures("need_namespaces")
def test_a_known_rate_is_measured(tmp_path: Path) -> None:
    tries: list[float] = []
    while len(tries) < 3 and not any(map(is_nominal, tries)):  # the machine may be busy
        tries.append(best_bits_per_s(NOMINAL_BITS_PER_S, tmp_path))
    assert any(map(is_nominal, tries)), tries


@needs_torch
@pytest.mark.usefixtures("need_namespaces")
def test_canary_another_rate_is_noticed(tmp_path: Path) -> None:
    assert best_bits_per_s(NOMINAL_BITS_PER_S / 4, tmp_path) < 0.5 * NOMINAL_BITS_PER_S


@needs_torch
@pytest.mark.slow
@pytest.mark.usefixtures("need_namespaces")
def test_torchrun_starts_the_ranks_of_two_nodes(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONWARNINGS": "ignore"}
    with namespaces.cluster(2, 1e9) as nodes:
        processes = []
        try:
            for node, address in enumerate(nodes.addresses):
                words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
                words += ["--nproc-per-node", "2", "--rdzv-backend", "c10d"]
                words += ["--rdzv-endpoint", f"{nodes.addresses[0]}:{PORT}"]
                words += ["--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", address]
                words += ["-m", "perfmodel", "measure", "network", "--output", str(path)]
                words += ["--operations", "ping_pong", "--sizes", "1KB"]
                processes.append(
                    nodes.popen(
                        node,
                        words,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        env=environment,
                    )
                )
            texts = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()  # torchrun ends its own processes
            for process in processes:
                process.communicate(timeout=PATIENCE_S)
    assert [process.returncode for process in processes] == [0, 0], texts
    assert sorted(read_measurements(path).nodes) == [0, 0, 1, 1]


def namespace_names() -> set[str]:
    done = subprocess.run(["ip", "netns"], stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return {line.split()[0] for line in done.stdout.splitlines() if line}


@pytest.mark.usefixtures("need_namespaces")
def test_nothing_is_left_after_an_error() -> None:
    class PlantedError(Exception):
        pass

    def fail() -> None:
        with namespaces.cluster(2, 1e9) as nodes:
            names.extend(nodes.names)
            assert set(names) <= namespace_names()
            raise PlantedError

    names: list[str] = []
    with pytest.raises(PlantedError):
        fail()
    assert len(names) == 2
    assert not set(names) & namespace_names()


@pytest.mark.skipif(sys.platform != "linux", reason="about Linux")
def test_without_root_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.available.__wrapped__() == "network namespaces need root"
