"""Importing traces: each microsecond of synthetic steps is attributed correctly."""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError, api
from perfmodel.cli import cli
from perfmodel.inputs.profile import read_profile
from perfmodel.traces.workload import ImportedTrace, import_trace
from tests.schemas import breaches

FOLDER = Path(
    os.environ.get(
        "PERFMODEL_TRACES",
        Path(__file__).resolve().parents[3] / "shared" / "data" / "kineto_traces",
    )
)

MAIN, AUTOGRAD = 1, 2
COMPUTE, SENDING = 7, 40
NODE = "autograd::engine::evaluate_function: "
US = 1e-6


class Made:
    """Builder of a trace; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.properties = [{"id": 0, "name": "Made-up GPU"}]

    def host(
        self,
        name: str,
        start: float,
        end: float,
        thread: int = MAIN,
        cat: str = "cpu_op",
        **args: Any,
    ) -> None:
        """An operator or an annotation."""
        self._add(cat, name, 100, thread, start, end, args)

    def kernel(
        self,
        launched: float,
        start: float,
        end: float,
        name: str = "gemm",
        thread: int = MAIN,
        stream: int = COMPUTE,
        cat: str = "kernel",
    ) -> None:
        """A device activity and its launch."""
        args = {"correlation": len(self.events), "device": 0}
        self._add("cuda_runtime", "cudaLaunchKernel", 100, thread, launched, launched + 1, args)
        self._add(cat, name, 0, stream, start, end, args)

    def _add(
        self,
        cat: str,
        name: str,
        pid: int,
        tid: int,
        start: float,
        end: float,
        args: dict[str, Any],
    ) -> None:
        args = {word.replace("_", " "): value for word, value in args.items()}
        times = {"ts": 5e6 + start, "dur": end - start}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}
        )

    def to(self, path: Path) -> Path:
        data = json.dumps({"traceEvents": self.events, "deviceProperties": self.properties})
        path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
        return path


def shaped(*shapes: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)}


def backward(made: Made, name: str, number: int, at: float, kernel: tuple[float, float]) -> None:
    """A node of autograd and its kernel."""
    made.host(NODE + name, at, at + 8, AUTOGRAD, Sequence_number=number)
    made.host(name, at + 1, at + 7, AUTOGRAD, Sequence_number=number)
    made.kernel(at + 2, *kernel, thread=AUTOGRAD)


def accumulate(made: Made, shape: list[int], at: float) -> None:
    made.host(f"{NODE}torch::autograd::AccumulateGrad", at, at + 4, AUTOGRAD)
    made.host("torch::autograd::AccumulateGrad", at + 1, at + 3, AUTOGRAD, **shaped(shape))


def all_reduce(made: Made, elements: int, at: float, kernel: tuple[float, float]) -> None:
    size: dict[str, Any] = {
        "In_msg_nelems": elements,
        "dtype": "Float",
        "Collective_name": "allreduce",
    }
    made.host(f"{NODE}torch::autograd::AccumulateGrad", at, at + 10, AUTOGRAD)
    made.host("c10d::allreduce_", at + 1, at + 9, AUTOGRAD)
    made.host("record_param_comms", at + 2, at + 8, AUTOGRAD, **size)
    made.host("nccl:all_reduce", at + 3, at + 7, AUTOGRAD, "user_annotation")
    made.kernel(at + 4, *kernel, "ncclKernel_AllReduce_RING", AUTOGRAD, SENDING)


def data_parallel(steps: int = 2) -> Made:
    """Two linear layers on one of two GPUs, 1000 us per step; the second step's first layer
    takes 20 us longer and starts 20 us earlier.

    On the device: a copy, forward (linear 60, relu 20; linear 40, loss 10), backward of the second
    layer (60), a copy to a bucket (5), two all-reduces of 100 each, behind which backward of the
    first layer (20 + 60) hides, and an update (30).
    """
    made = Made()
    for n in range(steps):
        t, number, longer = 1000.0 * n, 10 + 3 * n, 20.0 * (n % 2)
        made.host(f"ProfilerStep#{4 + n}", t, t + 990, cat="user_annotation")
        loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        made.host(loader, t, t + 50, cat="user_annotation")
        made.host("aten::copy_", t + 52, t + 54)
        made.kernel(t + 53, t + 55, t + 75, "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy")
        made.host("Optimizer.zero_grad#SGD.zero_grad", t + 76, t + 80, cat="user_annotation")
        first = shaped([16, 8], [32, 8], [32])
        made.host("aten::linear", t + 82, t + 90, Sequence_number=number, **first)
        made.host("aten::addmm", t + 83, t + 89, Sequence_number=number)
        made.kernel(t + 84, t + 110 - longer, t + 170)
        made.host("aten::relu", t + 120, t + 130, Sequence_number=number + 1)
        made.kernel(t + 121, t + 170, t + 190, "relu")
        second = shaped([16, 32], [4, 32], [4])
        made.host("aten::linear", t + 140, t + 150, Sequence_number=number + 2, **second)
        made.kernel(t + 141, t + 190, t + 230)
        made.host("aten::mse_loss", t + 160, t + 165)
        made.kernel(t + 161, t + 230, t + 240, "loss")
        backward(made, "AddmmBackward0", number + 2, t + 290, (t + 300, t + 360))
        accumulate(made, [4], t + 300)
        accumulate(made, [4, 32], t + 305)
        made.host("torch::distributed::reducer::mul_out", t + 310, t + 315, AUTOGRAD)
        made.kernel(t + 311, t + 360, t + 365, "copy", AUTOGRAD)
        all_reduce(made, 4 + 4 * 32, t + 320, (t + 365, t + 465))
        backward(made, "ReluBackward0", number + 1, t + 340, (t + 365, t + 385))
        backward(made, "AddmmBackward0", number, t + 350, (t + 385, t + 445))
        accumulate(made, [32], t + 360)
        accumulate(made, [32, 8], t + 365)
        all_reduce(made, 32 + 32 * 8, t + 370, (t + 465, t + 565))
        made.host("Optimizer.step#SGD.step", t + 500, t + 510, cat="user_annotation")
        made.host("aten::_foreach_add_", t + 501, t + 509)
        made.kernel(t + 502, t + 565, t + 595, "add")
    return made


PARTS = {
    "computing": 130 + 10 + 65 + 30,
    "communication_hidden": 80,
    "communication_exposed": 120,
    "copies": 20,
    "data_loading": 50,
    "idle": 505 - 10 - 5,
}
"""Means of the two steps in microseconds. The last step ends with its annotation, 10 us earlier."""
BYTES = 4.0 * (4 + 4 * 32 + 32 + 32 * 8)


def as_expected(found: ImportedTrace) -> bool:
    """Check that everything in the synthetic trace is attributed as constructed."""
    if found.workload is None or not found.workload.layers:
        return False
    timing = found.workload.timings[0]
    times = {
        "forward": timing.forward_s == pytest.approx((90 * US, 50 * US)),
        "backward": timing.backward_s == pytest.approx((80 * US, 60 * US)),
        "spread": timing.forward_std_s == pytest.approx((200**0.5 * US, 0.0), abs=1e-12),
        "optimizer": timing.optimizer_s == pytest.approx(30 * US),
        "copy": timing.copy_s == pytest.approx(20 * US),
        "other": timing.other_s == pytest.approx((PARTS["idle"] + 5) * US),
        "loading": timing.data_loading_s == pytest.approx((995 - 120) * US),
        "step": found.step_s == pytest.approx(995 * US),
    }
    parts = {part: seconds / US for part, seconds in found.parts_s.items()}
    tensors = [[t.bytes for t in layer.tensors] for layer in found.workload.layers]
    return (
        all(times.values())
        and parts == pytest.approx(PARTS)
        and tensors == [[1024.0, 128.0], [512.0, 16.0]]
        and found.gradients.bytes == found.gradients.message_bytes == BYTES
    )


@pytest.mark.parametrize("name", ["made.json", "made.json.gz", "made.pt.trace.json.gz"])
def test_all_work_is_attributed_correctly(tmp_path: Path, name: str) -> None:
    found = import_trace(data_parallel().to(tmp_path / name))
    assert as_expected(found)
    assert found.workload is not None
    assert found.workload.name == "made"
    assert [layer.kind for layer in found.workload.layers] == ["linear", "linear"]
    timing = found.workload.timings[0]
    assert (timing.device, timing.batch_size, timing.precision) == ("Made-up GPU", 16, "float32")
    assert found.parts_per_step_fraction == pytest.approx(1.0)
    assert found.timing_per_step_fraction == pytest.approx(1.0)
    assert found.gradients.tensors == 4
    assert found.gradients.messages == 2


def without_numbers(event: dict[str, Any]) -> None:
    event["args"].pop("Sequence number", None)


def without_nccl(event: dict[str, Any]) -> None:
    if "nccl" in event["name"] or event["name"].startswith(("c10d", "record_param_comms")):
        event["name"] = "gemm"


def without_launches(event: dict[str, Any]) -> None:
    if event["cat"] == "cuda_runtime":
        event["args"]["correlation"] += 1_000_000


def without_updates(event: dict[str, Any]) -> None:
    event["name"] = event["name"].replace("Optimizer.step#", "## optimizer ")


def longer(event: dict[str, Any]) -> None:
    event["dur"] += 1.0 if event["name"] == "relu" else 0.0


def without_buckets(event: dict[str, Any]) -> None:
    event["name"] = event["name"].replace("torch::distributed::reducer::", "aten::")


def without_loading(event: dict[str, Any]) -> None:
    event["name"] = event["name"].replace("enumerate(DataLoader)", "wait")


def double(event: dict[str, Any]) -> None:
    event["args"] |= {"Input type": ["double"]} if "Input type" in event["args"] else {}


def as_in_torch_1_8(made: Made) -> Made:
    """The same trace as older releases wrote it: no marks around nodes of autograd, which lose
    their number at the end, other categories, and threads as text."""
    categories = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel"}
    categories |= {"cuda_runtime": "Runtime", "gpu_memcpy": "Memcpy"}
    made.events = [event for event in made.events if not event["name"].startswith(NODE)]
    for event in made.events:
        event["cat"] = categories[event["cat"]]
        event["name"] = event["name"].replace("Backward0", "Backward")
        event["tid"] = f"stream {event['tid']}" if event["pid"] == 0 else str(event["tid"])
    return made


def test_traces_of_torch_1_8_give_the_same(tmp_path: Path) -> None:
    assert as_expected(import_trace(as_in_torch_1_8(data_parallel()).to(tmp_path / "made.json")))


@pytest.mark.parametrize(
    "name",
    [
        "MmBackward",
        "torch::autograd::CopyBackwards",
        "torch::jit::(anonymous)Backward0",
        "aten::mm",
    ],
)
def test_canary_other_names_are_no_nodes(tmp_path: Path, name: str) -> None:
    made = as_in_torch_1_8(data_parallel())
    for event in made.events:
        if event["name"].endswith("Backward"):
            event["name"] = name
    node = name in ("MmBackward", "torch::autograd::CopyBackwards")
    assert as_expected(import_trace(made.to(tmp_path / "made.json"))) == node


CHANGES = [
    *(without_numbers, without_nccl, without_launches, without_updates),
    *(longer, without_buckets, without_loading, double),
]


@pytest.mark.parametrize("change", CHANGES)
def test_canary_a_changed_trace_is_noticed(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    made = data_parallel()
    for event in made.events:
        change(event)
    assert not as_expected(import_trace(made.to(tmp_path / "made.json"), batch_size=16))


def test_given_values_take_precedence(tmp_path: Path) -> None:
    path = data_parallel().to(tmp_path / "made.json")
    given: dict[str, Any] = {
        "name": "mine",
        "device_name": "lab",
        "batch_size": 64,
        "precision": "tf32",
    }
    profile = import_trace(path, **given).workload
    assert profile is not None
    timing = profile.timings[0]
    assert (profile.name, timing.device, timing.batch_size, timing.precision) == (
        *("mine", "lab", 64, "tf32"),
    )


# -- steps -----------------------------------------------------------------------------------------


def test_a_device_that_lags_its_host_has_its_own_steps(tmp_path: Path) -> None:
    """The host launches three steps of 10 us each; each takes the device 100 us."""
    made = Made()
    for n in range(3):
        made.host(f"ProfilerStep#{n}", 10 * n, 10 * n + 10, cat="user_annotation")
        made.host("aten::linear", 10 * n + 1, 10 * n + 2, Sequence_number=n)
        made.kernel(10 * n + 1.5, 100 * n + 5, 100 * n + 45)
        backward(made, "AddmmBackward0", n, 10 * n + 2, (100 * n + 45, 100 * n + 105))
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.steps == 3
    assert found.step_s == pytest.approx(305 / 3 * US)
    assert found.compute_s["forward"] == pytest.approx(40 * US)
    assert found.compute_s["backward"] == pytest.approx(60 * US)
    assert found.parts_s["idle"] == pytest.approx(5 / 3 * US)  # before the first kernel


def unmarked(steps: int, updates: bool) -> Made:
    """The same steps every 200 us without step annotations, with or without update annotations."""
    made = Made()
    for n in range(steps):
        t = 200.0 * n
        made.host("aten::linear", t + 1, t + 2, Sequence_number=n, **shaped([8, 2], [2, 2]))
        made.kernel(t + 1.5, t + 5, t + 45)
        backward(made, "AddmmBackward0", n, t + 50, (t + 60, t + 120))
        accumulate(made, [2, 2], t + 60)
        if updates:
            made.host("Optimizer.step#Adam.step", t + 130, t + 140, cat="user_annotation")
            made.kernel(t + 135, t + 140, t + 150)
    return made


def test_steps_without_annotations_are_delimited_by_updates(tmp_path: Path) -> None:
    found = import_trace(unmarked(4, updates=True).to(tmp_path / "made.json"))
    assert found.steps == 3  # the beginning of the first one is unknown
    assert "update" in found.steps_by
    assert found.step_s == pytest.approx(200 * US)
    assert found.step_std_s == pytest.approx(0.0, abs=1e-12)
    assert found.compute_s["optimizer"] == pytest.approx(10 * US)


def test_a_trace_without_any_mark_is_one_step(tmp_path: Path) -> None:
    found = import_trace(unmarked(1, updates=False).to(tmp_path / "made.json"))
    assert (found.steps, found.step_std_s) == (1, None)
    assert "whole trace" in found.steps_by
    assert found.step_s == pytest.approx(119 * US)
    assert found.workload is not None
    assert found.workload.timings[0].forward_std_s is None


def test_a_pause_of_the_profiler_is_not_a_long_step(tmp_path: Path) -> None:
    made = data_parallel(4)
    for event in made.events:  # the last two steps follow a pause
        if event["ts"] >= 5e6 + 2000:
            event["ts"] += 1e6
            event["name"] = event["name"].replace("#6", "#96").replace("#7", "#97")
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.steps == 4
    assert found.step_s == pytest.approx(995 * US)


def test_work_launched_before_the_trace_drops_the_first_step(tmp_path: Path) -> None:
    made = data_parallel(3)
    made.kernel(-50, 0, 40)
    del made.events[-2]  # its launch
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.steps == 2
    assert any("first step left out" in note for note in found.notes)


def test_accumulation_is_detected(tmp_path: Path) -> None:
    made = Made()
    for n in range(2):
        made.host(f"ProfilerStep#{n}", 1000 * n, 1000 * n + 1000, cat="user_annotation")
        for k in range(3):
            t, number = 1000.0 * n + 200 * k, 3 * n + k
            made.host("aten::linear", t, t + 2, Sequence_number=number, **shaped([8, 2], [2, 2]))
            made.kernel(t + 1, t + 5, t + 45)
            backward(made, "AddmmBackward0", number, t + 50, (t + 60, t + 120))
            accumulate(made, [2, 2], t + 60)
        made.host("Optimizer.step#Adam.step", t + 130, t + 140, cat="user_annotation")
    profile = import_trace(made.to(tmp_path / "made.json")).workload
    assert profile is not None
    timing = profile.timings[0]
    assert (timing.accumulation, timing.batch_size) == (3, 24)
    assert timing.forward_s == pytest.approx((120 * US,))
    assert timing.backward_s == pytest.approx((180 * US,))
    assert profile.parameter_bytes == 16.0


def test_loading_on_the_training_thread_is_not_a_separate_limit(tmp_path: Path) -> None:
    made = data_parallel()
    for event in made.events:
        event["name"] = event["name"].replace("MultiProcessing", "SingleProcess")
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.workload is not None
    timing = found.workload.timings[0]
    assert timing.data_loading_s == 0.0
    assert timing.other_s == pytest.approx((PARTS["idle"] + 5 + 50) * US)
    assert found.timing_per_step_fraction == pytest.approx(1.0)


# -- phases ----------------------------------------------------------------------------------------


def one_step() -> Made:
    """Forward 40 and backward 60 of one layer, each with a short op before or after it."""
    made = Made()
    made.host("ProfilerStep#1", 0, 400, cat="user_annotation")
    made.host("aten::linear", 50, 60, Sequence_number=1, **shaped([8, 2], [2, 2]))
    made.kernel(55, 100, 140)
    backward(made, "AddmmBackward0", 1, 70, (140, 200))
    accumulate(made, [2, 2], 72)
    return made


@pytest.mark.parametrize(
    ("annotation", "phase"),
    [
        ("DistributedDataParallel.forward", "forward"),
        ("nn.Module: Net_0", "forward"),
        ("", "other"),
    ],
)
def test_work_before_the_first_layer(tmp_path: Path, annotation: str, phase: str) -> None:
    made = one_step()
    if annotation:
        made.host(annotation, 10, 65, cat="user_annotation")
    made.kernel(20, 25, 32, "normalise")
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.compute_s[phase] == pytest.approx((40 if phase == "forward" else 0) * US + 7 * US)


@pytest.mark.parametrize(("thread", "phase"), [(AUTOGRAD, "backward"), (MAIN, "other")])
def test_work_after_the_last_node(tmp_path: Path, thread: int, phase: str) -> None:
    made = one_step()
    made.kernel(90, 200, 207, "scale", thread)
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.compute_s[phase] == pytest.approx((60 if phase == "backward" else 0) * US + 7 * US)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ncclDevKernel_AllGather", "communication_exposed"),
        ("Memcpy PtoP (Device -> Device)", "communication_exposed"),
        ("Memcpy DtoH (Device -> Pageable)", "copies"),
        ("Memcpy DtoD (Device -> Device)", "computing"),
        ("Memset (Device)", "computing"),
    ],
)
def test_device_activities_are_classified_by_name(tmp_path: Path, name: str, part: str) -> None:
    made = one_step()
    made.kernel(90, 300, 307, name, cat="kernel" if "nccl" in name else "gpu_memcpy")
    found = import_trace(made.to(tmp_path / "made.json"))
    base = 100 * US if part == "computing" else 0.0
    assert found.parts_s[part] == pytest.approx(base + 7 * US)


def test_passes_of_different_models_are_not_accumulation(tmp_path: Path) -> None:
    made = one_step()
    for i, op in enumerate(("aten::conv2d", "aten::batch_norm")):
        made.host(op, 210 + 10 * i, 220 + 10 * i, Sequence_number=5 + i)
    made.kernel(215, 220, 240)
    backward(made, "ConvolutionBackward0", 5, 240, (250, 290))
    accumulate(made, [4, 3], 242)
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.accumulation == 1
    assert found.compute_s["forward"] == pytest.approx(60 * US)
    assert found.compute_s["backward"] == pytest.approx(100 * US)
    assert found.workload is not None
    assert found.workload.layers == ()
    assert found.workload.parameter_bytes == 4.0 * (2 * 2 + 4 * 3)
    assert any("differ in their layers" in note for note in found.notes)


# -- layers and gradients --------------------------------------------------------------------------


def test_modules_name_layers(tmp_path: Path) -> None:
    made = data_parallel()
    for n in range(2):
        t = 1000.0 * n
        for name, start, end in (
            ("Encoder_0", 81, 170),
            ("Linear_3", 81.5, 91),
            ("Head_0", 139, 151),
        ):
            made.host(f"nn.Module: {name}", t + start, t + end, cat="python_function")
    profile = import_trace(made.to(tmp_path / "made.json")).workload
    assert profile is not None
    assert [layer.name for layer in profile.layers] == ["Linear_3", "Head_0"]
    assert profile.timings[0].forward_s == pytest.approx((90 * US, 50 * US))
    assert [t.name for t in profile.layers[1].tensors] == ["Head_0.weight", "Head_0.bias"]


def without_shapes() -> Made:
    made = data_parallel()
    for event in made.events:
        event["args"].pop("Input Dims", None)
    return made


def test_without_shapes_sizes_come_from_messages(tmp_path: Path) -> None:
    path = without_shapes().to(tmp_path / "made.json")
    found = import_trace(path)
    assert found.workload is None
    assert "--batch-size" in str(found.lacks)
    profile = import_trace(path, batch_size=16).workload
    assert profile is not None
    assert profile.gradients is not None
    assert profile.gradients.bytes == BYTES
    timing = profile.timings[0]
    assert timing.forward_s == pytest.approx(140 * US)
    assert timing.backward_s == pytest.approx(140 * US)
    assert timing.forward_std_s == pytest.approx(200**0.5 * US)


def test_message_sizes_also_come_from_shapes(tmp_path: Path) -> None:
    made = data_parallel()
    for event in made.events:
        elements = event["args"].pop("In msg nelems", None)
        if elements is not None:
            event["name"], event["args"] = "nccl:all_reduce", shaped([elements])
    found = import_trace(made.to(tmp_path / "made.json"))
    assert (found.gradients.messages, found.gradients.message_bytes) == (2, BYTES)
    assert as_expected(found)


def test_without_shapes_and_messages_the_size_is_requested(tmp_path: Path) -> None:
    made = without_shapes()
    for event in made.events:
        event["args"].pop("In msg nelems", None)
    path = made.to(tmp_path / "made.json")
    assert "--gradient-bytes" in str(import_trace(path, batch_size=16).lacks)
    profile = import_trace(path, batch_size=16, gradient_bytes=1e6).workload
    assert profile is not None
    assert profile.parameter_bytes == 1e6


def test_parameters_of_layers_stand_in_for_gradients(tmp_path: Path) -> None:
    made = data_parallel()
    for event in made.events:
        if event["name"] == "torch::autograd::AccumulateGrad":
            event["args"].clear()
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.gradients.source == "parameters of layers"
    assert found.gradients.bytes == BYTES
    assert as_expected(found)


def linear_layers(accumulated: int, *, shapes: bool = False, steps: int = 1) -> Made:
    """Three linear layers with weight and bias, and ``accumulated`` of their six gradients in the
    first step, all of them in later ones."""
    made = Made()
    sizes = [([128, 64], [128]), ([128, 128], [128]), ([10, 128], [10])]
    for n in range(steps):
        t = 1000.0 * n
        made.host(f"ProfilerStep#{n}", t, t + 1000, cat="user_annotation")
        for i, (weight, bias) in enumerate(sizes):
            inputs = shaped([32, weight[1]], weight, bias)
            number = 3 * n + i
            made.host(
                "aten::linear", t + 10 + 9 * i, t + 14 + 9 * i, **inputs, Sequence_number=number
            )
            made.kernel(t + 12 + 9 * i, t + 20 + 20 * i, t + 40 + 20 * i)
        for i in (2, 1, 0):
            backward(
                made,
                "AddmmBackward0",
                3 * n + i,
                t + 400 - 20 * i,
                (t + 500 - 20 * i, t + 520 - 20 * i),
            )
        tensors = [shape for layer in reversed(sizes) for shape in reversed(layer)]
        for k, shape in enumerate(tensors[: accumulated if n == 0 else 6]):
            accumulate(made, shape, t + 402 + 0.5 * k)
    if not shapes:
        for event in made.events:
            if event["name"] == "torch::autograd::AccumulateGrad":
                event["args"].clear()
    return made


SIX_BYTES = 4.0 * (128 * 64 + 128 + 128 * 128 + 128 + 10 * 128 + 10)


@pytest.mark.parametrize("accumulated", [0, 2, 5])
def test_a_cut_trace_counts_the_parameters_of_its_layers(tmp_path: Path, accumulated: int) -> None:
    found = import_trace(linear_layers(accumulated).to(tmp_path / "made.json"))
    assert (found.gradients.tensors, found.gradients.bytes) == (6, SIX_BYTES)
    assert any(f"accumulates {accumulated} of 6 parameters" in note for note in found.notes)
    assert not any("sizes are known" in note for note in found.notes)
    assert found.workload is not None
    assert sum(len(layer.tensors) for layer in found.workload.layers) == 6


def test_canary_a_whole_trace_has_no_note_about_a_cut(tmp_path: Path) -> None:
    found = import_trace(linear_layers(6).to(tmp_path / "made.json"))
    assert (found.gradients.tensors, found.gradients.bytes) == (6, SIX_BYTES)
    assert not any("cut" in note for note in found.notes)


def test_fewer_accumulated_shapes_than_parameters_are_reported(tmp_path: Path) -> None:
    """Some layers may be frozen, so only the gradients that are there count."""
    found = import_trace(linear_layers(2, shapes=True).to(tmp_path / "made.json"))
    assert (found.gradients.tensors, found.gradients.bytes) == (2, 4.0 * (10 + 10 * 128))
    assert any("accumulates 2 of 6 parameters" in note for note in found.notes)


def test_the_fullest_of_equal_passes_counts(tmp_path: Path) -> None:
    made = linear_layers(2, shapes=True, steps=2)
    found = import_trace(made.to(tmp_path / "made.json"))
    assert (found.gradients.tensors, found.gradients.bytes) == (6, SIX_BYTES)


def test_parameters_that_contradict_messages_are_not_used(tmp_path: Path) -> None:
    made = data_parallel()
    for event in made.events:
        if event["name"] == "torch::autograd::AccumulateGrad":
            event["args"].clear()
        if "In msg nelems" in event["args"]:
            event["args"]["In msg nelems"] *= 2
    profile = import_trace(made.to(tmp_path / "made.json")).workload
    assert profile is not None
    assert profile.layers == ()
    assert profile.parameter_bytes == 2 * BYTES


def test_gradients_and_messages_that_differ_are_reported(tmp_path: Path) -> None:
    made = data_parallel()
    for event in made.events:
        if "dtype" in event["args"]:
            event["args"]["dtype"] = "Half"  # compressed in transit
    found = import_trace(made.to(tmp_path / "made.json"))
    assert (found.gradients.bytes, found.gradients.message_bytes) == (BYTES, BYTES / 2)
    assert any(f"{BYTES:.0f} bytes" in note and f"{BYTES / 2:.0f}" in note for note in found.notes)
    assert found.workload is not None
    assert found.workload.parameter_bytes == BYTES


# -- the CPU alone ---------------------------------------------------------------------------------


def on_cpu() -> Made:
    """One step on the CPU: forward 40 and 30, backward 50 less 8 for sending, update 10.

    The all-reduce begins on its own thread when backward has ended.
    """
    made = Made()
    made.host("ProfilerStep#1", 0, 300, cat="user_annotation")
    made.host("aten::linear", 10, 50, Sequence_number=5, **shaped([8, 3], [2, 3]))
    made.host("aten::addmm", 12, 48, Sequence_number=5)
    made.host("aten::relu", 60, 90, Sequence_number=6)
    made.host(f"{NODE}AddmmBackward0", 100, 150, Sequence_number=5)
    made.host("AddmmBackward0", 101, 110, Sequence_number=5)
    made.host("torch::autograd::AccumulateGrad", 121, 123, **shaped([2, 3]))
    made.host("torch::distributed::reducer::mul_out", 130, 133)
    made.host("c10d::allreduce_", 135, 140)
    made.host("gloo:all_reduce", 155, 190, 9, "user_annotation", **shaped([6]))
    made.host("Optimizer.step#SGD.step", 200, 220, cat="user_annotation")
    made.host("aten::_foreach_add_", 205, 215)
    return made


def test_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    made = on_cpu()
    made.properties.clear()
    found = import_trace(made.to(tmp_path / "made.json"))
    assert found.device == "cpu"
    compute = {name: seconds / US for name, seconds in found.compute_s.items()}
    expected = {"forward": 70, "backward": 50 - 3 - 5, "optimizer": 10, "buckets": 3, "other": 0}
    assert compute == pytest.approx(expected)
    parts = {name: seconds / US for name, seconds in found.parts_s.items()}
    assert parts == pytest.approx(
        {
            "computing": 70 + 45 + 10,
            "communication_hidden": 0,
            "communication_exposed": 5 + 35,
            "copies": 0,
            "data_loading": 0,
            "idle": 300 - 125 - 40,
        }
    )
    assert found.gradients.bytes == found.gradients.message_bytes == 24.0


# -- traces of something else ----------------------------------------------------------------------


def without_kernels(made: Made) -> Made:
    made.events = [e for e in made.events if e["cat"] not in ("kernel", "gpu_memcpy")]
    return made


def test_a_trace_of_a_gpu_without_its_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no kernels, .* ProfilerActivity\.CUDA"):
        import_trace(without_kernels(data_parallel()).to(tmp_path / "made.json"))


def test_operators_of_a_gpu_show_that_kernels_are_missing(tmp_path: Path) -> None:
    made = on_cpu()
    made.host("aten::cudnn_convolution", 20, 30)
    with pytest.raises(InputError, match="no kernels"):
        import_trace(made.to(tmp_path / "made.json"))


def test_a_trace_of_the_cpu_says_so(tmp_path: Path) -> None:
    found = import_trace(on_cpu().to(tmp_path / "made.json"))
    assert any("times are those of the CPU" in note for note in found.notes)
    whole = import_trace(data_parallel().to(tmp_path / "made.json"))
    assert not any("times are those of the CPU" in note for note in whole.notes)


def test_kernels_alone_lack_operators(tmp_path: Path) -> None:
    made = data_parallel()
    made.events = [e for e in made.events if e["cat"] in ("kernel", "gpu_memcpy")]
    found = import_trace(made.to(tmp_path / "made.json"), batch_size=1, gradient_bytes=1.0)
    assert found.workload is None
    assert "operators of the host" in str(found.lacks)


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("nccl:all_to_all", {}, "all_to_all"),
        ("c10d::alltoall_base_", {}, "all_to_all"),
        ("record_param_comms", {"Collective name": "all_to_allv"}, "all_to_all"),
        ("nccl:send 0->1", {}, "send"),
        ("record_param_comms", {"Collective name": "recv"}, "recv"),
        ("nccl:all_gather", {}, None),
        ("record_param_comms", {"Collective name": "reduce_scatter"}, None),
    ],
)
def test_steps_of_a_part_of_a_model_give_no_workload(
    tmp_path: Path, name: str, args: dict[str, Any], said: str | None
) -> None:
    made = data_parallel()
    made.host(name, 1150, 1160, **args)
    found = import_trace(made.to(tmp_path / "made.json"))
    assert (found.workload is None) == (said is not None)
    if said is not None:
        assert f"the whole model on one device: its steps have {said}" in str(found.lacks)
        assert "\n" not in str(found.lacks)


@pytest.mark.parametrize("kernel", ["ncclKernel_SendRecv_RING_SIMPLE", "ncclDevKernel_SendRecv()"])
def test_kernels_that_send_and_receive_count_if_the_host_recorded_nothing(
    tmp_path: Path, kernel: str
) -> None:
    made = one_step()
    made.kernel(90, 300, 307, kernel)
    assert "its steps have send" in str(import_trace(made.to(tmp_path / "made.json")).lacks)
    made.host("record_param_comms", 85, 95, **{"Collective name": "gather"})
    assert import_trace(made.to(tmp_path / "made.json")).workload is not None


def test_what_is_sent_before_the_steps_does_not_count(tmp_path: Path) -> None:
    made = data_parallel()
    made.host("nccl:all_to_all", -20, -10)
    assert import_trace(made.to(tmp_path / "made.json")).workload is not None


# -- mistakes --------------------------------------------------------------------------------------


def written(path: Path, data: bytes | dict[str, Any] | list[Any]) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
CHAKRA = {
    "schema": "1.1.0-chakra.0.0.4",
    "nodes": [
        {"name": "ProfilerStep#1", "inputs": {"values": []}},
        {
            "name": "torch::autograd::AccumulateGrad",
            "inputs": {"values": [[1, 2, 0, 250, 4, "cuda:0"]]},
        },
    ],
}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"PK\x03\x04", "not a PyTorch profiler trace but a zip archive"),
        (b'{"traceEvents": [', "not valid JSON"),
        (b'"text"', "not a PyTorch profiler trace"),
        ({"schema": "perfmodel.workload/1"}, "but a file of perfmodel: give .* as --workload"),
        ({"schema": "something else"}, "it has no traceEvents"),
        (CHAKRA, r"has no times; .* \(--gradient-bytes 1000B\)"),
        ({"traceEvents": [{"ph": 3}]}, "not a PyTorch profiler trace"),
        ({"traceEvents": []}, "no event has a time and a duration"),
        ([], "no event has a time and a duration"),
        ({"traceEvents": [EVENT | {"cat": "Trace"}]}, "there are no operators and no kernels"),
        ({"traceEvents": [EVENT | {"dur": 0.0}]}, "all steps of the trace have zero length"),
        ({"traceEvents": [EVENT | {"ts": "soon"}]}, "cannot read an event"),
        ({"traceEvents": [EVENT | {"args": 3}]}, "cannot read an event"),
        (b'{"traceEvents": [{"args": ' + b"[" * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_files_that_are_not_traces_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    path = written(tmp_path / "wrong.json", data)
    with pytest.raises(InputError, match=message) as error:
        import_trace(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kept", [3, 12, 200, -1])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, kept: int) -> None:
    whole = data_parallel().to(tmp_path / "made.json.gz").read_bytes()
    with pytest.raises(InputError, match="truncated or damaged"):
        import_trace(written(tmp_path / "cut.json.gz", whole[:kept]))


def test_a_truncated_plain_file_is_refused(tmp_path: Path) -> None:
    whole = data_parallel().to(tmp_path / "made.json").read_bytes()
    with pytest.raises(InputError, match="not valid JSON"):
        import_trace(written(tmp_path / "cut.json", whole[: len(whole) // 2]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pid": "7"}, r"--pid: .* has no process 7 \(known: 100\)"),
        ({"gpu": 3}, r"--gpu: .* has no GPU 3 \(known: 0\)"),
        ({"batch_size": 0}, "--batch-size: must be at least 1, got 0"),
        ({"gradient_bytes": -1.0}, "--gradient-bytes: must be more than 0, got -1"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_trace(data_parallel().to(tmp_path / "made.json"), **given)


def test_one_of_several_processes_can_be_chosen(tmp_path: Path) -> None:
    """Two ranks in one file: each gives the same result as in its own file."""
    made, other = data_parallel(), data_parallel()
    for event in other.events:
        event["pid"] = 200 if event["pid"] == 100 else 1
        if "correlation" in event["args"]:
            event["args"] = {"correlation": 10_000 + event["args"]["correlation"], "device": 1}
    both = copy.deepcopy(made)
    both.events += other.events
    path = both.to(tmp_path / "both.json")
    assert as_expected(import_trace(path, pid="100", gpu=0))
    assert as_expected(import_trace(path, pid="200", gpu=1))
    assert any("--pid" in note for note in import_trace(path).notes)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_writes_a_file_that_predict_can_read(tmp_path: Path) -> None:
    trace, output = data_parallel().to(tmp_path / "made.json.gz"), tmp_path / "workload.json"
    done = CliRunner().invoke(cli, ["import", str(trace), "--output", str(output), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert breaches("trace", said) == []
    profile = read_profile(output)
    assert said["parts_s"]["communication_exposed"] == pytest.approx(120 * US)
    assert said["workload"]["name"] == profile.name == "made"
    assert [layer.name for layer in profile.layers] == ["linear_0", "linear_1"]
    alone = api.predict(api.make_job(workload=str(output), workers=1, arch="ring"))
    # as measured, without communication
    assert alone.iteration_s == pytest.approx((995 - 120) * US)
    shown = CliRunner().invoke(cli, ["predict", "--workload", str(output), "--workers", "4"])
    assert shown.exit_code == 0, shown.output


def test_the_command_prints_a_summary(tmp_path: Path) -> None:
    trace = data_parallel().to(tmp_path / "made.json")
    text = CliRunner().invoke(cli, ["import", str(trace)]).stdout
    for words in (
        "communication exposed",
        "120 us",
        "2 steps",
        "Made-up GPU",
        f"{BYTES:.0f} bytes",
    ):
        assert words in text


def test_nothing_is_written_without_a_workload(tmp_path: Path) -> None:
    made = Made()
    made.host("aten::linear", 0, 10)
    made.kernel(5, 6, 9)
    trace, output = made.to(tmp_path / "made.json"), tmp_path / "workload.json"
    done = CliRunner().invoke(cli, ["import", str(trace), "--output", str(output)])
    assert isinstance(done.exception, InputError)
    assert "a backward pass" in str(done.exception)
    assert not output.exists()
    done = CliRunner().invoke(cli, ["import", str(trace)])
    assert done.exit_code == 0
    assert "no workload" in done.stdout


# -- real traces -----------------------------------------------------------------------------------


def shared(name: str) -> Path:
    if not (FOLDER / name).is_file():
        pytest.skip("the traces are not at hand (set PERFMODEL_TRACES to their folder)")
    return FOLDER / name


RESNET50_BYTES = 4.0 * 25_557_032
"""Parameters of ResNet-50 with 1000 classes (He et al. 2016; as in torchvision), in float32."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "steps", "tensors", "message_bytes"),
    [
        ("hta_resnet50_ddp_2xA100_rank0", 3, 161, RESNET50_BYTES),
        pytest.param("hta_resnet50_1xV100", 5, 161, RESNET50_BYTES, marks=pytest.mark.slow),
        pytest.param(
            "hta_recsys_2gpu_rank1", 5, 263, 4.0 * (45310188 + 267040 + 4432073),
            marks=pytest.mark.slow,
        ),
        ("hta_alexnet_critical_path", 1, 0, None),
        pytest.param("param_resnet_1x2080Ti_kineto", 29, 62, None, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_real_traces(name: str, steps: int, tensors: int, message_bytes: float | None) -> None:
    found = import_trace(shared(f"{name}.json.gz"), batch_size=32, gradient_bytes=46.8e6)
    assert found.steps == steps
    assert found.parts_per_step_fraction == pytest.approx(1.0, rel=0.01)
    assert found.gradients.tensors == tensors
    assert found.gradients.message_bytes == message_bytes
    if name.startswith("hta_alexnet"):
        assert "a backward pass" in str(found.lacks)
        return
    if name.startswith("hta_recsys"):  # its embedding tables are spread over two devices
        assert "all_to_all" in str(found.lacks)
    else:
        assert found.timing_per_step_fraction == pytest.approx(1.0, rel=0.01)
    assert found.compute_s["backward"] > found.compute_s["forward"] > 0.0
    assert found.compute_s["other"] < 0.1 * sum(found.compute_s.values())


@pytest.mark.slow
def test_steps_of_a_busy_device_are_as_long_as_its_work() -> None:
    """The V100's host is 60 ms ahead, so step lengths on the host are arbitrary."""
    found = import_trace(shared("hta_resnet50_1xV100.json.gz"))
    assert found.step_std_s is not None
    assert found.step_std_s < 0.05 * found.step_s
    assert found.parts_s["idle"] < 0.05 * found.step_s


@pytest.mark.slow
def test_communication_of_a_real_trace_is_separated() -> None:
    """Seconds of the NCCL kernels in the file, which do not overlap each other."""
    path = shared("hta_resnet50_ddp_2xA100_rank0.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    sent = [e["dur"] for e in events if e.get("cat") == "kernel" and "nccl" in e["name"]]
    found = import_trace(path)
    whole = found.parts_s["communication_hidden"] + found.parts_s["communication_exposed"]
    assert 3 * whole == pytest.approx(sum(sent) * US, rel=1e-6)


@pytest.mark.slow
def test_a_graph_without_times_is_refused() -> None:
    with pytest.raises(InputError, match="has no times") as error:
        import_trace(shared("param_resnet_2gpu_chakra_et.json.gz"))
    assert f"--gradient-bytes {RESNET50_BYTES:.0f}B" in str(error.value)
