"""From measurements to what predictions need: what a server, a link or a collective really does."""

from perfmodel.calibration.runs.fit import RunsFit, fit_runs
from perfmodel.calibration.runs.table import PastRun, RunsTable, read_runs
from perfmodel.calibration.servers.asynchronous_fit import fit_asynchronous_server
from perfmodel.calibration.servers.asynchronous_model import PUBLISHED, Load, Published, Run, Series
from perfmodel.calibration.servers.asynchronous_result import ServerFit, Throughput, read_fit
from perfmodel.calibration.servers.costs import (
    ServerCosts,
    fitted_costs,
    measured_costs,
    with_server,
)
from perfmodel.calibration.servers.series import read_series
from perfmodel.calibration.statistics import Estimate, Fitted, Residuals

__all__ = [
    "PUBLISHED",
    "Estimate",
    "Fitted",
    "Load",
    "PastRun",
    "Published",
    "Residuals",
    "Run",
    "RunsFit",
    "RunsTable",
    "Series",
    "ServerCosts",
    "ServerFit",
    "Throughput",
    "fit_asynchronous_server",
    "fit_runs",
    "fitted_costs",
    "measured_costs",
    "read_fit",
    "read_runs",
    "read_series",
    "with_server",
]
