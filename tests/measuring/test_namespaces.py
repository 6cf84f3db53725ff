"""Emulated nodes, and measurements on links with a known rate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.measuring.measurements import Measurements, read_measurements
from tests import namespaces

NOMINAL_BITS_PER_S = 200e6
STREAM_S = 0.5
"""The shortest time of a stream."""

PORT = 29500
PATIENCE_S = 120.0


@pytest.fixture
def need_namespaces() -> None:
    if reason := namespaces.available():
        pytest.skip(reason)


def measured(bits_per_s: float, folder: Path, *more: str) -> Measurements:
    """The goodput that two nodes measure on links of this rate."""
    path = folder / "network.json"
    with namespaces.cluster(2, bits_per_s) as nodes:
        words = ["--ranks", "2", "--address", f"{nodes.addresses[0]}:{PORT}", *more]
        words += ["--repetitions", "3", "--seconds", "60", "--output", str(path)]
        processes: list[subprocess.Popen[str]] = []
        try:
            for rank in range(2):
                command = [sys.executable, "-m", "perfmodel", "measure", "network"]
                processes.append(
                    nodes.popen(
                        rank,
                        [*command, "--rank", str(rank), *words],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
                )
            said = [process.communicate(timeout=PATIENCE_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    assert [process.returncode for process in processes] == [0, 0], said
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


@pytest.mark.usefixtures("need_namespaces")
def test_a_known_rate_is_measured(tmp_path: Path) -> None:
    tries: list[float] = []
    while len(tries) < 3 and not any(map(is_nominal, tries)):  # the machine may be busy
        tries.append(best_bits_per_s(NOMINAL_BITS_PER_S, tmp_path))
    assert any(map(is_nominal, tries)), tries


@pytest.mark.usefixtures("need_namespaces")
def test_canary_another_rate_is_noticed(tmp_path: Path) -> None:
    assert best_bits_per_s(NOMINAL_BITS_PER_S / 4, tmp_path) < 0.5 * NOMINAL_BITS_PER_S


@pytest.mark.usefixtures("need_namespaces")
def test_nodes_are_distinguished_and_congestion_control_is_recorded(tmp_path: Path) -> None:
    allowed = namespaces.congestion_available("reno")
    chosen = ["--congestion", "reno"] if allowed else []
    found = measured(1e9, tmp_path, "--operations", "ping_pong", "--sizes", "1KB", *chosen)
    assert found.nodes == (0, 1)
    assert not allowed or "congestion control reno" in found.source.text


@pytest.mark.slow
@pytest.mark.usefixtures("need_namespaces")
def test_torchrun_s_ranks_connect_at_the_address_of_a_node(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    environment = {name: os.environ[name] for name in os.environ if name != "PERFMODEL_TOKEN"}
    path = tmp_path / "network.json"
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
            said = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()  # torchrun ends its own processes
            for process in processes:
                process.communicate(timeout=PATIENCE_S)
    assert [process.returncode for process in processes] == [0, 0], said
    assert len(set(read_measurements(path).nodes)) == 2
    listens = [line for line in "".join(said).splitlines() if "listens on" in line]
    assert len(listens) == 1
    # torchrun chooses the node of rank 0
    starts = [f"perfmodel: rank 0 listens on {address}, port " for address in nodes.addresses]
    assert listens[0].startswith(tuple(starts))
    assert listens[0].endswith("; token: torchrun's store")


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


def test_unknown_congestion_control_is_not_available() -> None:
    assert not namespaces.congestion_available("no-such-control")


def test_a_free_port_is_kept_free() -> None:
    import socket

    with namespaces.free_port() as port, socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        one.listen()
