"""The jobs of a study in chunks, each predicted wherever an executor has it done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.results.prediction import Prediction

Answer = Prediction | InputError
"""A prediction without its timeline, or why there is none."""

COARSE_JOBS, MOST_JOBS, LEAST_CHUNKS = 256, 16, 64
"""Jobs of a chunk where all are predicted by formulas; elsewhere at most so many, and fewer where
there would not be so many chunks."""


class Chunk(NamedTuple):
    """Jobs that are predicted together, and how: arguments of :func:`perfmodel.predict`.

    Jobs are values: no file is read where they are predicted.
    """

    jobs: tuple[Job, ...]
    how: Mapping[str, Any]


def predicted(chunk: Chunk) -> list[Answer]:
    """The answer to each job of a chunk."""
    return [_answer(job, chunk.how) for job in chunk.jobs]


def _answer(job: Job, how: Mapping[str, Any]) -> Answer:
    try:
        # the timeline is the job, which the client has
        return msgspec.structs.replace(api.predict(job, **how), timeline=None)
    except InputError as error:
        return error


def slices(count: int, fidelity: str) -> Iterator[slice]:
    """The chunks of so many jobs, the same wherever they are predicted.

    >>> [each.stop for each in slices(300, "coarse")], len(list(slices(300, "fine")))
    ([256, 300], 75)
    """
    size = COARSE_JOBS if fidelity == "coarse" else min(MOST_JOBS, max(1, count // LEAST_CHUNKS))
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
