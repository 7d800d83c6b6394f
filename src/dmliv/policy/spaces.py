"""Action spaces: which actions a policy may recommend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree
from scipy.stats import qmc

from dmliv.data import FloatArray
from dmliv.errors import InputError, check_whole
from dmliv.inference.counterfactual import Counterfactual

_DEFAULT_POINTS = 200
# Starting points of a search in several dimensions: a grid while it is no larger than this, else spread out.
_MOST_GRID_POINTS = 1024
# Two actions this close in standard deviations are one action.
_SAME = 1e-9


@dataclass(frozen=True)
class Interval:
    """All numbers from ``low`` to ``high``, for an action of one column.

    A policy looks at ``n_points`` equally spaced actions and then climbs from the best of them.

    Parameters
    ----------
    low, high : float
    n_points : int
    """

    low: float
    high: float
    n_points: int = _DEFAULT_POINTS

    def __post_init__(self) -> None:
        """Check the bounds."""
        _check_bounds(np.atleast_1d(self.low), np.atleast_1d(self.high))
        check_whole(least=2, n_points=self.n_points)


@dataclass(frozen=True)
class Box:
    """All actions of several columns between ``low`` and ``high``, column by column.

    Parameters
    ----------
    low, high : tuple of float
        One number per action column, in the order of the columns.
    n_points : int, optional
        Points per column of the grid that a search starts from; by default as many as give a thousand
        points in all. With many columns the starting points are spread out instead.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    n_points: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        low, high = np.atleast_1d(self.low), np.atleast_1d(self.high)
        if low.ndim != 1 or low.shape != high.shape:
            raise InputError(
                f"Expected as many lower as upper bounds, got {self.low!r} and {self.high!r}; "
                "pass one number per action column in both."
            )
        _check_bounds(low, high)
        if self.n_points is not None:
            check_whole(least=2, n_points=self.n_points)


@dataclass(frozen=True, eq=False)
class ActionSpace:
    """The candidates of a policy, and the continuum around them if there is one.

    Attributes
    ----------
    vectors : ndarray, shape (m, d)
        Candidates in model units.
    candidates : ndarray, shape (m,) or (m, d)
        The same in the user's units.
    low, high : ndarray, shape (d,), or None
        Bounds of the continuum in model units; None when only the candidates may be recommended.
    spacing : ndarray, shape (d,)
        Distance between neighbouring candidates; zero without a continuum.
    """

    vectors: FloatArray
    candidates: npt.NDArray[np.generic]
    low: FloatArray | None
    high: FloatArray | None
    spacing: FloatArray

    @classmethod
    def of(cls, counterfactual: Counterfactual, actions: object) -> ActionSpace:
        """Read what a user offers: candidates, an Interval, a Box, or None for all levels of a choice."""
        if isinstance(actions, Interval):
            return cls._continuum(
                counterfactual, "Interval", (actions.low,), (actions.high,), actions.n_points
            )
        if isinstance(actions, Box):
            return cls._continuum(counterfactual, "Box", actions.low, actions.high, actions.n_points)
        spec = counterfactual.action
        if actions is None:
            if spec.kind == "continuous":
                raise InputError(
                    "Expected candidate actions for a continuous action, got none; pass an array such as "
                    "numpy.linspace(low, high, 200), or Interval(low, high)."
                )
            actions = np.array(spec.levels)
        if np.ndim(actions) == 0:  # type: ignore[arg-type]
            raise InputError(
                f"Expected an array of candidate actions, got the single value {actions!r}; pass a list."
            )
        if len(actions) == 0:  # type: ignore[arg-type]
            raise InputError("Expected at least one candidate action, got an empty array; pass some.")
        vectors = counterfactual.read_action(actions)
        candidates = counterfactual.action_to_user(vectors)
        if spec.kind == "continuous":
            # The user's own numbers: the way through model units and back may change the last digit.
            candidates = spec.numbers(actions).reshape(candidates.shape)
        return cls(vectors, candidates, None, None, np.zeros(vectors.shape[1]))

    @classmethod
    def _continuum(
        cls,
        counterfactual: Counterfactual,
        name: str,
        low: tuple[float, ...],
        high: tuple[float, ...],
        n_points: int | None,
    ) -> ActionSpace:
        spec = counterfactual.action
        if spec.kind == "discrete":
            raise InputError(
                f"Expected labels for a discrete action, got an {name}; pass some of {list(spec.levels)}."
            )
        if len(low) != spec.width:
            raise InputError(
                f"Expected bounds for {spec.width} action columns, got {len(low)}; pass Interval(low, high) "
                "for one column and Box((low, ...), (high, ...)) for several."
            )
        candidates, cells = _spread(low, high, n_points)
        start, end = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        return cls(
            (candidates - spec.mean) / spec.scale,
            candidates[:, 0] if spec.width == 1 else candidates,
            (start - spec.mean) / spec.scale,
            (end - spec.mean) / spec.scale,
            (end - start) / spec.scale / cells,
        )

    @property
    def is_continuum(self) -> bool:
        """Whether actions between the candidates may be recommended too."""
        return self.low is not None

    def find(self, vectors: FloatArray) -> npt.NDArray[np.int64]:
        """Return the number of the candidate that equals each action (n, d), or -1; shape (n,)."""
        distances, positions = self._index.query(vectors, distance_upper_bound=_SAME)
        return np.where(np.isfinite(distances), positions, -1)

    @cached_property
    def _index(self) -> KDTree:
        return KDTree(self.vectors)

    def require(self, vectors: FloatArray, shown: npt.NDArray[np.generic]) -> None:
        """Raise if an action (n, d) lies outside the space; ``shown`` are the same in the user's units."""
        if self.low is not None and self.high is not None:
            inside = np.all((vectors >= self.low - _SAME) & (vectors <= self.high + _SAME), axis=1)
            space = "the bounds"
        else:
            inside = self.find(vectors) >= 0
            space = "the candidates"
        outside = np.flatnonzero(~inside)
        if outside.size:
            raise InputError(
                f"Expected actions inside {space} of this policy, got {shown[outside[0]]!r} in row "
                f"{outside[0]} ({outside.size} outside in all); declare a larger space in policy()."
            )


def grid_points(space: Interval | Box) -> FloatArray:
    """Return the grid of a continuum in the user's units, shape (m,), or (m, d) for a Box."""
    if isinstance(space, Interval):
        return _spread((space.low,), (space.high,), space.n_points)[0][:, 0]
    return _spread(space.low, space.high, space.n_points)[0]


def _spread(low: tuple[float, ...], high: tuple[float, ...], n_points: int | None) -> tuple[FloatArray, int]:
    """Return points between the bounds, (m, d), and into how many cells they cut an axis."""
    unit, cells = _unit_points(len(low), n_points)
    # Not low + unit * (high - low): the last point would miss the bound by a rounding error.
    return np.asarray(low) * (1.0 - unit) + np.asarray(high) * unit, cells


def _unit_points(width: int, n_points: int | None) -> tuple[FloatArray, int]:
    """Return points of the unit cube, (m, width), and into how many cells they cut an axis."""
    per_axis = n_points
    if per_axis is None:
        per_axis = _DEFAULT_POINTS if width == 1 else math.floor(_MOST_GRID_POINTS ** (1.0 / width) + 1e-9)
    # Fewer than five points an axis say little about it; points that share no coordinate say more.
    if per_axis >= 5 or n_points is not None:
        axis = np.linspace(0.0, 1.0, per_axis)
        grid = np.stack(np.meshgrid(*[axis] * width, indexing="ij"), axis=-1).reshape(-1, width)
        return grid, per_axis - 1
    spread = qmc.Sobol(width, scramble=False).random(_MOST_GRID_POINTS)
    # The far corner is the one place the sequence never reaches.
    return np.vstack([spread, np.ones(width)]), 4


def _check_bounds(low: FloatArray, high: FloatArray) -> None:
    try:
        fine = bool(np.all(np.isfinite(low) & np.isfinite(high) & (low < high)))
    except TypeError:
        fine = False
    if not fine:
        raise InputError(
            f"Expected finite bounds with low < high, got {low.tolist()} and {high.tolist()}; swap or widen "
            "them."
        )
