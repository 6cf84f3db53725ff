"""Files and command lines with mistakes: each is either accepted and gives finite numbers, or is
refused in one line; quickly, and with little memory.

The slow tests try 500 of each, the same ones each time. If PERFMODEL_FUZZ is set, it gives the
number, and the examples differ each time.
"""

from __future__ import annotations

import contextlib
import csv as csv_module
import gzip
import io
import json
import os
import resource
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from perfmodel import Schedule, make_job, predict, sweep
from perfmodel.base import files, tables as table_files
from perfmodel.base.errors import InputError, PerfmodelError, PerfmodelWarning
from perfmodel.calibration import read_runs
from perfmodel.calibration.network.fit import fit_network, read as read_network
from perfmodel.calibration.placements.table import read_trainings
from perfmodel.catalogue import catalogue
from perfmodel.cli import main
from perfmodel.inputs.cluster import read_cluster
from perfmodel.inputs.device import SCHEMA as DEVICE, Device, roofline_s
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_files import read_job
from perfmodel.inputs.profile import read_profile
from perfmodel.measuring.training.run import read_run
from perfmodel.predicting.installation import fingerprint
from perfmodel.replay.plan import make_plan
from perfmodel.results.schedule import COLUMNS
from perfmodel.studies.crossovers import explain
from perfmodel.sweeping.shards import ABOUT
from perfmodel.traces.workload import import_trace
from perfmodel.validation.cases import of_run, read_cases
from tests.clock import work_s
from tests.measuring.test_outputs import LATE, MEGABYTES, ROW, iperf3, perftest, printed
from tests.mutations import ODD, as_json, command_lines, documents, drawn, tables, texts
from tests.results import test_schedule_file as schedules
from tests.settings import thinned
from tests.traces.test_deepspeed import OUTPUT
from tests.traces.test_traces import data_parallel

INPUTS = Path(__file__).parents[1] / "inputs" / "valid"
FEW, MANY = 15, 500
ASKED = os.environ.get("PERFMODEL_FUZZ")
SECONDS, TIMES, MORE_BYTES = 2.0, 22.0, 500 * 10**6
SMALL = 2e5
"""Largest number of operations of a simulation here; more would only take longer."""


def bounded(few: int) -> Any:
    """Number of examples of a test."""
    return settings(
        max_examples=int(ASKED) if ASKED and few == MANY else few,
        database=None,
        derandomize=ASKED is None,
        suppress_health_check=list(HealthCheck),
    )


# -- the property ----------------------------------------------------------------------------------


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Limit the additional memory of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def one_line(text: str) -> bool:
    """Return whether a message is one printable line of readable length."""
    return bool(text) and text.isprintable() and len(text) <= 4200


class TooSlowError(Exception):
    """An action took too long, twice."""


_predicting_s: list[float] = []
"""Durations of the predictions made from a file."""


def too_long(seconds: float) -> bool:
    """Return whether it is longer than SECONDS, and than they are on a slower machine."""
    return seconds >= SECONDS and seconds >= TIMES * work_s()


def soon(use: Callable[[], Any]) -> Any:
    """Result or exception of ``use``, which must not take too long; tried twice."""
    for _ in range(2):
        said = error = None
        begin = time.process_time()
        try:
            said = use()
        except PerfmodelError as caught:
            error = caught
        _predicting_s.append(time.process_time() - begin)
        if not too_long(_predicting_s[-1]):
            if error is not None:
                raise error
            return said
    raise TooSlowError(_predicting_s[-1])


def check(use: Callable[[], Any]) -> bool:
    """Return whether the input was accepted; fails if it was neither accepted nor refused
    correctly.

    Reading may take SECONDS, and so may each prediction.
    """
    wrong = ""
    _predicting_s.clear()
    begin = time.process_time()
    try:
        with little_memory():
            said = use()
    except PerfmodelError as error:
        wrong = str(error)
    assert not too_long(time.process_time() - begin - sum(_predicting_s))
    if wrong:
        assert one_line(wrong)
        return False
    json.dumps(said, allow_nan=False)
    return True


def answers(job: Job) -> list[Any]:
    """Predict by both routes, which must agree if the coarse one claims to be exact."""
    with_formulas = soon(lambda: predict(job, fidelity="coarse"))
    found = [with_formulas.to_dict()]
    try:
        simulated = soon(lambda: predict(job, fidelity="fine", max_ops=SMALL, rel_ci=0.2))
    except InputError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert one_line(said)
        return found
    found.append(simulated.to_dict())
    band = with_formulas.error_band
    if band is not None and band.p90 == 0.0:
        assert with_formulas.iteration_s == pytest.approx(simulated.iteration_s, rel=1e-6)
    return found


# -- loaders ---------------------------------------------------------------------------------------


def of_profile(path: Path) -> Any:
    profile = read_profile(path)
    return [answers(make_job(workload=profile, arch=arch, workers=2)) for arch in ("ps", "ring")]


def of_device(path: Path) -> Any:
    device = files.read(path, Device, DEVICE)
    layers = catalogue.model("resnet18").layers
    return [roofline_s(device, layers, 32, name) for name in ("float32", "mixed")]


def of_cluster(path: Path) -> Any:
    cluster = read_cluster(path)
    work = INPUTS / "fine.json"
    return [
        answers(make_job(workload=work, cluster=cluster, arch=arch, workers=3))
        for arch in ("asp", "ring", "p2p")
    ]


def of_job(path: Path) -> Any:
    return answers(make_job(**read_job(path)))


def of_cases(path: Path) -> Any:
    return [answers(found.job) for found in read_cases(path)[:3]]


def of_run_file(path: Path) -> Any:
    found = of_run(read_run(path), INPUTS / "fine.json", "ethernet-10g")
    return [msgspec.to_builtins(found.measured), *answers(found.job)]


def of_runs(path: Path) -> Any:
    found = read_runs(path, cluster=catalogue.cluster("ethernet-10g"))
    return [[run.step_s, *answers(run.job)] for run in found.runs[:3]]


def of_placements(path: Path) -> Any:
    return msgspec.to_builtins(read_trainings(path))


def of_measurements(path: Path) -> Any:
    return msgspec.to_builtins(read_network(path))


def of_network(path: Path) -> Any:
    return fit_network([read_network(path)]).to_dict()


def of_trace(path: Path) -> Any:
    return msgspec.to_builtins(import_trace(path))


def of_schedule(path: Path) -> Any:
    schedule = Schedule.read(path)
    rates = make_plan(schedule).gathered
    counts = schedule.staleness_histogram(), schedule.applied().tolist()
    return [repr(schedule), len(schedule.frame()), rates, *counts]


def of_shards(path: Path) -> Any:
    """Resume a sweep with a shard, or its description, replaced by the file."""
    folder = path.parent / "resumed"
    for old in folder.glob("*") if folder.exists() else ():
        old.unlink()
    asked: dict[str, Any] = {"workload": INPUTS / "fine.json", "workers": [1], "arch": "ring"}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", PerfmodelWarning)
        patch.setattr(table_files, "has_parquet", lambda: False)
        sweep(**asked, fidelity="coarse", resume=folder)
        (shard,) = folder.glob("0*.csv")
        (shard if path.suffix == ".csv" else folder / ABOUT).write_bytes(path.read_bytes())
        return sweep(**asked, fidelity="coarse", resume=folder).rows()


def read_document(path: Path) -> Any:
    data = path.read_bytes()
    return tomllib.loads(data.decode()) if path.suffix == ".toml" else json.loads(data)


SOURCE = {"kind": "measured", "text": "made up"}
CASES = {
    "schema": "perfmodel.cases/1",
    "name": "made-up",
    "source": SOURCE,
    "workloads": {"two-layers": read_document(INPUTS / "fine.json")},
    "clusters": {"mixed": read_document(INPUTS / "cluster.toml")},
    "cases": [
        {
            "name": "first",
            "job": {"workload": "two-layers", "cluster": "mixed", "workers": 3, "arch": "ring"},
            "measured": {"step_s": 0.1, "spread_fraction": 0.01},
        },
        {
            "name": "second",
            "job": {
                "workload": "two-layers",
                "workers": 2,
                "device": "testbox",
                "batch_size": 16,
                "one_worker_samples_per_s": 100.0,
                "options": {"sync": "asp"},
                "jitter": "gamma:0.1",
                "stragglers": [{"worker": 1, "factor": 1.5}],
            },
            "measured": {"samples_per_s": 50.0, "idle_fraction": 0.1, "staleness_mean": 1.0},
        },
    ],
}
RUN = {
    "schema": "perfmodel.run/1",
    "name": "made-up",
    "workload": "two-layers",
    "batch_size": 16,
    "workers": 2,
    "arch": "ps",
    "options": {"sync": "asp", "servers": 1, "overlap": True, "partition_bytes": 1e6},
    "jitter": "0.1",
    "measured": {
        "iterations": 100, "warmup": 10, "iteration_s": 2.0, "iteration_std_s": 0.1,
        "worker_iteration_s": [2.0, 2.0], "samples_per_s": 16.0, "compute_s": 1.0,
        "idle_fraction": 0.5, "staleness": {"0": 1, "2": 1}, "update_per_tensor_s": 1e-4,
        "update_per_byte_s": 1e-10, "sent_bytes": 1e6,
    },
    "source": SOURCE,
}  # fmt: skip
PERFTEST = perftest("RDMA_Write BW Test", MEGABYTES, ROW)

MEASUREMENTS = {
    "schema": "perfmodel.measurements/1",
    "name": "made-up",
    "backend": "tcp",
    "nodes": [0, 1],
    "source": SOURCE,
    "measurements": [
        {"operation": "ping_pong", "bytes": 4, "seconds": [5e-5, 6e-5]},
        {"operation": "stream", "bytes": 1e6, "seconds": [1e-3, 1.1e-3]},
        {"operation": "stream", "bytes": 1e7, "seconds": [9e-3, 9.1e-3]},
        {"operation": "messages", "bytes": 256, "count": 100, "seconds": [1e-3]},
        {"operation": "duplex", "bytes": 1e7, "seconds": [1e-2]},
        {"operation": "incast", "bytes": 1e6, "ranks": 3, "seconds": [2e-3]},
        {"operation": "all_reduce", "bytes": 1e4, "ranks": 2, "seconds": [1e-4, 1.1e-4]},
        {"operation": "all_reduce", "bytes": 1e7, "ranks": 2, "seconds": [1e-2]},
        {"operation": "all_reduce", "bytes": 1e7, "ranks": 4, "seconds": [1.5e-2], "at_once": 2},
    ],
}
RUNS = [
    ["model", "workload", "device", "batch_size", "workers", "arch", "sync", "servers", "jitter",
     "bandwidth_bytes_per_s", "spread_fraction", "step_s", "samples_per_s"],
    ["resnet18", "", "v100", "32", "2", "ps", "bsp", "1", "0.1", "1e9", "0.01", "0.5", ""],
    ["resnet18", "", "v100", "32", "4", "ring", "", "", "", "10Gbps", "", "", "300"],
    ["alexnet", "", "v100", "64", "8", "asp", "", "2", "", "", "", "0.9", ""],
]  # fmt: skip
PLACEMENTS = [
    ["model", "placement", "batch_size", "step_s", "gradient_bytes", "waiting_s"],
    ["one", "1", "16", "0.08", "1e8", ""],
    ["one", "2", "16", "90 ms", "1e8", "0.01"],
    ["one", "2+1", "16", "0.2", "100 MB", "0.1"],
    ["two", "1", "8", "0.1", "2e8", ""],
]
NETWORK = [
    ["operation", "ranks", "bytes", "seconds", "count", "at_once"],
    ["ping_pong", "2", "4096", "3.8e-5", "", ""],
    ["stream", "2", "1e6", "1e-3", "", ""],
    ["stream", "2", "1e7", "9e-3", "", ""],
    ["messages", "2", "256", "1e-3", "100", ""],
    ["all_reduce", "2", "1024", "1e-4", "", "1"],
    ["all_reduce", "4", "1e7", "2e-2", "", ""],
]
CALIBRATED = read_document(INPUTS / "cluster.toml") | {
    "calibration": {
        "parameters": ["nic.latency_s", "nic.efficiency"],
        "covariance": [[0.04, 0.01], [0.01, 0.09]],
        "spread": 0.05,
        "computing_spread": 0.02,
        "ranges": {"workers": [1, 8], "batch_size": [16, 64]},
        "growth": {"workers": 0.03},
        "rows": 12,
    }
}
SCHEDULE = {
    "header": msgspec.to_builtins(schedules.HEADER),
    **{name: getattr(schedules.SCHEDULE, name).tolist() for name in COLUMNS},
}
SHARD = [
    ["index", "point", "reason", "prediction"],
    ["0", "{}", "", predict(make_job(model="resnet18", arch="ring", workers=1)).to_json()],
]
DESCRIPTION = {
    "schema": "perfmodel.shards/1", "installation": fingerprint(),
    "how": {"fidelity": "coarse", "rel_ci": 0.01}, "axes": {"workers": [1]}, "inputs": "0" * 24,
}  # fmt: skip
TRACE = {"traceEvents": data_parallel().events, "deviceProperties": data_parallel().properties}
ZIPPED = gzip.compress(as_json(TRACE), mtime=0)


def documented(path: Path) -> st.SearchStrategy[bytes]:
    """Mutated files: a valid document with mistakes as JSON, or its text with mistakes."""
    return mistaken(read_document(path), path.read_bytes())


def made(document: Any) -> st.SearchStrategy[bytes]:
    return mistaken(document, as_json(document))


def mistaken(document: Any, text: bytes) -> st.SearchStrategy[bytes]:
    """Mostly mutated contents, one time in four mutated text."""
    return drawn(lambda r: as_json(documents(r, document)) if r.random() < 0.75 else texts(r, text))


def suffixed(ending: str, data: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[str, bytes]]:
    return data.map(lambda found: (ending, found))


def csv(rows: list[list[str]]) -> st.SearchStrategy[bytes]:
    valid = "\n".join(map(",".join, rows)).encode()
    return drawn(lambda r: tables(r, rows) if r.random() < 0.75 else texts(r, valid))


def packed(document: Any) -> bytes:
    """A schedule file of a header and columns, as far as they fit into arrays."""
    parts = document if isinstance(document, dict) else {}
    arrays = {}
    for name, values in parts.items():
        kind = COLUMNS.get(name)
        try:
            with np.errstate(all="ignore"):
                found = np.array(values) if kind is None else np.array(values).astype(kind)
        except (TypeError, ValueError, OverflowError):
            found = np.zeros((1, 1))
        if name == "header":
            found = np.frombuffer(as_json(values), np.uint8)
        if found.dtype != object and name.isidentifier():
            arrays[name] = found
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def shards() -> st.SearchStrategy[bytes]:
    """Mutated shards: their rows, the prediction in a row, or their text."""
    cells = [dict(zip(SHARD[0], row, strict=True)) for row in SHARD[1:]]
    cells[0]["prediction"] = json.loads(SHARD[1][3])
    out = io.StringIO()
    csv_module.writer(out).writerows(SHARD)
    valid = out.getvalue().encode()

    def shard(r: Random) -> bytes:
        if r.random() < 0.4:
            return texts(r, valid)
        (row,) = cells
        answer = json.dumps(documents(r, row["prediction"]))
        out = io.StringIO()
        csv_module.writer(out).writerows([SHARD[0], ["0", "{}", "", answer]])
        return out.getvalue().encode("utf-8", "replace")

    return drawn(shard)


def texts_of(path: Path) -> st.SearchStrategy[bytes]:
    return drawn(lambda r: texts(r, path.read_bytes()))


LOADERS: dict[str, tuple[Callable[[Path], Any], st.SearchStrategy[tuple[str, bytes]]]] = {
    "workload": (of_profile, suffixed(".json", documented(INPUTS / "fine.json"))),
    "coarse workload": (of_profile, suffixed(".json", documented(INPUTS / "coarse_totals.json"))),
    "workload, toml": (
        of_profile, suffixed(".toml", texts_of(INPUTS / "coarse_throughput.toml")),
    ),
    "device": (
        of_device, suffixed(".json", documented(catalogue.folder() / "devices" / "v100.toml")),
    ),
    "cluster": (of_cluster, suffixed(".json", documented(INPUTS / "cluster.toml"))),
    "cluster, toml": (of_cluster, suffixed(".toml", texts_of(INPUTS / "cluster.toml"))),
    "cluster, calibrated": (of_cluster, suffixed(".json", made(CALIBRATED))),
    "schedule": (of_schedule, suffixed(".npz", drawn(lambda r: packed(documents(r, SCHEDULE))))),
    "schedule, packed": (
        of_schedule, suffixed(".npz", drawn(lambda r: texts(r, packed(SCHEDULE)))),
    ),
    "shard": (of_shards, suffixed(".csv", shards())),
    "sweep": (of_shards, suffixed(".json", made(DESCRIPTION))),
    "job": (of_job, suffixed(".json", documented(INPUTS / "job.toml"))),
    "cases": (of_cases, suffixed(".json", made(CASES))),
    "run": (of_run_file, suffixed(".json", made(RUN))),
    "runs": (of_runs, suffixed(".csv", csv(RUNS))),
    "placements": (of_placements, suffixed(".csv", csv(PLACEMENTS))),
    "measurements": (of_measurements, suffixed(".json", made(MEASUREMENTS))),
    "network": (of_network, suffixed(".json", made(MEASUREMENTS))),
    "network, table": (of_network, suffixed(".csv", csv(NETWORK))),
    "nccl-tests": (
        of_measurements, suffixed(".txt", drawn(lambda r: texts(r, printed("aabb").encode()))),
    ),
    "iperf3": (of_measurements, suffixed(".json", made(iperf3()))),
    "osu": (of_measurements, suffixed(".txt", drawn(lambda r: texts(r, LATE.encode())))),
    "perftest": (of_measurements, suffixed(".txt", drawn(lambda r: texts(r, PERFTEST.encode())))),
    "deepspeed": (of_trace, suffixed(".txt", drawn(lambda r: texts(r, OUTPUT.encode())))),
    "trace": (of_trace, suffixed(".json", made(TRACE))),
    "trace, gzip": (
        of_trace,
        suffixed(
            ".json.gz",
            st.one_of(made(TRACE).map(gzip.compress), drawn(lambda r: texts(r, ZIPPED))),
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Do one-time compilation and reading in advance, so that it does not count below."""
    predict(make_job(model="resnet50", device="v100", arch="asp", workers=32))
    for arch in ("ps", "ring", "p2p", "asp"):
        job = make_job(model="resnet18", arch=arch, workers=2, jitter=0.1)
        predict(job, fidelity="coarse")
        predict(job, rel_ci=0.2)
    explain(make_job(model="resnet18", device="h100", arch="easgd"))  # imports SymPy


def tried(name: str, count: int, folder: Path) -> None:
    """A test that tries a loader on ``count`` files."""
    use, strategy = LOADERS[name]

    @bounded(count)
    @given(strategy)
    def test(file: tuple[str, bytes]) -> None:
        path = folder / f"file{file[0]}"
        path.write_bytes(file[1])
        for other in ("fine.json", "cluster.toml"):
            if not (folder / other).exists():
                (folder / other).write_bytes((INPUTS / other).read_bytes())
        check(lambda: use(path))

    test()


def test_mistakes_stay_in_their_document() -> None:
    before = json.dumps(ODD)
    r = Random(0)
    for _ in range(50):
        json.dumps(documents(r, [None, {"a": True}]))  # refuses a document that contains itself
    assert json.dumps(ODD) == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", thinned(LOADERS))
def test_files_with_mistakes(name: str, tmp_path: Path) -> None:
    tried(name, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_many_files_with_mistakes(name: str, tmp_path: Path) -> None:
    tried(name, MANY, tmp_path)


# -- command lines ---------------------------------------------------------------------------------

COMMANDS = [
    line.split()
    for line in (
        "predict --model resnet18 --arch ps --workers 4 --servers 2 --bandwidth 10Gbps --json",
        "predict --model resnet50 --device v100 --arch ring --workers 4 --latency 50us "
        "--batch-size 32 --option partition_bytes=1MB --json",
        "predict --model alexnet --device k80 --arch asp --workers 3 --jitter gamma:0.1 --seed 3 "
        "--straggler 1:1.5 --rel-ci 20% --max-ops 1e5 --json",
        "predict --model resnet18 --arch ssp --staleness-bound 2 --workers 3 --fidelity auto "
        "--tolerance 5% --dataset-size 1000 --epochs 3 --max-ops 1e5",
        "predict --job job.toml --fidelity both --max-ops 1e5",
        "predict --workload fine.json --cluster cluster.toml --arch p2p --workers 3 --json "
        "--option transmission=quantum --option quantum_bytes=64KiB --option partition_bytes=1MB",
        "predict --model vgg16 --device p100 --arch gosgd --workers 4 --option probability=0.2 "
        "--fidelity coarse --json",
        "predict --model resnet18 --arch ps --workers 4 --option compression=top_k "
        "--option density=0.01 --option encode_per_byte_s=1e-10 --no-overlap --json",
        "sweep --model resnet18 --arch ring,ps --workers 1,2,4..16 --bandwidth 1Gbps,10Gbps "
        "--fidelity coarse --json",
        "compare --model resnet18 --arch ring,ps --workers 4 --fidelity coarse --json",
        "explain --model resnet18 --arch ps --workers 4 --bandwidth 1Gbps --against ring --json",
        "show ps --formula --option overlap=false --json",
        "show resnet18", "list models", "validate cases.json --fidelity coarse --json",
        "validate run.json --workload fine.json --cluster cluster.toml --fidelity coarse",
        "import trace.json --batch-size 16 --name x --precision float32 --json",
        "calibrate network network.csv --json",
    )
]  # fmt: skip


def run(words: list[str]) -> tuple[Any, str, str]:
    """Exit code, standard output and standard error of a command line."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["perfmodel", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        return end.code, out.getvalue(), err.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("the command did not end")


def tried_commands(count: int, folder: Path) -> None:
    for other in ("fine.json", "cluster.toml", "job.toml"):
        (folder / other).write_bytes((INPUTS / other).read_bytes())
    (folder / "cases.json").write_bytes(as_json(CASES))
    (folder / "run.json").write_bytes(as_json(RUN))
    (folder / "trace.json").write_bytes(as_json(TRACE))
    (folder / "network.csv").write_text("\n".join(map(",".join, NETWORK)))

    @bounded(count)
    @given(drawn(lambda r: command_lines(r, COMMANDS)))
    def test(words: list[str]) -> None:
        with contextlib.chdir(folder), little_memory():
            code, out, err = soon(lambda: run(words))
        assert code in (0, 1, 2), code
        if code == 2:
            assert out == ""
            *_, line = err.splitlines() or [""]
            assert err.count("\n") == 1, err
            assert one_line(line), err
            assert line.startswith("perfmodel: error: ")
        else:
            assert "\x1b" not in out + err
            if "--json" in words and out.startswith("{"):
                json.loads(out, parse_constant=no_json)

    test()


def test_an_extremely_slow_link_is_refused(tmp_path: Path) -> None:
    """The other workers would be simulated for millions of iterations."""
    text = (INPUTS / "cluster.toml").read_text()
    (tmp_path / "cluster.toml").write_text(text.replace('latency_s = "50us"', "latency_s = 1000"))
    with pytest.raises(InputError, match="latency_s: must be at most 100, got 1000"):
        of_cluster(tmp_path / "cluster.toml")


@pytest.mark.slow
def test_ten_thousand_servers_are_predicted_quickly(tmp_path: Path) -> None:
    """Servers with equal shares of tensors are evaluated once."""
    (tmp_path / "runs.csv").write_text(
        "model,device,batch_size,workers,arch,sync,servers,jitter,bandwidth_bytes_per_s,step_s\n"
        "resnet18,v100,32,2,ps,bsp,10000,0.1,1e9,0.5\n"
    )
    assert check(lambda: of_runs(tmp_path / "runs.csv"))


def test_names_with_control_characters_are_printed_as_escapes(tmp_path: Path) -> None:
    for name in ("trace.json", "\x1b[2J.json"):
        (tmp_path / name).write_bytes(as_json(TRACE))
    for words in (["trace.json", "--name", "\x1b[2J", "--device-name", "\x1b[m"], ["\x1b[2J.json"]):
        with contextlib.chdir(tmp_path):
            code, out, err = run(["import", *words, "--batch-size", "16"])
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert r"\x1b[2J, 2 layers" in out


def no_json(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


def test_command_lines_with_mistakes(tmp_path: Path) -> None:
    tried_commands(FEW, tmp_path)


@pytest.mark.slow
def test_many_command_lines_with_mistakes(tmp_path: Path) -> None:
    tried_commands(MANY, tmp_path)
