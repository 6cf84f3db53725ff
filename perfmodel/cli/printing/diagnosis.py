"""A diagnosis as text."""

from __future__ import annotations

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.prediction import title
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.studies.diagnosis import Diagnosis, Suspect


def diagnosis(result: Diagnosis) -> None:
    """Print how much slower a run is, its causes, and the measurement that would decide."""
    show(title(result.prediction))
    step_s, expected_s = result.measured.step_s, result.prediction.iteration_s
    show(
        f"a step took {quantity(step_s, 's')}, {result.slower:.2f} times the "
        f"{quantity(expected_s, 's')} that is predicted"
    )
    if result.note:
        show(f"{bold('note')}: {result.note}")
    if not result.first.explains:
        show("no single cause that is known here explains that; the nearest:")
    for number, suspect in enumerate(result.suspects, 1):
        show(f"\n{number:2}. {suspect.probability:4.0%} {bold(suspect.finding)}{_size(suspect)}")
        _line("then", f"{quantity(suspect.step_s, 's')} per step are predicted")
        if suspect.remedy:
            gain = f"{suspect.gain:.2f} times as fast, {quantity(suspect.remedied_step_s, 's')}"
            _line("remedy", suspect.remedy)
            _line("gain", gain)
    if result.next_measurement is not None:
        show(f"\n{bold('what would decide')}: {result.next_measurement.text}")


def _line(name: str, text: str) -> None:
    show(f"    {dim(f'{name:8}')}{text}")


def _size(suspect: Suspect) -> str:
    """The interval of the size of a cause."""
    if suspect.interval is None or suspect.interval[0] == suspect.interval[1]:
        return ""
    low, high = suspect.interval
    if suspect.unit in ("times", "count"):
        return f" ({low:.2g} to {high:.2g})"
    return f" ({quantity(low, suspect.unit)} to {quantity(high, suspect.unit)})"
