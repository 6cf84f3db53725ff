"""Published accuracies of distributed algorithms, for orientation only, each with its source.

Nothing here is computed, and no computation uses it.
"""

from __future__ import annotations

from typing import NamedTuple


class PublishedAccuracy(NamedTuple):
    """A published test accuracy of a model on a dataset, trained by an algorithm on some workers.

    ``setting`` names what else was varied. ``accuracy`` is a fraction; it is negative if the source
    gives the drop against fewer workers instead of a value.
    """

    model: str
    dataset: str
    algorithm: str
    setting: str
    workers: int
    accuracy: float
    source: str


KO = "Ko, Choi, Seo, Kim, IPDPS 2021, table III"
"""In-depth analysis of seven algorithms on up to 24 Titan V."""

JIA = "Jia and others, IPCCC 2020, figure 10"
JIA_WORKERS = "Jia and others, IPCCC 2020, figure 7"
"""Virtual machines on one host, MXNet."""

_KO: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("BSP", ""): (0.7514, 0.7509, 0.7496, 0.7511),
    ("ASP", ""): (0.7508, 0.7482, 0.7447, 0.7459),
    ("SSP", "bound 3"): (0.7480, 0.7450, 0.7393, 0.7282),
    ("SSP", "bound 10"): (0.7462, 0.7412, 0.7147, 0.6448),
    ("EASGD", "period 4"): (0.7028, 0.6357, 0.5416, 0.4709),
    ("EASGD", "period 8"): (0.7027, 0.6269, 0.5237, 0.4528),
    ("GoSGD", "probability 1"): (0.7160, 0.6529, 0.5492, 0.4641),
    ("GoSGD", "probability 0.1"): (0.6892, 0.6173, 0.5135, 0.4475),
    ("GoSGD", "probability 0.01"): (0.6775, 0.5845, 0.4922, 0.3938),
    ("AD-PSGD", ""): (0.7483, 0.7447, 0.7439, 0.7411),
}

_INCEPTION = {
    ("BSP", 16): 0.79,
    ("ASP", 16): 0.74,
    ("BSP", 512): 0.52,
    ("ASP", 512): 0.44,
}
_FEWER = "final accuracy minus that of 4 workers"

PUBLISHED: tuple[PublishedAccuracy, ...] = (
    *(
        PublishedAccuracy("ResNet-50", "ImageNet-1K", algorithm, setting, workers, accuracy, KO)
        for (algorithm, setting), row in _KO.items()
        for workers, accuracy in zip((4, 8, 16, 24), row, strict=True)
    ),
    *(
        PublishedAccuracy(
            "Inception-v1", "CIFAR-10", name, f"batch {batch}, 3 epochs", 4, accuracy, JIA
        )
        for (name, batch), accuracy in _INCEPTION.items()
    ),
    PublishedAccuracy("ResNet-18", "CIFAR-10", "BSP", _FEWER, 12, -0.08, JIA_WORKERS),
    PublishedAccuracy("ResNet-18", "CIFAR-10", "ASP", _FEWER, 12, -0.35, JIA_WORKERS),
)
"""All published accuracies."""
