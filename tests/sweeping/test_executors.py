"""Studies give the same results on any executor, and failures there give one line."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError, PlanLimits, PredictOptions, Sweep, make_job, plan, predict, sweep
from perfmodel.cli import cli, main
from perfmodel.planning.plans import Plan
from perfmodel.predicting.installation import fingerprint
from perfmodel.predicting.variants import evaluate
from perfmodel.sweeping import executors
from perfmodel.sweeping.chunks import Chunk, predicted
from perfmodel.sweeping.executors import Sent, Task, completed, opened
from perfmodel.sweeping.processes import InLine, Processes
from tests.jobs import cluster, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
MIXED: dict[str, Any] = {"workload": WORK, "cluster": cluster(nodes=4), "jitter": [0.0, 0.05]}
MIXED |= {"arch": ["ring", "easgd"], "workers": [1, 2, 64], "rel_ci": 0.05, "tolerance": 1e-3}
PLAN: dict[str, Any] = {"model": "vgg16", "instance": ["p3.16xlarge", "p3.2xlarge"]}
PLAN |= {"arch": ["easgd", "ps"], "workers": [8, 16], "batch_size": [32], "servers": [4]}
PLAN |= {"objective": "time"}


@functools.cache
def planned() -> Plan:
    """The plan in one thread."""
    return plan(**PLAN)


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


@pytest.mark.slow
def test_a_plan_is_the_same_in_threads() -> None:
    alone = planned()
    assert alone.simulated > 0
    with ThreadPoolExecutor(4) as pool:
        other = plan(**PLAN, executor=pool)
    assert other == alone
    assert other.to_json() == alone.to_json()


@pytest.mark.slow
def test_predictions_from_many_threads_equal_those_of_one() -> None:
    jobs = [
        make_job(workload=WORK, cluster=cluster(), arch=arch, workers=workers, jitter=0.1)
        for arch in ("easgd", "ring", "d_psgd")
        for workers in (2, 3)
    ]
    alone = [predict(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(predict, jobs)) == alone


@pytest.mark.slow
def test_inputs_and_results_can_be_pickled() -> None:
    job = make_job(workload=WORK, cluster=cluster(), arch="easgd", workers=4)
    result = sweep(**MIXED)
    for value in (job, predict(job), result, plan(**PLAN, fidelity="coarse")):
        assert pickle.loads(pickle.dumps(value)) == value
    variants = evaluate(job, workers=[2, 4, 8])
    again = pickle.loads(pickle.dumps(variants))
    assert again.iteration_s.tolist() == variants.iteration_s.tolist()
    assert predict(pickle.loads(pickle.dumps(job))) == predict(job)


@pytest.mark.slow
def test_a_plan_with_many_simulations_is_the_same_in_threads() -> None:
    asked: dict[str, Any] = {"model": "resnet18", "dataset_size": 1281167, "epochs": 90}
    asked |= {"workers": [8, 16, 32, 64], "batch_size": [64, 128]}
    asked["limits"] = PlanLimits(deadline_s=43200.0)
    alone = plan(**asked)
    assert alone.simulated >= 8  # four for each thread
    with ThreadPoolExecutor(2) as pool:
        assert plan(**asked, executor=pool) == alone


def children(process: int) -> list[int]:
    """Running child processes of a process."""
    path = Path(f"/proc/{process}/task")
    return [int(n) for task in path.glob("*/children") for n in task.read_text().split()]


def running(process: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def left(processes: list[int], within_s: float = 20.0) -> list[int]:
    """Those of the processes that are still running after some time."""
    until = time.monotonic() + within_s
    while any(map(running, processes)) and time.monotonic() < until:
        time.sleep(0.02)
    return [process for process in processes if running(process)]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.mark.slow
@needs_proc
def test_processes_give_the_same_sweep() -> None:
    earlier = children(os.getpid())  # a multiprocessing test leaves its resource tracker
    with Processes(2) as pool:
        assert differences(sweep(**MIXED), sweep(**MIXED, executor=pool)) == []
        assert not pool.here
        mine = [child for child in children(os.getpid()) if child not in earlier]
        with pytest.raises(InputError, match=r"^a process ended unexpectedly; is there"):
            list(completed(pool, os._exit, [3]))
    assert len(mine) == 2
    assert left(mine) == []


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
    with pytest.raises(InputError, match=r"^a process ended unexpectedly; is there enough"):
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
    mine = tmp_path / "own.toml"
    text = (
        'schema = "perfmodel.cluster/1"\nname = "own"\nsource = {kind = "estimated", text = "x"}\n'
    )
    mine.write_text(text + '[nic]\nbandwidth_bytes_per_s = "3Gbps"\nlatency_s = "9us"\n')
    job = make_job(model="resnet50", device="v100", cluster=mine, workers=2)
    data = pickle.dumps(Task(predicted, Chunk((job,), PredictOptions())))
    many = tuple(
        make_job(workload=job.workload, cluster=job.cluster, workers=n) for n in range(1, 17)
    )
    together = pickle.dumps(Task(predicted, Chunk(many, PredictOptions())))
    assert len(together) < 4 * len(data) < 100_000
    mine.unlink()
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
    "sweep --model resnet50 --device v100 --arch asp,easgd --workers 4 --jitter 0.1 "
    "--fidelity fine --seed 1,2..96 --rel-ci 0.7%"
)


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long sweep in two processes that has written some shards."""
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
@needs_proc
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_sweep_leaves_finished_shards_and_no_process(
    begun: tuple[subprocess.Popen[str], Path], how: signal.Signals
) -> None:
    client, folder = begun
    mine = children(client.pid)
    assert len(mine) >= 2
    client.send_signal(how)
    out, err = client.communicate(timeout=20.0)
    assert out == ""
    if how is signal.SIGINT:
        assert (client.returncode, err) == (130, "\nperfmodel: interrupted\n")
    else:
        assert (client.returncode, err) == (-how, "")
    assert left(mine) == []
    there = len(list(folder.glob("0*")))
    assert 4 <= there < 64
    assert not list(folder.glob(".perfmodel*"))


STARTING = """
import sys, threading, time
from perfmodel.sweeping.processes import Processes
pool = Processes(3)
for _ in range(3):
    pool.submit(time.sleep, 60.0)
while len(pool._workers) < 3:
    time.sleep(0.001)
print("started", flush=True)
time.sleep(60.0)
"""


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("after_s", [0.0, 1.0], ids=["starting", "busy"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_a_killed_parent(how: signal.Signals, after_s: float) -> None:
    """Also while they still start, and in the middle of a task; nothing is said of semaphores."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        time.sleep(after_s)
        mine = children(parent.pid)
        parent.send_signal(how)
        _, err = parent.communicate(timeout=20.0)  # ends when no process has the pipe any more
    assert len(mine) == 3
    assert (parent.returncode, err) == (-how, "")
    assert left(mine) == []


PREDICTING = """
import sys, threading
from perfmodel import PredictOptions, make_job, predict
from perfmodel.sweeping.chunks import Chunk, predicted
from perfmodel.sweeping.executors import completed
from perfmodel.sweeping.processes import Processes
sys.setswitchinterval(1e-6)
ended = threading.Event()

def go(arch):
    while not ended.is_set():
        predict(make_job(model="resnet18", arch=arch, workers=4))

threads = [threading.Thread(target=go, args=(arch,)) for arch in ("ps", "easgd")]
for thread in threads:
    thread.start()
for _ in range(2):
    jobs = [make_job(model="resnet18", arch="ps", workers=n) for n in (2, 3, 4)]
    with Processes(3) as pool:
        work = [Chunk((job,), PredictOptions()) for job in jobs]
        print(sorted(k for k, answers in completed(pool, predicted, work)))
ended.set()
"""


@pytest.mark.slow
def test_processes_start_while_threads_predict() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREDICTING], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, 2 * "[0, 1, 2]\n", "")


def test_warnings_of_processes_are_issued_once_by_the_one_that_waits() -> None:
    with Processes(2) as pool, pytest.warns(UserWarning, match="^far away$") as caught:
        assert list(completed(pool, warnings.warn, ["far away"])) == [(0, None)]
    assert len(caught) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "said"), [((), 1), (("--quiet",), 0)])
def test_quiet_holds_for_all_processes(flags: tuple[str, ...], said: int) -> None:
    code = [sys.executable, "-c", WARNING, "sweep", "--model", "resnet18", "--arch", "ring,ps"]
    done = subprocess.run(
        [*code, "--fidelity", "fine", "--jobs", "2", *flags],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stderr == said * "perfmodel: warning: far away\n"


WARNING = """
from perfmodel.sweeping import processes
processes._START = processes._START.replace("serve()", chr(10).join((
    "import warnings",
    "from perfmodel import api",
    "from perfmodel.base.errors import PerfmodelWarning",
    "predict = api.predict",
    "def warned(*given, **named):",
    "    warnings.warn('far away', PerfmodelWarning)",
    "    return predict(*given, **named)",
    "api.predict = warned",
    "serve()",
)))
from perfmodel.__main__ import run
run()
"""


def test_the_command_takes_an_executor(tmp_path: Path) -> None:
    command = ["sweep", "--model", "resnet18", "--arch", "ring,ps", "--csv", "-"]
    plain = CliRunner().invoke(cli, command, catch_exceptions=False)
    folder = ["--jobs", "1", "--resume", str(tmp_path / "shards")]
    for _ in range(2):
        again = CliRunner().invoke(cli, [*command, *folder], catch_exceptions=False)
        assert (again.stdout, again.exit_code) == (plain.stdout, 0)
