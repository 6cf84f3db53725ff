"""Training times for SkyPilot, so that its optimizer knows what each instance type costs.

With SkyPilot installed:

    task = sky.Task(run="python train.py", num_nodes=4)
    task.set_resources({sky.Resources(accelerators="V100:8"), sky.Resources(accelerators="A100:8")})
    task.set_time_estimator(time_estimator("resnet50", dataset_size=1281167, epochs=90, nodes=4))

The estimator takes a `sky.Resources` and returns seconds. It reads only `instance_type` and
`accelerators`, so this example does not need SkyPilot: `main` uses stand-ins.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from perfmodel import InputError, plan

NEVER_S = 10 * 365 * 86400
"""Time on a type of unknown speed or with too little memory; the optimizer then avoids it."""


def time_estimator(
    model: str, *, dataset_size: int, epochs: int = 1, nodes: int = 1, batch_size: int = 64,
    arch: str = "allreduce", instances: str | None = None,
) -> Callable[[Any], int]:  # fmt: skip
    """Return a function from `sky.Resources` to the seconds of training on ``nodes`` machines.

    ``batch_size`` is per accelerator; ``instances`` is a catalogue file that replaces the built-in
    one.
    """

    @functools.cache
    def seconds(instance_type: str, accelerator: str, count: int) -> int:
        try:
            found = plan(
                model=model, dataset_size=dataset_size, epochs=epochs, arch=arch,
                instance=[instance_type], workers=nodes * count, batch_size=batch_size,
                catalogue_file=instances, fidelity="coarse",
            )  # fmt: skip
        except InputError:
            return NEVER_S
        mine = (one.time_s for one in found.ranked if one.accelerator == accelerator)
        return round(next(mine, NEVER_S))

    def estimate(resources: Any) -> int:
        accelerators = resources.accelerators or {}
        if resources.instance_type is None or len(accelerators) != 1:
            return NEVER_S
        ((name, count),) = accelerators.items()
        return seconds(resources.instance_type, name, int(count))

    return estimate


def main() -> None:
    estimate = time_estimator("resnet50", dataset_size=1281167, epochs=90, nodes=4)
    for name, accelerators in {
        "p3.16xlarge": {"V100": 8}, "p4d.24xlarge": {"A100": 8}, "g4dn.12xlarge": {"T4": 4},
        "m5.large": {},
    }.items():  # fmt: skip
        resources = SimpleNamespace(instance_type=name, accelerators=accelerators)
        seconds = estimate(resources)
        print(f"4 x {name:14}", f"{seconds / 3600:6.2f} h" if seconds < NEVER_S else "not known")


if __name__ == "__main__":
    main()
