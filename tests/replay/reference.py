"""Replays a schedule literally, row by row, and keeps every version of every model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.replay.batches import Batches
from perfmodel.replay.models import edges_of
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.tasks import TrainingTask
from perfmodel.results.schedule import CENTRE, COLUMNS, WHOLE, Event, Schedule


def slow_loss(schedule: Schedule, task: TrainingTask, optimizer: Optimizer, seed: int = 0) -> float:
    """Final loss of the centre or of the mean of all models; momentum is at the server."""
    h = schedule.header
    start = task.initial(seed)
    models = {m: start.copy() for m in range(CENTRE, h.workers)}
    velocity = {m: np.zeros(len(start)) for m in models}
    edges = edges_of(len(start), h.slices)
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    versions: dict[tuple[int, int, int], Floats] = {
        (m, k, 0): start[part].copy() for m in models for k, part in enumerate(parts)
    }
    batches = Batches(task.samples, h.workers, h.batch_size, seed)
    gradients: dict[tuple[int, int], Floats] = {}
    columns = {name: getattr(schedule, name).tolist() for name in COLUMNS}
    rows: list[dict[str, Any]] = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    for _, group in itertools.groupby(rows, key=lambda row: row["group"]):
        before = {m: values.copy() for m, values in models.items()}
        total: dict[tuple[int, int], Any] = {}
        for row in group:
            slices = range(len(parts)) if row["slice"] == WHOLE else (row["slice"],)
            worker, model = row["worker"], row["model"]
            if row["event"] == Event.GRADIENT:
                _, gradient = task.gradient(before[worker], batches.take(worker))
                gradients[worker, row["step"]] = gradient
            for k in slices:
                part = parts[k]
                if row["event"] == Event.READ:
                    models[worker][part] = before[CENTRE][part]
                elif row["event"] == Event.MIX:
                    other = versions[row["other"], k, row["other_version"]]
                    models[model][part] += row["weight"] * (other - before[model][part])
                    versions[model, k, row["version"]] = models[model][part]
                elif row["event"] == Event.APPLY:
                    gradient = row["weight"] * gradients[worker, row["step"]][part]
                    key = (model, k)
                    total[key] = total.get(key, 0.0) + gradient
                    versions[model, k, row["version"]] = models[model][part]
        for (model, k), gradient in total.items():
            part = parts[k]
            momentum = optimizer.momentum * velocity[model][part]
            velocity[model][part] = (
                momentum + gradient + optimizer.weight_decay * models[model][part]
            )
            models[model][part] -= optimizer.learning_rate * velocity[model][part]
        for key, view in list(versions.items()):  # the versions just made are final now
            if view.base is not None:
                versions[key] = view.copy()
    if (schedule.model == CENTRE).any():
        return task.evaluate(models[CENTRE]).loss
    return task.evaluate(np.mean([models[m] for m in range(h.workers)], axis=0)).loss
