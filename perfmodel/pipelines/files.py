"""Schedules as files: the CSV form of torch.distributed.pipelining, one line per rank."""

from __future__ import annotations

import re
from pathlib import Path

from perfmodel.base import files, formats
from perfmodel.base.errors import InputError, suggestion
from perfmodel.pipelines.actions import Action, Schedule
from perfmodel.pipelines.checks import check

IGNORED = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
"""Kinds of cells that are no computation: they follow from the order of those that are."""

JOINED = "OVERLAP_F_B"
"""Kind of a cell that holds several actions, which run together."""

_OTHER = re.compile(rf"\d+({'|'.join(IGNORED)})\d*", re.ASCII)
_SEVERAL = re.compile(r"\((.*)\)(\w*)")


def read(path: str | Path) -> Schedule:
    """Read a schedule that torch.distributed.pipelining or :func:`write` has written.

    Each line has the actions of a rank, such as ``0F0``, ``1B3``, ``2I1``, ``2W1``; empty cells are
    skipped, and so are transfers, and gathering and reducing of parameters (:data:`IGNORED`). A
    cell ``(0F4;3B1)OVERLAP_F_B`` joins two actions. All weights are updated after the last one.

    Raises
    ------
    InputError : the file cannot be read; a cell is no action; the schedule cannot run
        (:func:`perfmodel.pipelines.check`). The text begins with the file, line and cell.
    """
    return decode(files.read_bytes(path), name=str(path))


def decode(data: bytes, *, name: str) -> Schedule:
    """Like :func:`read`, from bytes; ``name`` is what errors call the file, and the schedule."""
    text = formats.text_of(data)
    if text is None:
        wrong = formats.refusal(data, name, "a pipeline schedule")
        raise wrong or InputError(f"{name}: not a pipeline schedule: it is binary")
    orders: list[list[Action]] = []
    joined: list[list[bool]] = []
    for line, row in enumerate(text.rstrip().splitlines(), start=1):
        orders.append([])
        joined.append([])
        for column, cell in enumerate(row.split(","), start=1):
            actions = _cell(cell.strip(), f"{name}: line {line}, cell {column}")
            orders[-1] += actions
            joined[-1] += [i < len(actions) - 1 for i in range(len(actions))]
        if not orders[-1]:
            raise InputError(f"{name}: line {line}: a rank without actions")
    if not orders:
        raise InputError(f"{name}: the file is empty; expected one line of actions per rank")
    try:
        return check(Schedule.of(name, orders, joined=joined))
    except InputError as error:
        raise InputError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None


def _cell(cell: str, place: str) -> list[Action]:
    """Return the actions of a cell: none, one, or two that run together."""
    if not cell or _OTHER.fullmatch(cell):
        return []
    several = _SEVERAL.fullmatch(cell)
    try:
        if several is None:
            return [Action.of(cell)]
        if several[2] != JOINED:
            hint = suggestion(several[2], [JOINED])
            raise InputError(
                f"expected {JOINED} after actions in brackets, got {several[2]!r}{hint}"
            )
        actions = [Action.of(part.strip()) for part in several[1].split(";")]
        if len(actions) != 2:
            raise InputError(f"expected two actions in brackets, got {len(actions)}")
        return actions
    except InputError as error:
        more = f"; also allowed: empty cells, and {', '.join(IGNORED)}" if several is None else ""
        raise InputError(f"{place}: {error}{more}") from None


def text(schedule: Schedule) -> str:
    """Return a schedule as CSV, in the form that torch.distributed.pipelining reads.

    >>> from perfmodel.pipelines import schedule
    >>> print(text(schedule("gpipe", 2, 2)), end="")
    0F0,0F1,0B0,0B1
    1F0,1F1,1B0,1B1
    """
    lines = []
    for rank in range(schedule.ranks):
        cells: list[str] = []
        for i in range(schedule.begins[rank], schedule.begins[rank + 1]):
            action = str(schedule.action(i))
            if i and schedule.joined[i - 1]:
                cells[-1] = f"({cells[-1]};{action}){JOINED}"
            else:
                cells.append(action)
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def write(path: str | Path, schedule: Schedule) -> None:
    """Write a schedule as CSV: :func:`text`.

    PyTorch cannot run two copies of a stage. The form has no place for asynchronous updates.

    Raises
    ------
    InputError : the file cannot be written.
    """
    files.write(path, text(schedule).encode())
