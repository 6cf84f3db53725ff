"""From measurements to what predictions need: what a server, a link or a collective really does."""

from perfmodel.calibration.asynchronous_server import (
    PUBLISHED,
    Load,
    Published,
    Run,
    Series,
    ServerFit,
    Throughput,
    fit_asynchronous_server,
    read_fit,
)
from perfmodel.calibration.statistics import Estimate, Residuals

__all__ = [
    "PUBLISHED",
    "Estimate",
    "Load",
    "Published",
    "Residuals",
    "Run",
    "Series",
    "ServerFit",
    "Throughput",
    "fit_asynchronous_server",
    "read_fit",
]
