"""Choose which network operations to measure, and how often, within a given time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.units import show
from perfmodel.measuring.measurements import COLLECTIVES, Measurement, Operation

SIZES_BYTES = tuple(4**i for i in range(1, 14))
"""4 B to 67.1 MB."""

FEWEST_BULK_BYTES = 4**8
"""Smallest default size (65.5 kB) of bandwidth measurements, and the largest of back-to-back
messages."""

MOST_MESSAGES, MOST_MESSAGES_BYTES = 200, 4 * 2**20
"""Maximum number of back-to-back messages, and maximum of their total bytes."""

MOST_GROUPS = 8
"""Up to this number of ranks, groups of 2, 3, ... are measured; above it, groups of 2, 4, 8, ...
and all ranks."""

STEP = 4
"""Factor between the sizes that are run to estimate the time of a larger size."""

BULK: tuple[Operation, ...] = ("stream", "duplex", "incast")

Clock = Callable[[], float]
Say = Callable[[str], None]
Advance = Callable[[int, int], None]


class NetworkCase(msgspec.Struct, frozen=True):
    """An operation to measure, as in :class:`perfmodel.measuring.measurements.Measurement`."""

    operation: Operation
    bytes: int
    ranks: int = 2
    count: int = 1

    @property
    def moved_bytes(self) -> int:
        """Bytes of all messages together."""
        return self.bytes * self.count


Once = Callable[[NetworkCase], float]
"""Runs a case once, and returns the seconds to record."""


def chosen_operations(
    requested: Sequence[str] | None, offered: Sequence[Operation], ranks: int
) -> list[Operation]:
    """Return the operations to measure, in the order of ``offered``."""
    for name in requested or ():
        if name not in offered:
            raise unknown_name("operation", name, offered)
        if name == "incast" and ranks < 3:
            raise InputError(f"--operations: incast needs at least 3 ranks, got {ranks}")
    able = [operation for operation in offered if operation != "incast" or ranks > 2]
    return [operation for operation in able if not requested or operation in requested]


def cases(
    operations: Sequence[Operation],
    ranks: int,
    sizes_bytes: Sequence[int] | None,
    real_size: Callable[[Operation, int, int], int],
) -> list[list[NetworkCase]]:
    """Return a series of cases, from small to large, for each operation and number of ranks.

    ``real_size`` returns the bytes actually moved for a requested size.
    """
    measured = []
    for operation in operations:
        for members in members_of(operation, ranks):
            series = {
                NetworkCase(
                    operation, real_size(operation, size, members), members, count(operation, size)
                )
                for size in sizes_bytes or _default_sizes(operation)
            }
            measured.append(sorted(series, key=lambda case: case.bytes))
    return measured


def count(operation: Operation, size_bytes: int) -> int:
    """Return the number of messages in one repetition."""
    if operation != "messages":
        return 1
    return min(max(MOST_MESSAGES_BYTES // size_bytes, 1), MOST_MESSAGES)


def _default_sizes(operation: Operation) -> Sequence[int]:
    if operation in BULK:
        return [size for size in SIZES_BYTES if size >= FEWEST_BULK_BYTES]
    if operation == "messages":
        return [size for size in SIZES_BYTES if size <= FEWEST_BULK_BYTES]
    return SIZES_BYTES


def members_of(operation: Operation, ranks: int) -> list[int]:
    """Return the numbers of ranks for which to measure an operation."""
    if operation not in (*COLLECTIVES, "incast"):
        return [2]
    fewest = 3 if operation == "incast" else 2
    if ranks <= MOST_GROUPS:
        return list(range(fewest, ranks + 1))
    powers = [2**i for i in range(1, ranks.bit_length()) if fewest <= 2**i < ranks]
    return [*powers, ranks]


def within(
    series: Sequence[Sequence[NetworkCase]],
    once: Once,
    *,
    seconds: float,
    repetitions: int,
    idle_s: float = 0.0,
    say: Say | None = None,
    progress: Advance | None = None,
    clock: Clock = time.perf_counter,
) -> list[Measurement]:
    """Measure cases in about ``seconds``; each series of growing sizes gets an equal share.

    Unused time passes on to the following series. A case runs once as a warm-up, then as often as
    time permits, at most ``repetitions`` times and at least once. It is skipped, with the larger
    cases of its series, if running it twice would exceed the remaining time. Its time is estimated
    from the previous size, and from unrecorded sizes in between if it is more than ``STEP`` times
    larger. ``idle_s`` seconds of each repetition do not grow with the size.
    """
    measured: list[Measurement] = []
    until = clock() + seconds
    done, total = 0, sum(map(len, series))
    largest = known = 0, 0.0  # bytes moved, and the seconds it took
    for i, group in enumerate(series):
        end = clock() + max(until - clock(), 0.0) / (len(series) - i)
        known = largest
        for j, case in enumerate(group):
            for probe in (*_probes(case, known[0]), case):
                expected_s = _expected(probe, known, idle_s)
                if probe is case or 2.0 * expected_s > end - clock():
                    break
                began = clock()
                once(probe)
                known = probe.moved_bytes, clock() - began
            if 2.0 * expected_s > end - clock():
                if say is not None:
                    say(_left_out(group[j:], seconds))
                break
            limit = clock() + max(end - clock(), 0.0) / (len(group) - j)
            values, took_s = _repeated(case, once, repetitions, limit, clock)
            known = case.moved_bytes, took_s
            largest = max(largest, known)
            measured.append(
                Measurement(
                    operation=case.operation,
                    bytes=float(case.bytes),
                    seconds=tuple(values),
                    ranks=case.ranks,
                    count=case.count,
                )
            )
            if progress is not None:
                progress(done + j + 1, total)
        done += len(group)
        if progress is not None:
            progress(done, total)
    if not measured:
        raise InputError(f"--seconds: {seconds:g} s is too short to measure any of the sizes")
    return measured


def _expected(case: NetworkCase, known: tuple[int, float], idle_s: float) -> float:
    """Return an upper estimate of a case's seconds if it moves more bytes than ``known``; else
    0."""
    moved, took_s = known
    if not case.moved_bytes >= moved > 0:
        return 0.0
    return idle_s + max(took_s - idle_s, 0.0) * case.moved_bytes / moved


def _probes(case: NetworkCase, moved_bytes: int) -> list[NetworkCase]:
    """Return the same case with fewer bytes, growing by ``STEP``, from above ``moved_bytes``."""
    unit = 4 * case.ranks  # equal parts of whole float32 values
    measured = []
    size = case.bytes // STEP // unit * unit
    while size and size * case.count > moved_bytes:
        measured.append(msgspec.structs.replace(case, bytes=size))
        size = size // STEP // unit * unit
    return measured[::-1]


def _repeated(
    case: NetworkCase, once: Once, repetitions: int, limit: float, clock: Clock
) -> tuple[list[float], float]:
    """Return the seconds of each repetition until ``limit``, and the mean duration of a repetition
    with its overhead."""
    began = clock()
    once(case)
    values: list[float] = []
    while True:
        values.append(once(case))
        mean_s = (clock() - began) / (len(values) + 1)
        if len(values) == repetitions or clock() + mean_s > limit:
            return values, mean_s


def _left_out(rest: Sequence[NetworkCase], seconds: float) -> str:
    first = rest[0]
    more = " and more" if len(rest) > 1 else ""
    return (
        f"{first.operation} among {first.ranks} ranks: skipped {show(first.bytes, 'bytes')}{more}: "
        f"not enough time within {show(seconds, 's')}"
    )
