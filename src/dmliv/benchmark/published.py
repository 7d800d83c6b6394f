"""The numbers of the paper, beside the grids they belong to.

Shao, Soleymani, Quinzan and Kwiatkowska, "Learning Decision Policies with Instrumental Variables through
Double Machine Learning", ICML 2024. Medians were read off its figures by eye (within 5 percent), means and
standard deviations are those of its tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from dmliv.benchmark.sensitivity import IMAGES, LOW_DIMENSIONAL

Statistic = Literal["median", "mean"]

# The order in which the figures are written down below.
_FIGURE: Final = ("DeepGMM", "DeepIV", "KIV", "DFIV", "CE-DML-IV", "DML-IV")


@dataclass(frozen=True)
class Published:
    """A published number.

    Parameters
    ----------
    value : float
    statistic : {"median", "mean"}
        What it is; it is compared with the same statistic of ours.
    sd : float or None
        Standard deviation, for means.
    """

    value: float
    statistic: Statistic
    sd: float | None = None


Key = tuple[str, str, int, str, str]
"""Grid, label of the task, rows, published name of the method, metric."""

_BY_SIZE: Final = {
    ("demand", "grid_mse"): {
        1000: (0.35, 0.275, 0.27, 0.225, 0.22, 0.205),
        2000: (0.36, 0.24, 0.255, 0.18, 0.135, 0.13),
        5000: (0.255, 0.115, 0.235, 0.105, 0.071, 0.062),
        10_000: (0.118, 0.071, 0.185, 0.060, 0.043, 0.037),
    },
    ("demand", "reward"): {
        1000: (-0.25, 0.51, 0.81, 0.96, 1.02, 1.04),
        2000: (0.42, 0.52, 0.85, 0.83, 1.02, 1.04),
        5000: (0.25, 0.78, 0.82, 0.88, 1.05, 1.11),
        10_000: (0.89, 0.91, 0.88, 0.94, 1.10, 1.11),
    },
    ("demand", "shifted_reward"): {
        1000: (-0.05, 0.81, 1.01, 1.17, 1.25, 1.30),
        2000: (0.82, 0.76, 1.05, 1.04, 1.24, 1.25),
        5000: (0.48, 0.98, 1.01, 1.08, 1.24, 1.30),
        10_000: (1.03, 1.13, 1.08, 1.13, 1.29, 1.31),
    },
    ("image-demand", "grid_mse"): {
        1000: (1.18, 0.71, 0.89, 0.81, 0.63, 0.485),
        2000: (1.06, 0.585, 0.835, 0.695, 0.525, 0.415),
        5000: (0.75, 0.44, 0.80, 0.525, 0.38, 0.35),
        10_000: (0.685, 0.355, 0.76, 0.415, 0.31, 0.29),
    },
    ("image-demand", "reward"): {
        1000: (-1.29, -1.34, -1.19, 0.17, 0.01, 1.24),
        2000: (-1.11, 0.31, -0.93, 0.10, 0.84, 1.28),
        5000: (-0.53, 1.03, -0.94, 0.75, 1.26, 1.29),
        10_000: (-0.33, 1.00, -0.72, 0.76, 1.26, 1.28),
    },
}
_REAL: Final = {
    ("IHDP", 470, "validation_mse"): (0.18, 0.285, 0.24, 0.73, 0.19, 0.195),
    ("PM-CMR", 1343, "validation_mse"): (0.155, 0.137, 0.21, 0.485, 0.103, 0.09),
    ("IHDP", 470, "validation_reward"): (1.66, 1.74, 1.72, 1.665, 1.835, 1.935),
    ("PM-CMR", 1343, "validation_reward"): (1.77, 1.98, 1.875, 1.915, 1.985, 2.12),
}
_STRENGTHS: Final = (1.0, 0.8, 0.6, 0.4, 0.2, 0.01)
# Means and standard deviations, strength after strength.
_WEAK: Final = {
    "DML-IV": (
        (0.0676, 0.0984, 0.1295, 0.1859, 0.2899, 0.4872),
        (0.0116, 0.0161, 0.0168, 0.0376, 0.0494, 0.1295),
    ),
    "CE-DML-IV": (
        (0.0765, 0.1064, 0.1514, 0.2070, 0.3194, 0.5302),
        (0.0119, 0.0120, 0.0203, 0.0329, 0.0572, 0.1625),
    ),
    "DeepIV": (
        (0.1213, 0.2039, 0.3051, 0.4476, 0.6891, 0.9293),
        (0.0209, 0.0269, 0.0415, 0.0656, 0.1210, 0.2382),
    ),
    "DFIV": (
        (0.1124, 0.1586, 0.3080, 0.8117, 0.9622, 1.6503),
        (0.0481, 0.0320, 0.1907, 0.2779, 0.3892, 0.6845),
    ),
    "DeepGMM": (
        (0.2699, 0.3330, 0.4762, 0.8666, 1.0056, 2.0218),
        (0.0522, 0.1171, 0.1056, 0.2248, 0.4334, 0.6555),
    ),
    "KIV": (
        (0.2312, 0.3149, 0.4275, 0.6646, 0.8099, 1.226),
        (0.0272, 0.0218, 0.0368, 0.0538, 0.0657, 0.1014),
    ),
}
# Mean and standard deviation of DML-IV, CE-DML-IV and DeepIV.
_TREES: Final = {
    ("random forests", 2000): ((0.1689, 0.0172), (0.1733, 0.0198), (0.2642, 0.0261)),
    ("random forests", 5000): ((0.1067, 0.0131), (0.1154, 0.0138), (0.1626, 0.0128)),
    ("random forests", 10_000): ((0.0657, 0.0062), (0.0721, 0.0039), (0.1106, 0.0080)),
    ("gradient boosting", 2000): ((0.1301, 0.0112), (0.1329, 0.0125), (0.2052, 0.0232)),
    ("gradient boosting", 5000): ((0.0632, 0.0107), (0.0699, 0.0069), (0.1020, 0.0091)),
    ("gradient boosting", 10_000): ((0.0482, 0.0079), (0.0523, 0.0059), (0.1017, 0.0075)),
}


def _figures() -> Iterator[tuple[Key, Published]]:
    for (grid, metric), sizes in _BY_SIZE.items():
        for rows, values in sizes.items():
            for method, value in zip(_FIGURE, values, strict=True):
                yield (grid, "strength 1", rows, method, metric), Published(value, "median")
    for (task, rows, metric), values in _REAL.items():
        for method, value in zip(_FIGURE, values, strict=True):
            yield ("real-world", task, rows, method, metric), Published(value, "median")


def _tables() -> Iterator[tuple[Key, Published]]:
    for method, (means, sds) in _WEAK.items():
        for strength, mean, sd in zip(_STRENGTHS, means, sds, strict=True):
            key = ("weak-instrument", f"strength {strength:g}", 5000, method, "grid_mse")
            yield key, Published(mean, "mean", sd)
    for (family, rows), columns in _TREES.items():
        for method, (mean, sd) in zip(("DML-IV", "CE-DML-IV", "DeepIV"), columns, strict=True):
            key = ("trees", "strength 1", rows, f"{method}, {family}", "grid_mse")
            yield key, Published(mean, "mean", sd)
    for grid, table in (("sensitivity", LOW_DIMENSIONAL), ("image-sensitivity", IMAGES)):
        for change, row in table.items():
            for method, mean, sd in (("DML-IV", *row[:2]), ("CE-DML-IV", *row[2:])):
                key = (grid, "strength 1", 5000, f"{method}, {change.words}", "grid_mse")
                yield key, Published(mean, "mean", sd)


PUBLISHED: Final[Mapping[Key, Published]] = dict([*_figures(), *_tables()])
