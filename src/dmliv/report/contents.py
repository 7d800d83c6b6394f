"""The contents of a report: numbers and words, gathered once and never changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmliv.data import Column, FloatArray, IntArray
from dmliv.diagnostics.findings import Finding
from dmliv.diagnostics.strength import InstrumentStrength
from dmliv.policy.tree import PolicyTree
from dmliv.report.panel import PanelGrid

_GROUPS = 10


@dataclass(frozen=True)
class RoleRow:
    """A column of the data: its role, its name, and how it was read."""

    role: str
    name: str
    words: str


@dataclass(frozen=True, eq=False)
class ActionAxis:
    """One column of the action, moved while all other columns stay at their medians.

    Attributes
    ----------
    name : str
    grid : ndarray, shape (m,)
        In the user's units; for labels their numbers from 0.
    labels : tuple of str
        Of a discrete action; empty for a continuous one.
    vectors : ndarray, shape (m, d)
        The whole action at each point of the grid, in model units.
    allowed : ndarray of bool, shape (m,)
        Which points may be recommended.
    observed : ndarray, shape (n,)
        The column in the rows of the report, in units of the grid.
    low, high : float
        Between them lie 98 % of the observed actions.
    start, end : ndarray, shape (d,)
        The two actions, in model units, whose difference is called the effect.
    start_words, end_words : str
    """

    name: str
    grid: FloatArray
    labels: tuple[str, ...]
    vectors: FloatArray
    allowed: npt.NDArray[np.bool_]
    observed: FloatArray
    low: float
    high: float
    start: FloatArray
    end: FloatArray
    start_words: str
    end_words: str


@dataclass(frozen=True, eq=False)
class Curve:
    """The expected outcome against an action in one context.

    Attributes
    ----------
    title, caption : str
        The kind of context, and its values.
    outcome : ndarray, shape (m,)
        At the points of the axis.
    lower, upper : ndarray, shape (m,), or None
        Ends of a pointwise 95 % band, where the model has intervals. The curve need not lie inside.
    """

    title: str
    caption: str
    outcome: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class ContextColumn:
    """A column of the context in the rows of the report.

    Attributes
    ----------
    column : Column
    values : ndarray, shape (n,)
        Numbers, or codes of levels.
    share : float
        Share of the variance of the effect that groups of this column alone explain.
    """

    column: Column
    values: FloatArray | IntArray
    share: float


@dataclass(frozen=True, eq=False)
class ActionSection:
    """Effects, curves and recommendations for one action column.

    Attributes
    ----------
    axis : ActionAxis
    curves : tuple of Curve
    effects : ndarray, shape (n,)
        Of moving the action from the start to the end of the axis.
    effect_interval : tuple of float or None
        95 % confidence interval of their mean; None for a model without intervals.
    columns : tuple of ContextColumn
        Those along which the effect varies most come first.
    recommended : ndarray, shape (n,)
        In units of the grid.
    """

    axis: ActionAxis
    curves: tuple[Curve, ...]
    effects: FloatArray
    columns: tuple[ContextColumn, ...]
    recommended: FloatArray
    effect_interval: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class PolicySummary:
    """The estimated value of the recommendations, and how far they are from the data.

    Attributes
    ----------
    value, today_value, average_value, constant_value : float
        Estimated mean outcome: of the recommendations, of the actions in the data, of the average action (of
        labels the most common one) for every row, and of the best single action.
    average_name, average_action, constant_action : str
        What the average action is called, and the actions themselves.
    observed_outcome : float or None
        Mean of the outcomes in the data.
    offered : str
        The actions to choose from, in words.
    outside_share : float
        Share of rows whose recommendation lies outside the observed range of the action.
    edge_share : float or None
        Share at the edge of what was offered; None for labels.
    support : ndarray, shape (n,), or None
        Probability of such an action under the estimated action distribution; None where no distribution was
        estimated.
    least_support : float
        Below it an action counts as hardly ever taken.
    value_interval, gain_interval : tuple of float or None
        95 % confidence intervals of the value and of its gain over the actions in the data; None for a
        model without intervals.
    """

    value: float
    today_value: float
    average_value: float
    constant_value: float
    average_name: str
    average_action: str
    constant_action: str
    observed_outcome: float | None
    offered: str
    outside_share: float
    edge_share: float | None
    support: FloatArray | None
    least_support: float
    value_interval: tuple[float, float] | None = None
    gain_interval: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class ReportContents:
    """Everything a report says.

    Attributes
    ----------
    title, method, outcome_name : str
    n_rows, n_used : int
        Rows of the table, and those that the numbers are computed from.
    roles : tuple of RoleRow
    first_stage : tuple of Finding
        How well the first stage fits.
    settings : dict of str to str
        What the learners chose, by model.
    strength : InstrumentStrength or None
        None when the table has no instrument.
    cautions : tuple of str
        Warnings about the numbers of the report, in full.
    sections : tuple of ActionSection
    policy : PolicySummary
    tree : PolicyTree or None
        None for a model without context.
    panel : PanelGrid or None
        None when there is no context to choose.
    weighted : bool
        Whether rows count by weights.
    interval_words : str
        What bands and intervals are; empty for a model without.
    pilot : tuple of str
        Sentences on the pilot of h and its assumption; empty unless the model was fitted in two stages.
    diagnostics : tuple of Finding
        What ``est.diagnostics()`` found beyond the rest; empty unless it was called after the fit.
    """

    title: str
    method: str
    outcome_name: str
    n_rows: int
    n_used: int
    roles: tuple[RoleRow, ...]
    first_stage: tuple[Finding, ...]
    settings: dict[str, str]
    strength: InstrumentStrength | None
    cautions: tuple[str, ...]
    sections: tuple[ActionSection, ...]
    policy: PolicySummary
    tree: PolicyTree | None
    panel: PanelGrid | None
    weighted: bool = False
    interval_words: str = ""
    pilot: tuple[str, ...] = ()
    diagnostics: tuple[Finding, ...] = ()


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows grouped by a column.

    Attributes
    ----------
    member : ndarray of int, shape (n,)
        The group of each row, from 0.
    centres : ndarray, shape (k,)
        Median of the column in each group; for a category the code of its level.
    """

    member: IntArray
    centres: FloatArray

    def means(self, numbers: FloatArray) -> FloatArray:
        """Return the mean of numbers (n,) in each group, shape (k,)."""
        totals = np.bincount(self.member, weights=numbers, minlength=len(self.centres))
        return np.asarray(totals / np.bincount(self.member, minlength=len(self.centres)))


def grouped(column: Column, values: FloatArray | IntArray) -> Groups:
    """Group rows by level, by value where there are few, else into ten groups of equal size."""
    distinct, member = np.unique(values, return_inverse=True)
    if column.kind == "categorical" or len(distinct) <= _GROUPS:
        return Groups(member.astype(np.int64), distinct.astype(np.float64))
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1]))
    _, found = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)
    centres = np.array([np.median(values[found == group]) for group in range(int(found.max()) + 1)])
    return Groups(found.astype(np.int64), centres)


def explained_share(column: Column, values: FloatArray | IntArray, numbers: FloatArray) -> float:
    """Return the share of the variance of numbers (n,) between the groups of a column; 0 without variance."""
    total = float(np.var(numbers))
    if total <= 0.0:
        return 0.0
    groups = grouped(column, values)
    return float(np.var(groups.means(numbers)[groups.member]) / total)
