"""Fits links and collectives to network measurements."""

from perfmodel.calibration.network.collectives import fit_collective
from perfmodel.calibration.network.fit import fit_network, read

__all__ = ["fit_collective", "fit_network", "read"]
