"""The samples in each worker's batches."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Ids

_ORDER = 14
"""Separates these random numbers from others with the same seed."""

_KEPT = 4
"""Number of permutations kept for workers in different epochs."""


class Batches:
    """Draws samples from an endless sequence of permutations: worker w of N takes every N-th, from
    the w-th on.

    Each epoch has one permutation of all samples, drawn from the seed. The workers' shards of it
    are disjoint, as with PyTorch's ``DistributedSampler`` and ``set_epoch``. But if N does not
    divide the number of samples, none is dropped or repeated: the sequence continues with the next
    permutation, even within a batch. All batches are full. A fast worker can be in a later epoch
    than a slow one.

    Together, N workers with batches of b draw the same batches as one worker with batches of N b.
    """

    def __init__(self, samples: int, workers: int, batch_size: int, seed: int) -> None:
        self.samples, self.workers, self.batch_size = samples, workers, batch_size
        self._seed = seed
        self._permutations: dict[int, Ids] = {}
        self._epoch = [0] * workers
        self._left: list[Ids] = [np.empty(0, np.int64)] * workers
        self._at = [0] * workers

    def take(self, worker: int) -> Ids:
        """Return the sample indices of the worker's next batch, shape (batch_size,)."""
        begin = self._at[worker]
        end = begin + self.batch_size
        if end > len(self._left[worker]):
            self._fill(worker)
            begin, end = 0, self.batch_size
        self._at[worker] = end
        return self._left[worker][begin:end]

    def _fill(self, worker: int) -> None:
        """Append shards until there are enough samples for a batch."""
        parts = [self._left[worker][self._at[worker] :]]
        while sum(map(len, parts)) < self.batch_size:
            epoch = self._epoch[worker]
            first = (worker - epoch * self.samples) % self.workers
            parts.append(self._permutation(epoch)[first :: self.workers])
            self._epoch[worker] += 1
        self._left[worker] = np.concatenate(parts)

    def _permutation(self, epoch: int) -> Ids:
        if epoch not in self._permutations:
            rng = np.random.default_rng((self._seed, _ORDER, epoch))
            self._permutations[epoch] = rng.permutation(self.samples)
            if len(self._permutations) > _KEPT:
                del self._permutations[next(iter(self._permutations))]
        return self._permutations[epoch]
