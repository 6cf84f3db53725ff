"""Which samples each worker's batches have."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Ids

_ORDER = 14
"""Separates these random numbers from others of the same seed."""

_KEPT = 4
"""Permutations that are kept for workers in different epochs."""


class Batches:
    """Worker w of N draws every N-th sample, from the w-th on, of an endless row of permutations.

    There is one permutation of all samples for each epoch, drawn from the seed, and the workers'
    shards of it are disjoint, as those of PyTorch's ``DistributedSampler`` with ``set_epoch``.
    Unlike there no sample is left out or drawn twice where N does not divide their number: the row
    goes on with the next permutation, also within a batch. All batches are full. A fast worker is
    in a later epoch than a slow one.

    N workers with batches of b together draw the batches that one worker would with N b.
    """

    def __init__(self, samples: int, workers: int, batch_size: int, seed: int) -> None:
        self.samples, self.workers, self.batch_size = samples, workers, batch_size
        self._seed = seed
        self._permutations: dict[int, Ids] = {}
        self._epoch = [0] * workers
        self._left: list[Ids] = [np.empty(0, np.int64)] * workers
        self._at = [0] * workers

    def take(self, worker: int) -> Ids:
        """Indices of the worker's next batch, shape (batch_size,)."""
        begin = self._at[worker]
        end = begin + self.batch_size
        if end > len(self._left[worker]):
            self._fill(worker)
            begin, end = 0, self.batch_size
        self._at[worker] = end
        return self._left[worker][begin:end]

    def _fill(self, worker: int) -> None:
        """Append shards until there is a batch."""
        parts = [self._left[worker][self._at[worker] :]]
        while sum(map(len, parts)) < self.batch_size:
            epoch = self._epoch[worker]
            first = (worker - epoch * self.samples) % self.workers
            parts.append(self._permutation(epoch)[first :: self.workers])
            self._epoch[worker] += 1
        self._left[worker] = np.concatenate(parts)

    def _permutation(self, epoch: int) -> Ids:
        found = self._permutations.get(epoch)
        if found is None:
            rng = np.random.default_rng((self._seed, _ORDER, epoch))
            found = self._permutations[epoch] = rng.permutation(self.samples)
            if len(self._permutations) > _KEPT:
                del self._permutations[next(iter(self._permutations))]
        return found
