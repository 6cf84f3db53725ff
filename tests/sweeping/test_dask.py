"""Sweeps on a real Dask cluster: whatever process dies, the table equals that of one process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs the extra 'dask'")

from distributed import Client

from perfmodel import InputError, sweep
from perfmodel.sweeping.executors import opened

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
CHUNKS = 40
ASKED = (
    "sweep --model resnet50 --device v100 --arch gosgd --workers 4,8,16,32 --jitter 0.1 "
    "--fidelity fine --seed 1,2..10 --csv"
)

COUNT = """
import os
from distributed import WorkerPlugin

class Count(WorkerPlugin):
    def transition(self, key, start, finish, **_):
        if finish == "memory":
            with open(os.environ["COUNT"], "a") as file:
                file.write(str(key) + chr(10))

async def dask_setup(worker):
    await worker.plugin_add(Count())
"""


def until(done: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


class Cluster:
    """A scheduler and two workers that count their completed tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.counted = folder / "count"
        (folder / "count.py").write_text(COUNT)
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
        until(lambda: self._address())
        self.address = self._address()
        self.workers = [self._work(), self._work()]
        for log in (folder / "1.log", folder / "2.log"):
            until(lambda log=log: "Registered" in log.read_text())

    def _address(self) -> str:
        said = (self.folder / "0.log").read_text()
        found = [word for word in said.split() if word.startswith("tcp://127.0.0.1:")]
        return found[0] if found else ""

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command, "--no-dashboard"],
                stdout=log, stderr=log, env={**os.environ, "COUNT": str(self.counted)},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def _work(self) -> subprocess.Popen[bytes]:
        return self._start(
            "worker", self.address, "--nthreads", "1", "--no-nanny",
            "--local-directory", str(self.folder), "--preload", str(self.folder / "count.py"),
        )  # fmt: skip

    def count(self) -> int:
        """Number of completed tasks."""
        return len(self.counted.read_text().splitlines()) if self.counted.exists() else 0

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "dask").mkdir()
    cluster = Cluster(tmp_path / "dask")
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of one process."""
    path = tmp_path_factory.mktemp("alone") / "table.csv"
    assert ended(begun(path, "--jobs", "1")) == (0, f"wrote {path}\n")
    return path.read_bytes()


def begun(table: Path, *more: str) -> subprocess.Popen[str]:
    """The command, running."""
    command = [sys.executable, "-m", "perfmodel", *ASKED.split(), str(table), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def ended(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error of a command after it has ended."""
    _, message = client.communicate(timeout=3 * PATIENCE_S)
    return client.returncode, message


def shards(folder: Path) -> list[Path]:
    return list(folder.glob("0*"))


def test_a_worker_and_the_client_are_killed(dask: Cluster, expected: bytes, tmp_path: Path) -> None:
    """Nothing is lost, and only tasks in flight are computed twice."""
    table, folder = tmp_path / "table.csv", tmp_path / "shards"
    more = ("--dask", dask.address, "--resume", str(folder))
    client = begun(table, *more)
    until(lambda: len(shards(folder)) >= 8)
    dask.workers[0].kill()
    until(lambda: len(shards(folder)) >= 20)
    client.kill()
    assert ended(client) == (-signal.SIGKILL, "")
    kept = len(shards(folder))
    assert 20 <= kept < CHUNKS
    time.sleep(1.0)  # the last worker finishes its current task
    before = dask.count()
    assert kept <= before <= kept + 4  # each worker: its completed tasks and the current one
    assert ended(begun(table, *more)) == (0, f"wrote {table}\n")
    assert dask.count() - before == CHUNKS - kept
    assert table.read_bytes() == expected


def test_a_scheduler_that_stops_gives_one_line(
    dask: Cluster, expected: bytes, tmp_path: Path
) -> None:
    table, folder = tmp_path / "table.csv", tmp_path / "shards"
    client = begun(table, "--dask", dask.address, "--resume", str(folder))
    until(lambda: len(shards(folder)) >= 4)
    dask.scheduler.kill()
    message = "perfmodel: error: work was cancelled: the scheduler stopped or dropped it\n"
    assert ended(client) == (2, message)
    again = begun(table, "--resume", str(folder), "--jobs", "2")
    assert ended(again) == (0, f"wrote {table}\n")
    assert table.read_bytes() == expected


def test_an_interrupt_leaves_the_cluster_free(dask: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    client = begun(tmp_path / "table.csv", "--dask", dask.address, "--resume", str(folder))
    until(lambda: len(shards(folder)) >= 4)
    client.send_signal(signal.SIGINT)
    assert ended(client) == (130, "\nperfmodel: interrupted\n")
    with Client(dask.address, set_as_default=False) as other:
        until(lambda: not any(other.processing().values()))
        time.sleep(1.0)  # the workers finish their current tasks
        done = dask.count()
        time.sleep(1.0)  # several tasks would end
        assert not any(other.processing().values())
    assert 4 <= len(shards(folder)) <= done == dask.count() < CHUNKS


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "127.0.0.1:1", "x://y", "nowhere", ""])
def test_a_dead_scheduler_gives_one_line_within_ten_seconds(address: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    code, message = ended(begun(tmp_path / "table.csv", "--dask", address))
    assert time.monotonic() - begin < 10.0
    assert code == 2
    assert message.startswith(f"perfmodel: error: --dask: no Dask scheduler at {address!r}: ")
    assert message.count("\n") == 1


def test_workers_of_another_version_give_one_line(
    dask: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.sweeping.executors.fingerprint", lambda: "perfmodel 0.0.1")
    with (
        pytest.raises(
            InputError, match=r"has perfmodel .*, this process has perfmodel 0\.0\.1: install"
        ),
        opened(None, dask.address),
    ):
        pass


def test_errors_that_tornado_logs_are_not_shown(
    dask: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A coroutine that was fetching a result may fail when the scheduler stops."""

    def fail() -> None:
        raise OSError("the connection is closed")

    with Client(dask.address, set_as_default=False) as client:
        client.loop.add_callback(fail)
        client.sync(asyncio.sleep, 0.1)
    assert "the connection is closed" in caplog.text
    caplog.clear()
    with opened(None, dask.address) as executor:
        client = executor._client  # type: ignore[attr-defined]
        client.loop.add_callback(fail)
        client.sync(asyncio.sleep, 0.1)
        assert client.status == "running"
    assert client.status == "closed"
    assert caplog.text == ""


def test_an_executor_of_a_dask_client_can_be_used(dask: Cluster) -> None:
    asked = {"model": "resnet18", "arch": ["ring", "easgd"], "workers": [1, 2, 4], "jitter": 0.1}
    with Client(dask.address, set_as_default=False) as client:
        result = sweep(**asked, executor=client.get_executor())
    assert result.predictions == sweep(**asked).predictions
