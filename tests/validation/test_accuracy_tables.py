"""Published tables of throughput: what is fitted to them, and what is predicted from the fits.

Made-up tables have a known truth. The published ones are not part of the repository; what needs
them is skipped where they are not at hand.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.accuracy import dnns, fitted, horovod, mxnet, tensorflow
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.inputs.profile import Layer
from tests.measured import measured

Rows = list[dict[str, object]]


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fits of their own instead of those of the repository."""
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    return tmp_path


def write(folder: Path, name: str, rows: Rows) -> Path:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return folder


KEPT: dict[tuple[str, bytes], bytes] = {}
"""What was fitted to a table before, by source and rows."""


def fit(module: ModuleType, folder: Path) -> None:
    """Fit to the rows in the folder, once to the same rows."""
    rows = module.SOURCE, (folder / module.FILE).read_bytes()
    path = fitted.FOLDER / f"{module.SOURCE}.json"
    if rows not in KEPT:
        module.fit(folder)
        KEPT[rows] = path.read_bytes()
    fitted.FOLDER.mkdir(exist_ok=True)
    path.write_bytes(KEPT[rows])


def errors(cases: Sequence[Case]) -> list[float]:
    return [abs(case.error) for case in cases]


# -- the DNNs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("AlexNet", 61.10e6),
        ("Inception-v3", 23.83e6),
        ("InceptionV3", 23.83e6),
        ("ResNet-101", 44.55e6),
        ("resnet-152", 60.19e6),
        ("VGG-16", 138.36e6),
    ],
)
def test_dnns_have_as_many_parameters_as_published(name: str, parameters: float) -> None:
    layers = dnns.layers_of(name)
    assert layers is not None
    assert dnns.bytes_of(layers) == pytest.approx(4 * parameters, rel=1e-3)


def test_deeper_relatives_have_no_larger_tensors() -> None:
    """Depth repeats blocks; were tensors scaled instead, the largest would be larger."""
    few, many = dnns.layers_of("resnet50"), dnns.layers_of("resnet152")
    assert few is not None
    assert many is not None
    assert largest(few) == largest(many)
    assert largest(dnns.resized(few, dnns.bytes_of(many))) > largest(many)


def largest(layers: Sequence[Layer]) -> float:
    return max(tensor.bytes for layer in layers for tensor in layer.tensors)


def test_a_published_size_changes_the_first_fully_connected_layer() -> None:
    layers = dnns.layers_of("alexnet")
    assert layers is not None
    smaller = dnns.resized(layers, 203e6)
    assert dnns.bytes_of(smaller) == pytest.approx(203e6)
    changed = [a.name for a, b in zip(layers, smaller, strict=True) if a.tensors != b.tensors]
    assert changed == ["classifier.1"]


def test_a_dnn_that_nobody_knows_needs_a_size() -> None:
    assert dnns.layers_of("foonet") is None
    assert dnns.profile("foonet", "gpu", 8, 100.0) is None
    assert dnns.profile("foonet", "gpu", 8, 100.0, 5e7) is not None


# -- made-up tables with a known truth -------------------------------------------------------------

INSIDE_BYTES_PER_S = 6e9


def mxnet_rows(gpus: Sequence[int] = (1, 2, 4, 8)) -> Rows:
    found: Rows = []
    for model, batch, size_mb, rate in (
        ("alexnet", 512, 203.0, 457.0),
        ("resnet-152", 32, 240.0, 20.0),
    ):
        profile = dnns.profile(model, "k80", batch, rate, 1e6 * size_mb)
        assert profile is not None
        for count in gpus:
            row = mxnet.Row(model=model, batch_per_gpu=batch, num_gpus=count, images_per_s=1.0)
            step_s = mxnet.inside_node_s(row, profile, INSIDE_BYTES_PER_S)
            found.append(
                {
                    "images_per_s": count * batch / step_s,
                    "model": model,
                    "unheard_of": "x",
                    "batch_per_gpu": batch,
                    "num_gpus": count,
                    "model_size_MB": size_mb,
                }
            )
    return found


def test_mxnet_finds_the_links_inside_a_node(fits: Path) -> None:
    folder = write(fits, mxnet.FILE, mxnet_rows())
    fit(mxnet, folder)
    few = fitted.read("mxnet", mxnet.Fit)["few"]
    assert few.inside_bytes_per_s == pytest.approx(INSIDE_BYTES_PER_S, rel=0.02)
    found = mxnet.cases(folder)
    assert len(found) == 4  # 4 and 8 GPUs of each
    assert max(errors(found)) < 0.005
    assert max(abs(c.error_of(c.others["ideal scaling"])) for c in found) > 0.1


def test_mxnet_shows_what_it_does_not_know(fits: Path) -> None:
    rows = mxnet_rows()
    for row in rows:
        if (row["model"], row["num_gpus"]) == ("alexnet", 8):
            row["images_per_s"] = float(str(row["images_per_s"])) / 2
    folder = write(fits, mxnet.FILE, rows)
    fit(mxnet, folder)
    wrong = [case for case in mxnet.cases(folder) if abs(case.error) > 0.1]
    assert [case.name for case in wrong] == ["alexnet 8 GPUs on 1 nodes"]
    assert wrong[0].interval is not None
    assert wrong[0].interval[1] < wrong[0].measured


def test_mxnet_predicts_rows_that_are_not_fitted(
    fits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More nodes, DNNs that only their size is known of, others that nothing is known of."""
    fit(mxnet, write(fits, mxnet.FILE, mxnet_rows()))
    common = {"batch_per_gpu": 32, "images_per_s": 100.0}
    rows: Rows = [
        *mxnet_rows((1,)),
        {"model": "alexnet", "num_gpus": 64, "num_nodes": 4, **common},
        {"model": "resnet-152", "num_gpus": 64, "num_nodes": 4, **common},
        {"model": "foonet", "num_gpus": 1, "model_size_MB": 50.0, **common},
        {"model": "foonet", "num_gpus": 32, "num_nodes": 2, **common},
        {"model": "barnet", "num_gpus": 8, "model_size_MB": 50.0, **common},
        {"model": "baznet", "num_gpus": 1, **common},
        {"model": "baznet", "num_gpus": 8, **common},
    ]
    found = mxnet.cases(write(fits, mxnet.FILE, rows))
    assert [case.group for case in found] == [
        f"mxnet/few/{model}" for model in ("alexnet", "resnet-152", "foonet")
    ]
    for case in found:
        assert case.interval is not None
        low, high = case.interval
        assert low < case.predicted < high
        assert case.predicted > case.others["ideal scaling"]
    assert "barnet; baznet" in capsys.readouterr().err


def tensorflow_rows(slowdown: float = 1.06, limit: float = 1e9) -> Rows:
    """One node of K80 whose loaders reach ``limit`` images per second."""
    found: Rows = []
    for model, batch, rate in (("AlexNet", 512, 680.0), ("ResNet-50", 64, 52.0)):
        for data in ("synthetic", "real"):
            for count in (1, 2, 4, 8):
                reached = count * rate / (1.0 if count == 1 else slowdown)
                found.append(
                    {
                        "images_per_s": min(reached, limit) if data == "real" else reached,
                        "gpu": "K80",
                        "platform": "EC2 p2.8xlarge",
                        "num_gpus": count,
                        "variable_update": "replicated",
                        "data": data,
                        "model": model,
                        "batch_per_gpu": batch,
                    }
                )
    return found


def test_tensorflow_finds_how_much_gpus_slow_each_other(fits: Path) -> None:
    folder = write(fits, tensorflow.FILE, tensorflow_rows())
    fit(tensorflow, folder)
    few = fitted.read("tensorflow", tensorflow.Fit)["few"]
    assert set(few.pooled) >= {"K80", "all"}
    assert few.pooled["K80"] == pytest.approx(1.06, abs=0.01)
    assert few.thread_images_per_s is None
    found = tensorflow.cases(folder)
    assert len(found) == 8
    assert max(errors(found)) < 0.02
    assert min(abs(c.error_of(c.others["ideal scaling"])) for c in found) > 0.04


def test_tensorflow_finds_what_a_node_loads(fits: Path) -> None:
    """Two GPUs show nothing of it; the fit to all runs holds it for nodes it has not seen."""
    folder = write(fits, tensorflow.FILE, tensorflow_rows(limit=2300.0))
    fit(tensorflow, folder)
    every = fitted.read("tensorflow", tensorflow.Fit)["all"]
    assert every.thread_images_per_s == pytest.approx(2300.0 / 32, abs=0.01)
    wrong = [case.name for case in tensorflow.cases(folder) if abs(case.error) > 0.05]
    assert all("real, AlexNet" in name for name in wrong)
    assert len(wrong) == 2  # 4 and 8 GPUs

    common: dict[str, object] = {"gpu": "K80", "platform": "GCE n1-standard-32-k80x8"}
    common |= {"variable_update": "replicated", "model": "AlexNet"}
    common |= {"batch_per_gpu": 512, "data": "real"}
    alone: Rows = [{"num_gpus": 1, "images_per_s": 680.0, **common}]
    eight: Rows = [{"num_gpus": 8, "images_per_s": 2300.0, **common}]
    (case,) = tensorflow.cases(write(fits, tensorflow.FILE, alone + eight))
    assert abs(case.error) < 0.01


def test_tensorflow_leaves_out_what_it_cannot_predict(
    fits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tensorflow, write(fits, tensorflow.FILE, tensorflow_rows()))
    unknown = [{**row, "model": "FooNet"} for row in tensorflow_rows()]
    elsewhere = [
        {**row, "platform": "DGX-9", "gpu": "X1"}
        for row in tensorflow_rows()
        if row["num_gpus"] == 8
    ]
    found = tensorflow.cases(write(fits, tensorflow.FILE, unknown + elsewhere))
    assert found == []
    assert "FooNet" in capsys.readouterr().err


RING_BYTES_PER_S, SERVER_BYTES_PER_S = 0.3e9, 0.6e9
"""So slow that they show in the steps of each DNN."""


def horovod_rows(models: Sequence[str] = ("ResNet-101", "VGG-16")) -> Rows:
    common = {"cluster": "25GbE", "batch_per_gpu": 64}
    found: Rows = []
    for model in models:
        alone = {"model": model, "method": "single GPU", "num_gpus": 1, "num_nodes": 1}
        found.append({**alone, "images_per_s": 130.0, **common})
        for method, rate in (
            ("Horovod", RING_BYTES_PER_S),
            ("Distributed TensorFlow", SERVER_BYTES_PER_S),
        ):
            row = horovod.Row(
                cluster="25GbE",
                method=method,
                model=model,
                batch_per_gpu=64,
                num_gpus=8,
                num_nodes=2,
                images_per_s=1.0,
            )
            step_s = horovod.predicted_s(row, 130.0, rate, 1.05)
            many = {"model": model, "method": method, "num_gpus": 8, "num_nodes": 2}
            found.append({**many, "images_per_s": 512 / step_s, **common})
    return found


def test_horovod_finds_the_rate_of_each_method(fits: Path) -> None:
    models = ("InceptionV3", "ResNet-101", "VGG-16")
    folder = write(fits, horovod.FILE, horovod_rows(models))
    fit(horovod, folder)
    every = fitted.read("horovod", horovod.Fit)
    assert every["all"].rates["Horovod"] == pytest.approx(RING_BYTES_PER_S, rel=0.1)
    assert every["all"].rates["Distributed TensorFlow"] == pytest.approx(
        SERVER_BYTES_PER_S, rel=0.1
    )
    groups = summarise(horovod.cases(folder))
    few, none = groups["horovod/few"], groups["horovod/none"]
    assert few["n"] == none["n"] == 6
    assert few["worst"] < 0.15
    assert none["worst"] > 2 * few["worst"]


def test_horovod_predicts_rows_that_are_not_fitted(
    fits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More nodes on faster links: only what follows the link gets faster; new methods and DNNs."""
    fit(horovod, write(fits, horovod.FILE, horovod_rows()))
    common = {"cluster": "40GbE", "batch_per_gpu": 64, "images_per_s": 1000.0}
    many = {"num_gpus": 32, "num_nodes": 8, **common}
    rows: Rows = [
        {"model": "VGG-16", "method": "single GPU", "num_gpus": 1, "num_nodes": 1, **common},
        {"model": "AlexNet", "method": "single GPU", "num_gpus": 1, "num_nodes": 1, **common},
        {"model": "VGG-16", "method": "Horovod", **many},
        {"model": "AlexNet", "method": "never heard of", **many},
        {"model": "FooNet", "method": "Horovod", **many},
    ]
    found = [
        case
        for case in horovod.cases(write(fits, horovod.FILE, rows))
        if case.group.startswith("horovod/few/")
    ]
    assert [case.group for case in found] == ["horovod/few/VGG-16", "horovod/few/AlexNet"]
    for case in found:
        assert case.interval is not None
        assert case.interval[0] < case.predicted < case.interval[1]
    assert "FooNet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "rows", "splits"), [(mxnet, 0, 1), (tensorflow, 1, 1), (horovod, 2, 2)]
)
def test_rows_of_one_gpu_may_be_missing(
    fits: Path,
    capsys: pytest.CaptureFixture[str],
    module: ModuleType,
    rows: int,
    splits: int,
) -> None:
    """More GPUs than were fitted to, with and without the rows of one GPU."""
    table = (mxnet_rows(), tensorflow_rows(), horovod_rows())[rows]
    alone: Rows = [row for row in table if row["num_gpus"] == 1]
    fit(module, write(fits, module.FILE, table))
    more: Rows = [{**row, "num_gpus": 16} for row in table if row["num_gpus"] == 8]
    found = module.cases(write(fits, module.FILE, more))
    assert len(found) == splits * len(more)
    assert "no run with one GPU, taken from the fits: " in capsys.readouterr().err
    again = module.cases(write(fits, module.FILE, alone + more))
    assert [c.predicted for c in again] == [c.predicted for c in found]
    assert capsys.readouterr().err == ""
    slower: Rows = [{**row, "images_per_s": 0.5 * float(str(row["images_per_s"]))} for row in alone]
    changed = module.cases(write(fits, module.FILE, slower + more))
    assert [c.others["ideal scaling"] for c in changed] == pytest.approx(
        [2.0 * c.others["ideal scaling"] for c in found]
    )


def test_horovod_predicts_what_hides_behind_computation(fits: Path) -> None:
    """A slower link changes such steps by rounding only, which may be less than nothing."""
    fit(horovod, write(fits, horovod.FILE, horovod_rows()))
    common = {"cluster": "40GbE", "model": "ResNet-101"}
    rows: Rows = []
    for batch in range(48, 80):
        setup = {**common, "batch_per_gpu": batch}
        rows.append({**setup, "method": "one", "num_gpus": 1, "num_nodes": 1, "images_per_s": 9.7})
        many = {"method": "Horovod", "num_gpus": 32, "num_nodes": 8, "images_per_s": 300.0}
        rows.append({**setup, **many})
    found = horovod.cases(write(fits, horovod.FILE, rows))
    assert len(found) == 64
    assert all(c.interval and c.interval[0] < c.predicted < c.interval[1] for c in found)


@pytest.mark.parametrize(
    ("module", "name"),
    [(mxnet, mxnet.FILE), (tensorflow, "throughput.csv"), (horovod, "throughput.csv")],
)
def test_a_table_with_one_gpu_only_cannot_be_fitted(
    fits: Path, module: ModuleType, name: str
) -> None:
    makes: dict[ModuleType, Callable[[], Rows]] = {
        mxnet: mxnet_rows,
        tensorflow: tensorflow_rows,
        horovod: lambda: horovod_rows(("VGG-16",)),
    }
    rows = [row for row in makes[module]() if row["num_gpus"] == 1]
    folder = write(fits, name, rows)
    with pytest.raises(InputError, match="one GPU"):
        module.fit(folder)


# -- the published tables, by the fits of the repository -------------------------------------------


def published(module: ModuleType) -> list[Case]:
    found: list[Case] = module.cases(measured(module.ABOUT.folder))
    return found


@pytest.mark.parametrize(
    ("module", "median", "p90"),
    [
        (tensorflow, 0.05, 0.15),
        (mxnet, 0.05, 0.15),
        (horovod, 0.08, 0.15),  # the goal of 0.05 is missed
    ],
)
def test_step_times_are_met(module: ModuleType, median: float, p90: float) -> None:
    source = module.SOURCE
    found = [case for case in published(module) if case.group.startswith(f"{source}/few/")]
    group = summarise(found)[f"{source}/few"]
    assert group["n"] >= 7
    assert group["median"] < median
    assert group["p90"] < p90
    assert group["coverage90"] >= 0.85
    for baseline in ("ideal scaling", "plain alpha-beta"):
        assert group["median"] < group["others"][baseline]["median"]
        assert group["p90"] < group["others"][baseline]["p90"]


@pytest.mark.parametrize("module", [tensorflow, mxnet, horovod])
def test_all_predictions_have_what_the_page_needs(module: ModuleType) -> None:
    for case in published(module):
        split = case.group.split("/")[1]
        assert split in module.ABOUT.splits
        assert case.pools == (f"{module.SOURCE}/{split}",)
        assert case.interval is not None
        assert case.interval[0] < case.predicted < case.interval[1]
        assert case.samples > 0.0
        assert case.setting
