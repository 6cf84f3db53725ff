"""What should I rent? ResNet-50 for 90 epochs on at most 32 GPUs, within 2, 4 or 24 hours.

python examples/06_what_to_rent.py [PICTURE.png]
"""

import sys

from perfmodel import PlanLimits, plan

INSTANCES = {
    "p3.16xlarge": "8 x V100",
    "p4d.24xlarge": "8 x A100",
    "g4dn.12xlarge": "4 x T4",
    "g6e.12xlarge": "4 x L40S",
    "g2-standard-4": "L4",
}
DEADLINES_H = (2, 4, 24)


def main() -> None:
    fronts = {}
    print("lowest cost (USD) within" + "".join(f"{hours:6} h" for hours in DEADLINES_H))
    for name, accelerator in INSTANCES.items():
        fronts[name] = plan(
            model="resnet50", dataset_size=1_281_167, epochs=90, limits=PlanLimits(max_workers=32),
            instance=[name], arch=["allreduce", "ps"], fidelity="coarse",
        ).front  # fmt: skip
        cells = []
        for hours in DEADLINES_H:
            costs = [each.cost_usd for each in fronts[name] if each.time_s <= hours * 3600]
            cells.append(f"{min(costs):8.0f}" if costs else "       -")
        print(f"{name:14}{accelerator:10}" + "".join(cells))
    if len(sys.argv) > 1:
        draw(fronts, sys.argv[1])


def draw(fronts: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 4.0), layout="tight")
    axes = picture.subplots()
    for name, front in fronts.items():
        hours, costs = [each.time_s / 3600 for each in front], [each.cost_usd for each in front]
        axes.plot(hours, costs, "o-", label=f"{name} ({INSTANCES[name]})")
    axes.set(xscale="log", xlabel="hours", ylabel="USD", ylim=(0, None))
    axes.legend()
    picture.savefig(path, dpi=80)


main()
