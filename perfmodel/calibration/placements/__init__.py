"""Fits data-parallel training on placements of devices over nodes."""

from perfmodel.calibration.placements.fit import fit_data_parallel
from perfmodel.calibration.placements.table import Step, Training

__all__ = ["Step", "Training", "fit_data_parallel"]
