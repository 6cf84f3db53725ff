"""Studies give the same results on any executor, and failures there give one line."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError, PlanLimits, Sweep, make_job, plan, predict, sweep
from perfmodel.cli import cli, main
from perfmodel.predicting.installation import fingerprint
from perfmodel.predicting.variants import evaluate
from perfmodel.studies import executors
from perfmodel.studies.chunks import Chunk, predicted
from perfmodel.studies.executors import InLine, Processes, Sent, Task, completed, opened
from tests.jobs import cluster, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
MIXED: dict[str, Any] = {"workload": WORK, "cluster": cluster(nodes=4), "jitter": [0.0, 0.05]}
MIXED |= {"arch": ["ring", "easgd"], "workers": [1, 2, 64], "rel_ci": 0.05, "tolerance": 1e-3}
PLAN: dict[str, Any] = {"model": "vgg16", "instance": ["p3.16xlarge", "p3.2xlarge"]}
PLAN |= {"arch": ["easgd", "ps"], "workers": [8, 16], "batch_size": [32], "servers": [4]}
PLAN |= {"objective": "time"}


def differences(one: Sweep, other: Sweep) -> list[str]:
    """Differences of two sweeps."""
    parts: dict[str, Callable[[Sweep], Any]] = {
        "axes": lambda s: s.axes,
        "points": lambda s: s.points,
        "predictions": lambda s: s.predictions,
        "skipped": lambda s: s.skipped,
        "csv": lambda s: s.to_csv(),
        "json": lambda s: s.to_json(),
    }
    return [name for name, part in parts.items() if part(one) != part(other)]


class Elsewhere(Executor):
    """Runs work on pickled copies, last task first, when results are requested."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], bytes]] = []
        self.count = 0

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.count += 1
        self.tasks.append((future, pickle.dumps((fn, args))))
        if len(self.tasks) == 4:
            self.go()
        return future

    def go(self) -> None:
        while self.tasks:
            future, data = self.tasks.pop()
            fn, args = pickle.loads(data)
            future.set_result(pickle.loads(pickle.dumps(fn(*args))))


# -- the same numbers --------------------------------------------------------------------------


def test_a_sweep_is_the_same_in_another_order_on_copies() -> None:
    alone = sweep(**MIXED)
    other = Elsewhere()
    assert differences(alone, sweep(**MIXED, executor=other)) == []
    assert (len(alone.predictions), len(alone.skipped), other.count) == (8, 4, 8)
    assert {p.fidelity for p in alone.predictions} == {"coarse", "fine"}


def test_canary_a_sweep_with_another_seed_differs() -> None:
    one, other = (sweep(**MIXED, seed=seed) for seed in (1, 2))
    assert differences(one, other) == ["predictions", "csv", "json"]


def test_a_simulation_done_elsewhere_has_a_timeline() -> None:
    with ThreadPoolExecutor(2) as pool:
        one = sweep(**MIXED, fidelity="fine", executor=pool).predictions[-1]
    assert one.to_chrome_trace()["traceEvents"]
    assert one.schedule(10).header.batch_size == one.batch_size


def test_a_plan_is_the_same_in_threads() -> None:
    alone = plan(**PLAN)
    assert alone.simulated > 0
    with ThreadPoolExecutor(4) as pool:
        other = plan(**PLAN, executor=pool)
    assert other == alone
    assert other.to_json() == alone.to_json()


def test_predictions_from_many_threads_equal_those_of_one() -> None:
    jobs = [
        make_job(workload=WORK, cluster=cluster(), arch=arch, workers=workers, jitter=0.1)
        for arch in ("easgd", "ring", "d_psgd")
        for workers in (2, 3)
    ]
    alone = [predict(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(predict, jobs)) == alone


def test_inputs_and_results_can_be_pickled() -> None:
    job = make_job(workload=WORK, cluster=cluster(), arch="easgd", workers=4)
    found = sweep(**MIXED)
    for value in (job, predict(job), found, plan(**PLAN)):
        assert pickle.loads(pickle.dumps(value)) == value
    variants = evaluate(job, workers=[2, 4, 8])
    again = pickle.loads(pickle.dumps(variants))
    assert again.iteration_s.tolist() == variants.iteration_s.tolist()
    assert predict(pickle.loads(pickle.dumps(job))) == predict(job)


@pytest.mark.slow
def test_a_plan_with_many_simulations_is_the_same_in_threads() -> None:
    asked: dict[str, Any] = {"model": "resnet50", "dataset_size": 1281167, "epochs": 90}
    asked["limits"] = PlanLimits(deadline_s=86400.0)
    alone = plan(**asked)
    assert alone.simulated > 30
    with ThreadPoolExecutor(3) as pool:
        assert plan(**asked, executor=pool) == alone


def test_processes_give_the_same_sweep() -> None:
    with Processes(2) as pool:
        assert differences(sweep(**MIXED), sweep(**MIXED, executor=pool)) == []
        assert not pool.here
        with pytest.raises(InputError, match=r"^a prediction process ended unexpectedly; is there"):
            list(completed(pool, os._exit, [3]))
    assert not [p for p in multiprocessing.active_children() if p.is_alive()]


def test_short_work_starts_no_process() -> None:
    with Processes(4, alone_s=60.0) as pool:
        assert list(completed(pool, _process, range(3))) == [(k, os.getpid()) for k in range(3)]
    with opened(1, None) as pool:
        assert list(completed(pool, _process, [0])) == [(0, os.getpid())]
    with opened(None, None) as pool:
        assert not executors.elsewhere(pool)


def _process(_: int) -> int:
    return os.getpid()


# -- failures ----------------------------------------------------------------------------------


class Broken(Executor):
    """Breaks down after the given number of tasks, at submission or execution."""

    def __init__(self, good: int, error: BaseException, *, late: bool) -> None:
        self.good, self.error, self.late = good, error, late
        self.waiting: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        self.good -= 1
        if self.good >= 0:
            return InLine().submit(fn, *args)
        if not self.late:
            raise self.error
        future: Future[Any] = Future()
        self.waiting.append(future)
        if len(self.waiting) == 1:
            future.set_exception(self.error)
        return future


@pytest.mark.parametrize("late", [False, True])
def test_a_broken_executor_gives_one_line_and_cancels_the_rest(late: bool) -> None:
    pool = Broken(2, BrokenExecutor("killed"), late=late)
    come = completed(pool, abs, range(6))
    assert [next(come), next(come)] == [(0, 0), (1, 1)]
    with pytest.raises(
        InputError, match=r"^a prediction process ended unexpectedly; is there enough"
    ):
        next(come)
    assert all(future.cancelled() for future in pool.waiting[1:])


class Unanswered(Executor):
    """Like that of a Dask client that was fetching its last result when the scheduler stopped."""

    def __init__(self, status: str) -> None:
        self._client = SimpleNamespace(status=status)
        self.future: Future[Any] = Future()

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return self.future


def test_a_result_that_never_arrives_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "POLL_S", 0.01)
    with pytest.raises(InputError, match="the scheduler stopped or dropped it"):
        list(completed(Unanswered("closed"), abs, [0]))


def test_a_result_is_waited_for_while_the_scheduler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "POLL_S", 0.01)
    slow = Unanswered("running")
    Timer(0.2, slow.future.set_result, [5]).start()
    assert list(completed(slow, abs, [0])) == [(0, 5)]


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        list(completed(InLine(), (1).__truediv__, [0]))


def test_an_interrupt_leaves_the_loop_immediately() -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(completed(InLine(), interrupted, range(3)))


def test_work_of_another_installation_is_refused_without_unpickling() -> None:
    task = Sent("perfmodel 0.0.1 (source 12345678, NumPy 1.0)", b"cannot be read")
    with pytest.raises(InputError) as error:
        task.run()
    assert str(error.value).endswith(
        f" has {fingerprint()}, the client has perfmodel 0.0.1 (source 12345678, NumPy 1.0): "
        "install the same on both"
    )
    sent = pickle.loads(pickle.dumps(Task(abs, -3)))
    assert isinstance(sent, Sent)
    assert sent.run() == 3


def test_jobs_are_sent_with_their_files_and_each_workload_once(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    text = (
        'schema = "perfmodel.cluster/1"\nname = "own"\nsource = {kind = "estimated", text = "x"}\n'
    )
    own.write_text(text + '[nic]\nbandwidth_bytes_per_s = "3Gbps"\nlatency_s = "9us"\n')
    job = make_job(model="resnet50", device="v100", cluster=own, workers=2)
    data = pickle.dumps(Task(predicted, Chunk((job,), {})))
    many = tuple(
        make_job(workload=job.workload, cluster=job.cluster, workers=n) for n in range(1, 17)
    )
    assert len(pickle.dumps(Task(predicted, Chunk(many, {})))) < 4 * len(data) < 100_000
    own.unlink()
    (answer,) = pickle.loads(data).run()
    assert answer.provenance.inputs["cluster"]["name"] == "own"
    assert answer.iteration_s == predict(job).iteration_s


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--jobs 0", "processes: must be at least 1, got 0"),
        ("--jobs 2 --dask tcp://localhost:1", "--jobs and --dask: give only one of them"),
        ("--dask tcp://localhost:1", "--dask: needs Dask: pip install 'perfmodel[dask]'"),
        ("--parquet t.parquet", "Parquet needs pyarrow: pip install 'perfmodel[parquet]'"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "plan"])
def test_invalid_executor_flags_are_refused(
    command: str,
    flags: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("perfmodel.base.tables.has_parquet", lambda: False)
    monkeypatch.setattr(sys, "argv", ["perfmodel", command, "--model", "resnet18", *flags.split()])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == f"perfmodel: error: {said}\n"


# -- interrupts----------------------------------------------------------------------------------

LONG = (
    "sweep --model resnet50 --device v100 --arch asp,easgd --workers 4,8,16,32 --jitter 0.1 "
    "--fidelity fine --seed 1,2..8"
)


def children(process: int) -> list[int]:
    """Running child processes of a process."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(number) for number in path.read_text().split()]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long sweep in two processes that has written some shards."""
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    folder = tmp_path / "shards"
    command = [sys.executable, "-m", "perfmodel", *LONG.split(), "--jobs", "2"]
    client = subprocess.Popen(
        [*command, "--resume", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8",
    )  # fmt: skip
    until = time.monotonic() + 120.0
    while len(list(folder.glob("0*"))) < 4 and client.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    yield client, folder
    client.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_sweep_leaves_finished_shards_and_no_process(
    begun: tuple[subprocess.Popen[str], Path], how: signal.Signals
) -> None:
    client, folder = begun
    own = children(client.pid)
    assert len(own) >= 2
    client.send_signal(how)
    out, err = client.communicate(timeout=20.0)
    assert out == ""
    if how is signal.SIGINT:
        assert (client.returncode, err) == (130, "\nperfmodel: interrupted\n")
    else:  # Python may report semaphores that it cleans up
        assert client.returncode == -how
        assert "Traceback" not in err
    until = time.monotonic() + 20.0
    while any(Path(f"/proc/{each}").exists() for each in own):
        assert time.monotonic() < until
        time.sleep(0.05)
    there = len(list(folder.glob("0*")))
    assert 4 <= there < 64
    assert not list(folder.glob(".perfmodel*"))


def test_the_command_takes_an_executor(tmp_path: Path) -> None:
    command = ["sweep", "--model", "resnet18", "--arch", "ring,ps", "--csv", "-"]
    plain = CliRunner().invoke(cli, command, catch_exceptions=False)
    folder = ["--jobs", "1", "--resume", str(tmp_path / "shards")]
    for _ in range(2):
        again = CliRunner().invoke(cli, [*command, *folder], catch_exceptions=False)
        assert (again.stdout, again.exit_code) == (plain.stdout, 0)
