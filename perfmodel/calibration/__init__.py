"""From measurements to what predictions need: what a server, a link or a collective really does."""

from perfmodel.calibration.asynchronous_fit import ServerFit, Throughput, read_fit
from perfmodel.calibration.asynchronous_model import PUBLISHED, Load, Published, Run, Series
from perfmodel.calibration.asynchronous_server import fit_asynchronous_server
from perfmodel.calibration.runs import RunsFit, StepTime, fit_runs
from perfmodel.calibration.runs_table import PastRun, RunsTable, read_runs
from perfmodel.calibration.series import read_series
from perfmodel.calibration.server import ServerCosts, fitted_costs, measured_costs, with_server
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
    "StepTime",
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
