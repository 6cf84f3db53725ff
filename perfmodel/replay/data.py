"""Data of the shipped tasks: mixtures of Gaussians, and scikit-learn's handwritten digits."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, whole_number

TEST_SHARE = 0.2
"""Fraction of the digits that is held out for the test."""

_MIXTURE, _SPLIT = 11, 12
"""Separate these random numbers from others with the same seed."""


class Data(NamedTuple):
    """Training and test samples of a classification.

    ``inputs`` and ``test_inputs`` have shape (samples, features), ``targets`` and ``test_targets``
    shape (samples,) with classes from 0 to ``classes`` - 1.
    """

    inputs: Floats
    targets: Ids
    test_inputs: Floats
    test_targets: Ids
    classes: int


def mixture(
    seed: int = 0,
    *,
    samples: int = 4000,
    test_samples: int = 1000,
    features: int = 20,
    classes: int = 10,
    clusters: int = 2,
    distance: float = 1.1,
) -> Data:
    """Draw samples from a mixture of Gaussians, with ``clusters`` Gaussians per class.

    The Gaussians have unit variance. Their centres are drawn from a Gaussian with the standard
    deviation ``distance`` in each feature. With more than one cluster per class, the classes are
    not linearly separable, and a network with a hidden layer beats softmax regression.

    Raises
    ------
    InputError : a size is not positive, or there are fewer than two classes.
    """
    for name, value in (
        ("samples", samples),
        ("test_samples", test_samples),
        ("features", features),
        ("clusters", clusters),
    ):
        whole_number(name, value)
    whole_number("classes", classes, at_least=2)
    rng = np.random.default_rng((seed, _MIXTURE))
    centres = distance * rng.standard_normal((classes, clusters, features))

    def draw(count: int) -> tuple[Floats, Ids]:
        targets = rng.integers(classes, size=count)
        noise = rng.standard_normal((count, features))
        return centres[targets, rng.integers(clusters, size=count)] + noise, targets

    return Data(*draw(samples), *draw(test_samples), classes)


def digits(seed: int = 0) -> Data:
    """Load 1797 handwritten digits of 8 x 8 pixels between 0 and 1; the seed picks a fifth for the
    test.

    Raises
    ------
    InputError : scikit-learn is not installed.
    """
    try:
        loaded = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise InputError("digits: needs scikit-learn: pip install 'perfmodel[converge]'") from None
    inputs, targets = loaded.data / 16.0, loaded.target.astype(np.int64)
    order = np.random.default_rng((seed, _SPLIT)).permutation(len(targets))
    test, train = np.split(order, [round(TEST_SHARE * len(order))])
    return Data(inputs[train], targets[train], inputs[test], targets[test], 10)
