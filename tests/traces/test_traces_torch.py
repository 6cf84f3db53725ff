"""Traces written by torch.profiler: a small model on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel import api
from perfmodel.inputs.profile_files import save
from perfmodel.traces.workload import ImportedTrace, import_trace

torch = pytest.importorskip("torch")

STEPS = 3


def model() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 32),
        nn.ReLU(),
        nn.Linear(32, 4, bias=False),
    )


def profiled(path: Path, net: Any, *, shapes: bool = True, modules: bool = False) -> ImportedTrace:
    """Train for some steps under the profiler and import what it wrote."""
    from torch.profiler import ProfilerActivity, profile, schedule

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        record_shapes=shapes,
        with_stack=modules,
        with_modules=modules,
    ) as profiler:
        for _ in range(1 + STEPS):
            optimizer.zero_grad()
            net(torch.randn(16, 3, 8, 8)).sum().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return import_trace(path)


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (False, ["conv2d_0", "batch_norm_0", "linear_0", "linear_1"]),
        (True, ["Conv2d_0", "BatchNorm2d_0", "Linear_0", "Linear_1"]),
    ],
)
def test_a_profiled_model_is_imported(tmp_path: Path, modules: bool, names: list[str]) -> None:
    net = model()
    found = profiled(tmp_path / "trace.json", net, modules=modules)
    assert (found.device, found.steps, found.batch_size) == ("cpu", STEPS, 16)
    assert found.parts_per_step_fraction == pytest.approx(1.0, rel=0.01)
    assert found.timing_per_step_fraction == pytest.approx(1.0, rel=0.01)
    assert all(found.compute_s[phase] > 0.0 for phase in ("forward", "backward", "optimizer"))
    profile = found.workload
    assert profile is not None
    assert [layer.name for layer in profile.layers] == names
    owners = [module for module in net if list(module.parameters())]
    assert [sorted(t.bytes for t in layer.tensors) for layer in profile.layers] == [
        sorted(4.0 * p.numel() for p in module.parameters()) for module in owners
    ]
    timing = profile.timings[0]
    assert isinstance(timing.backward_s, tuple)
    assert min(timing.backward_s) > 0.0
    output = tmp_path / "workload.json"
    save(output, profile)
    alone = api.predict(api.make_job(workload=str(output), workers=1, arch="ring"))
    assert alone.iteration_s == pytest.approx(found.step_s, rel=0.01)


def test_canary_another_model_has_other_gradients(tmp_path: Path) -> None:
    net = model()
    net[4].bias.requires_grad_(False)
    profile = profiled(tmp_path / "trace.json", net).workload
    assert profile is not None
    assert profile.parameter_bytes == sum(4.0 * p.numel() for p in net.parameters()) - 4.0 * 32


def test_without_shapes_the_missing_option_is_named(tmp_path: Path) -> None:
    found = profiled(tmp_path / "trace.json", model(), shapes=False)
    assert found.workload is None
    for option in ("--gradient-bytes", "--batch-size", "record_shapes=True"):
        assert option in str(found.lacks)
    given = import_trace(tmp_path / "trace.json", batch_size=16, gradient_bytes=1000.0)
    assert given.workload is not None
    assert given.timing_per_step_fraction == pytest.approx(1.0, rel=0.01)
