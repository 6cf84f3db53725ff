"""The jobs of a study in chunks; an executor predicts one chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.results.prediction import Prediction, Progress as Progress

Answer = Prediction | InputError
"""A prediction without its job, or the error that prevented it."""

COARSE_JOBS, MOST_JOBS, LEAST_CHUNKS = 256, 16, 64
"""Chunk size for coarse predictions; largest chunk size for the others; and the number of chunks to
reach before chunks of the others grow beyond one job."""

T = TypeVar("T")


def counted(items: Sequence[T], progress: Progress | None) -> Iterator[T]:
    """Yield items, and report each as done when the next one is asked for."""
    for done, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(done, len(items))


class Chunk(NamedTuple):
    """Jobs that are predicted together; ``how`` they are predicted.

    Jobs are self-contained: the process that predicts them reads no files.
    """

    jobs: tuple[Job, ...]
    how: api.PredictOptions


def predicted(chunk: Chunk) -> list[Answer]:
    """Predict each job of a chunk."""
    return [_answer(job, chunk.how) for job in chunk.jobs]


def _answer(job: Job, how: api.PredictOptions) -> Answer:
    try:
        # the client already has the job
        return msgspec.structs.replace(api.predict(job, how), predicted_job=None)
    except InputError as error:
        return error


def slices(count: int, fidelity: str) -> Iterator[slice]:
    """Divide ``count`` jobs into chunks, independently of the executor.

    >>> [part.stop for part in slices(300, "coarse")], len(list(slices(300, "fine")))
    ([256, 300], 75)
    """
    size = COARSE_JOBS if fidelity == "coarse" else min(MOST_JOBS, max(1, count // LEAST_CHUNKS))
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
