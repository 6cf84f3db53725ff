"""Schedule files: round trips, and refusal of inconsistent files."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from perfmodel import InputError, Schedule, predict
from perfmodel.results.schedule import COLUMNS, FORMAT, Event, Header
from tests.jobs import cluster, job, workload

ROWS: list[tuple[Any, ...]] = [
    (1.0, Event.GRADIENT, 0, 0, -1, -2, -1, 0.0, 0, 0, -1),
    (1.0, Event.GRADIENT, 1, 0, -1, -2, -1, 0.0, 1, 0, -1),
    (2.0, Event.APPLY, 0, 0, -1, -2, -1, 1.0, 2, 1, -1),
    (2.0, Event.READ, 0, 1, 0, -1, -1, 0.0, 3, 1, -1),
    (3.0, Event.APPLY, 1, 0, -1, -2, -1, 1.0, 4, 2, -1),
]
"""Two workers under asp: the second gradient is one version old."""

HEADER = Header(
    workers=2,
    slices=(8.0, 4.0),
    batch_size=16,
    architecture="ps",
    options={"sync": "asp"},
    begins_s=(0.0, 0.5),
    samples_per_s=32.0,
    seed=3,
)


def of_rows(rows: list[tuple[Any, ...]]) -> Schedule:
    columns = zip(COLUMNS.items(), zip(*rows, strict=True), strict=True)
    return Schedule(HEADER, **{name: np.array(values, kind) for (name, kind), values in columns})


SCHEDULE = of_rows(ROWS)


def same(a: Schedule, b: Schedule) -> bool:
    return a.header == b.header and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS
    )


def test_a_written_schedule_can_be_read(tmp_path: Path) -> None:
    SCHEDULE.write(tmp_path / "asp.npz")
    read = Schedule.read(tmp_path / "asp.npz")
    assert same(read, SCHEDULE)
    assert repr(read) == "Schedule(ps, 2 workers: 5 rows, 2 gradients applied)"
    changed = msgspec.structs.replace(SCHEDULE, weight=SCHEDULE.weight + 1.0)
    assert not same(read, changed)  # canary


def test_a_recorded_schedule_round_trips(tmp_path: Path) -> None:
    options = {"sync": "ssp", "staleness_bound": "inf"}
    result = predict(job(workload([1.0], [2.0], [2.0]), cluster(), 3, "ps", options)).schedule(20)
    result.write(tmp_path / "ssp.npz")
    assert same(Schedule.read(tmp_path / "ssp.npz"), result)
    assert result.header.options["staleness_bound"] == "inf"


def test_any_program_can_read_the_file(tmp_path: Path) -> None:
    """The header is JSON, the columns are arrays; nothing is pickled."""
    SCHEDULE.write(tmp_path / "asp.npz")
    with np.load(tmp_path / "asp.npz", allow_pickle=False) as file:
        assert json.loads(file["header"].tobytes())["format"] == FORMAT
        assert {name: file[name].dtype.str for name in COLUMNS} == COLUMNS
        assert file["version"].tolist() == [0, 0, 1, 1, 2]


def test_staleness_counts_versions_between_read_and_update() -> None:
    """Both rows are for the whole model, which has two slices."""
    assert SCHEDULE.staleness().tolist() == [0, 0, 1, 1]
    assert SCHEDULE.staleness_histogram() == {0: 2, 1: 2}


def test_staleness_of_slices() -> None:
    """Worker 1 reads slice 1 after worker 0 has updated it, and slice 0 before."""
    rows = [
        (0.0, Event.GRADIENT, 0, 0, -1, -2, -1, 0.0, 0, 0, -1),
        (1.0, Event.APPLY, 0, 0, -1, -2, 1, 1.0, 1, 1, -1),
        (1.0, Event.READ, 1, 0, 1, -1, 1, 0.0, 2, 1, -1),
        (1.0, Event.READ, 1, 0, 1, -1, 0, 0.0, 3, 0, -1),
        (1.0, Event.GRADIENT, 1, 0, -1, -2, -1, 0.0, 4, -1, -1),
        (2.0, Event.APPLY, 0, 0, -1, -2, 0, 1.0, 5, 1, -1),
        (3.0, Event.APPLY, 1, 0, -1, -2, 0, 1.0, 6, 2, -1),
        (3.0, Event.APPLY, 1, 0, -1, -2, 1, 1.0, 7, 2, -1),
    ]
    result = of_rows(rows)
    result.check()
    assert result.staleness().tolist() == [0, 0, 1, 0]
    assert result.gradients == 2


@pytest.mark.parametrize(("version", "accepted"), [(0, True), (1, True), (2, False)])
def test_only_existing_versions_can_be_mixed_in(version: int, accepted: bool) -> None:
    """Worker 1 has made version 1 of its model in an earlier group."""
    rows = [
        (0.0, Event.GRADIENT, 1, 0, 1, -2, -1, 0.0, 0, 0, -1),
        (1.0, Event.APPLY, 1, 0, 1, -2, -1, 1.0, 1, 1, -1),
        (2.0, Event.MIX, 0, -1, 0, 1, 1, 0.5, 2, 1, version),
        (2.0, Event.MIX, 0, -1, 1, 0, 1, 0.5, 2, 2, 0),
    ]
    if accepted:
        of_rows(rows).check()
    else:
        with pytest.raises(InputError, match="other_version: row 2 is wrong: must be a version"):
            of_rows(rows).check()


def test_the_page_documents_every_column_and_key() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/schedule.md").read_text("utf-8")
    for name, kind in COLUMNS.items():
        assert f"| `{name}` | {np.dtype(kind).name} |" in page
    for key in Header.__struct_fields__:
        assert f"`{key}`" in page


def test_a_frame_names_events() -> None:
    frame = SCHEDULE.frame()
    assert frame["event"].tolist() == ["GRADIENT", "GRADIENT", "APPLY", "READ", "APPLY"]
    assert list(frame.columns) == list(COLUMNS)
    assert frame.attrs["workers"] == 2


def test_an_empty_schedule(tmp_path: Path) -> None:
    empty = Schedule(HEADER, **{name: np.zeros(0, kind) for name, kind in COLUMNS.items()})
    empty.write(tmp_path / "empty.npz")
    read = Schedule.read(tmp_path / "empty.npz")
    assert (len(read), read.gradients, read.staleness().tolist()) == (0, 0, [])
    assert read.staleness_histogram() == {}


# -- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (2, "time_s", 0.5, "time_s: row 2 is wrong: must be in order"),
        (2, "time_s", np.nan, "time_s: row 2 is wrong: must be finite and not negative"),
        (1, "event", 7, "event: row 1 is wrong: must be at most 4"),
        (3, "worker", 2, "worker: row 3 is wrong: must be below 2"),
        (3, "worker", -1, "worker: row 3 is wrong: must be below 2"),
        (0, "step", -1, "step: row 0 is wrong: must be not negative"),
        (3, "step", -1, "step: row 3 is wrong: must be not negative"),
        (0, "version", -2, "version: row 0 is wrong: must be at least -1"),
        (4, "model", 2, "model: row 4 is wrong"),
        (4, "other", -3, "other: row 4 is wrong"),
        (4, "slice", 2, "slice: row 4 is wrong: must be a slice of the header"),
        (4, "weight", np.inf, "weight: row 4 is wrong: must be finite"),
        (3, "group", 1, "group: row 3 is wrong: must be in order"),
        (4, "version", 3, "version: row 4 is wrong: must be one more than in the previous"),
        (2, "version", 0, "version: row 2 is wrong"),
        (3, "version", 0, "version: row 3 is wrong: must be that of the centre, for a READ"),
        (4, "step", 1, "step: row 4 is wrong: must be a step whose gradient was computed before"),
        (0, "event", Event.DROP, "step: row 0 is wrong: must be a step whose gradient was"),
        (1, "worker", 0, "step: row 1 is wrong: must be a step whose gradient is computed only"),
        (4, "event", Event.MIX, "other: row 4 is wrong: must be a model, for a MIX"),
    ],
)
def test_inconsistent_rows_are_refused(
    tmp_path: Path, row: int, column: str, value: Any, message: str
) -> None:
    values = getattr(SCHEDULE, column).copy()
    values[row] = value
    path = tmp_path / "wrong.npz"
    msgspec.structs.replace(SCHEDULE, **{column: values}).write(path)
    with pytest.raises(InputError, match=message) as error:
        Schedule.read(path)
    assert str(error.value).startswith(f"{path}: ")


def parts() -> dict[str, NDArray[Any]]:
    header = np.frombuffer(json.dumps(msgspec.to_builtins(HEADER)).encode(), np.uint8)
    return {"header": header, **{name: getattr(SCHEDULE, name) for name in COLUMNS}}


def headed(**changes: Any) -> dict[str, NDArray[Any]]:
    text = json.dumps({**msgspec.to_builtins(HEADER), **changes}).encode()
    return {**parts(), "header": np.frombuffer(text, np.uint8)}


def without(name: str) -> dict[str, NDArray[Any]]:
    return {key: value for key, value in parts().items() if key != name}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: without("header"), "not a schedule: it has no header"),
        (lambda: without("weight"), "column 'weight' is missing"),
        (lambda: {**parts(), "time_s": np.zeros(5, "f4")}, "time_s: expected a one-dim.* float64"),
        (lambda: {**parts(), "step": np.zeros((5, 1), "i4")}, "step: expected a one-dim.* int32"),
        (lambda: {**parts(), "step": np.zeros(4, "i4")}, "step: expected 5 rows, got 4"),
        (lambda: {**parts(), "header": np.zeros(3, np.uint8)}, "header: not valid JSON"),
        (lambda: headed(format="perfmodel.schedule/2"), "format: expected 'perfmodel.schedule/1'"),
        (lambda: headed(workers=0), "header: workers: must be at least 1, got 0"),
        (lambda: headed(workers=3), "header: begins_s: expected 3 values, got 2"),
        (lambda: headed(slices=[]), "header: slices: expected 1 values, got 0"),
        (lambda: headed(batch_size="16"), "header: .*batch_size"),
        (lambda: headed(seed=-1), "header: seed: must be at least 0, got -1"),
        (lambda: headed(batch_size=-1), "header: batch_size: must be at least 1, got -1"),
        (lambda: headed(slices=[-8.0, 4.0]), r"header: slices\[0\]: must be at least 0, got -8"),
        (lambda: headed(architecture="\ud800"), "header: not valid JSON: .*surrogate"),
        (lambda: headed(options={"\udc00": 1}), "header: not valid JSON: .*surrogate"),
        (lambda: headed(extra=1), "header: .*unknown field `extra`"),
        (lambda: {**parts(), "step": np.array([{}] * 5)}, "not a schedule"),
    ],
)
def test_files_that_are_not_schedules_are_refused(
    tmp_path: Path, make: Callable[[], dict[str, NDArray[Any]]], message: str
) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, allow_pickle=True, **make())
    with pytest.raises(InputError, match=message) as error:
        Schedule.read(path)
    assert "\n" not in str(error.value)


def test_groups_are_not_negative(tmp_path: Path) -> None:
    path = tmp_path / "wrong.npz"
    msgspec.structs.replace(SCHEDULE, group=SCHEDULE.group - 9).write(path)
    with pytest.raises(InputError, match="group: row 0 is wrong: must be not negative"):
        Schedule.read(path)


def test_a_gradient_of_a_later_version_is_refused() -> None:
    """Its staleness would be negative."""
    rows = [
        (0.0, Event.GRADIENT, 0, 0, 0, -2, -1, 0.0, 0, 5, -1),
        (1.0, Event.APPLY, 0, 0, 0, -2, -1, 1.0, 1, 1, -1),
    ]
    with pytest.raises(InputError, match="version: a gradient is of a later version"):
        of_rows(rows).check()


def test_a_row_for_too_many_slices_is_refused() -> None:
    """200 rows are 6.5 million with 32767 slices, 2000 are 65 million."""
    many = msgspec.structs.replace(HEADER, slices=(1.0,) * 32767)
    row = (0.0, Event.READ, 0, 0, 0, -1, -1, 0.0, 0, 0, -1)
    with pytest.raises(InputError, match=r"at most 50000000 rows if each slice is .* got 65534000"):
        msgspec.structs.replace(of_rows([row] * 2000), header=many).check()


def test_control_characters_of_a_header_are_escaped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **headed(architecture="p\u202es\x1b"))
    assert Schedule.read(tmp_path / "a.npz").header.architecture == r"p\u202es\x1b"


def test_a_small_file_that_unpacks_to_much_is_refused_before_unpacking(tmp_path: Path) -> None:
    """Two million rows of zeros are 118 MB, packed 1000 times."""
    rows = 2_000_000
    columns = {name: np.zeros(rows, kind) for name, kind in COLUMNS.items()}
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, header=parts()["header"], **columns)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"its 1.* kB unpack to 118 MB, the limit is 67.11 MB"):
        Schedule.read(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 5e6


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with pytest.raises(InputError, match="cannot read"):
        Schedule.read(path)
    SCHEDULE.write(path)
    total = path.read_bytes()
    for data in (b"", b"nothing", total[: len(total) // 2], total[:100] + bytes(50) + total[150:]):
        path.write_bytes(data)
        with pytest.raises(InputError, match="not a schedule"):
            Schedule.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header", b"text")
    with pytest.raises(InputError, match="not a schedule"):
        Schedule.read(path)
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    path.write_bytes(out.getvalue())
    with pytest.raises(InputError, match="not a schedule"):
        Schedule.read(path)
