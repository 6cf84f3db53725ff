"""Fits data-parallel training to measured placements of devices on nodes."""

from perfmodel.calibration.placements.fit import Placements, Traits, calibrate_placements
from perfmodel.calibration.placements.table import Step, Training

__all__ = ["Placements", "Step", "Training", "Traits", "calibrate_placements"]
