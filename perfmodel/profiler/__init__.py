"""Measures training steps of PyTorch models, layer by layer.

- :func:`measure_noise` measures the gradient noise scale, at fixed parameters or while training;
- :class:`Profiler` wraps any training loop;
- :func:`record` runs the loop itself, for a model given by name and several batch sizes;
- :func:`describe` records layers and operators of such a model without computing anything;
- :func:`training` makes a training step for a model given by name.

PyTorch is only imported on first use. Times are in seconds, sizes in bytes.
"""

from perfmodel.profiler.averages import Average
from perfmodel.profiler.gradient_noise import measure_noise
from perfmodel.profiler.overhead import Overhead
from perfmodel.profiler.profiler import Profiler
from perfmodel.profiler.record import RecordedProfile, record
from perfmodel.profiler.training import TrainableModel, training
from perfmodel.profiler.unmeasured import describe

__all__ = [
    "Average",
    "Overhead",
    "Profiler",
    "RecordedProfile",
    "TrainableModel",
    "describe",
    "measure_noise",
    "record",
    "training",
]
