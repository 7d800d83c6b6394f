"""The greedy policy: for each context the action with the highest estimated outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances_argmin

from dmliv.data import FloatArray, IntArray, Table
from dmliv.errors import InputError, check_whole
from dmliv.inference.counterfactual import Counterfactual
from dmliv.inference.functionals import Functional, around
from dmliv.policy.climb import climb
from dmliv.policy.cost import ActionCost
from dmliv.policy.decisions import Decisions
from dmliv.policy.limits import Limits
from dmliv.policy.spaces import ActionSpace
from dmliv.policy.support import ActionSupport
from dmliv.policy.tree import PolicyTree, TreeMode, grow_policy_tree

# Entries (contexts x candidates) of the value matrix held at once.
_CHUNK_ENTRIES = 2_000_000


@dataclass(frozen=True, eq=False)
class _Choice:
    """Chosen actions (n, d), their net values (n,), support (n,), and whether support changed the choice."""

    vectors: FloatArray
    values: FloatArray
    support: FloatArray
    support_binds: npt.NDArray[np.bool_]


class GreedyPolicy:
    """Recommends the action with the highest estimated outcome, net of its cost.

    Parameters
    ----------
    counterfactual : Counterfactual
        A fitted h.
    candidates : array-like of shape (m,) or (m, d), Interval, Box, or None
        Actions to choose from, in the user's units. ``None`` takes all levels of a discrete action. In an
        :class:`Interval` or a :class:`Box` the best point of a grid is refined along the derivative of h.
    cost : callable, mapping or array-like, optional
        Cost of an action in units of the outcome: a function from actions (k,) or (k, d) to costs (k,), a
        number per label, or one number per candidate.
    min_support : float, optional
        Forbid actions whose probability under the estimated action distribution is lower. Off by default.
    support : ActionSupport, optional
        Knows these probabilities; needed for ``min_support``.

    Attributes
    ----------
    candidates : ndarray, shape (m,) or (m, d)
        The candidates, or the grid of a continuum, in the user's units.
    """

    def __init__(
        self,
        counterfactual: Counterfactual,
        candidates: object = None,
        *,
        cost: object = None,
        min_support: float | None = None,
        support: ActionSupport | None = None,
    ) -> None:
        self._counterfactual = counterfactual
        self._space = ActionSpace.of(counterfactual, candidates)
        self._cost = ActionCost.of(counterfactual, self._space, cost)
        self._least = _read_least_support(min_support, support)
        self._support = support
        self.candidates: npt.NDArray[Any] = self._space.candidates

    def predict(self, X: object = None, *, limits: object = None) -> npt.NDArray[Any]:
        """Return the recommended action of each row of ``X``, shape (n,), or (n, d) for several columns.

        Parameters
        ----------
        X : array-like or frame, shape (n, d_X), or None
            Contexts; None for a model without context means one decision.
        limits : pair of array-like, optional
            Lowest and highest action of each row: numbers, shape (n,), or (n, d) for several columns.
        """
        return self.decide(X, limits=limits).action

    def value(self, X: object = None, *, actions: object = None, limits: object = None) -> float:
        """Return the estimated mean outcome, net of cost, when the policy is followed on the rows of ``X``.

        Parameters
        ----------
        X, limits
            As for :meth:`predict`.
        actions : scalar or array-like, shape (n,) or (n, d), optional
            Actions to take instead of the recommended ones; they must lie in the policy's space.
        """
        if actions is None:
            values = self.decide(X, limits=limits).value
        else:
            context = self._read(X)
            vectors = self._counterfactual.read_action(actions, len(context))
            self._space.require(vectors, self._counterfactual.action_to_user(vectors))
            values = self._row_values(context, vectors)
        if not len(values):
            raise InputError("Expected at least one context to value a policy on, got none.")
        return float(values.mean())

    def value_interval(
        self,
        X: object = None,
        *,
        alpha: float = 0.05,
        actions: object = None,
        versus: object = None,
        limits: object = None,
        smoothing: float = 0.0,
    ) -> tuple[float, float]:
        """Return an interval of :meth:`value`, or of the gain over other actions.

        The policy is taken as it is: the interval is about the outcomes of its recommendations on these rows.

        Parameters
        ----------
        X, actions, limits
            As for :meth:`value`.
        alpha : float
            One minus the confidence level.
        versus : policy, scalar or array-like, shape (n,) or (n, d), optional
            Actions of today, or another policy: the interval is that of the difference. They may lie outside
            the policy's space.
        smoothing : float
            Value actions that are normal around the recommended ones, with so many standard deviations of
            the action; those of another policy as well, but not today's, which are spread out already. Costs
            stay those of the actions themselves.

        Returns
        -------
        lower, upper : float
        """
        context, smoothing = self._read(X), self._counterfactual.read_smoothing(smoothing)
        chosen = self.predict(X, limits=limits) if actions is None else actions
        vectors = self._counterfactual.read_action(chosen, len(context))
        self._space.require(vectors, self._counterfactual.action_to_user(vectors))
        terms, cost = around(vectors, smoothing), self._cost.at(vectors)
        if versus is not None:
            against, spread = versus, 0.0
            if hasattr(versus, "predict"):
                against, spread = versus.predict(X), smoothing
            others = self._counterfactual.read_action(against, len(context))
            terms += tuple((-share, action) for share, action in around(others, spread))
            cost = cost - self._cost.at(others)
        band = self._counterfactual.band(Functional(context, terms).averaged(), alpha)
        paid = float(cost.mean())
        return float(band.lower[0]) - paid, float(band.upper[0]) - paid

    def decide(self, X: object = None, *, limits: object = None) -> Decisions:
        """Return the recommended actions with their values and what held them back.

        Parameters
        ----------
        X, limits
            As for :meth:`predict`.
        """
        context = self._read(X)
        bounds = Limits.read(limits, self._counterfactual.action, len(context), self._space)
        parts = [
            self._choose(
                context.take(rows), None if bounds is None else bounds.take(rows), limits is not None
            )
            for rows in self._chunks(len(context))
        ]
        if not parts:
            empty = np.empty((0, self._space.vectors.shape[1]))
            parts = [_Choice(empty, np.empty(0), np.empty(0), np.empty(0, dtype=bool))]
        vectors = np.concatenate([part.vectors for part in parts])
        return Decisions(
            action=self._to_user(vectors),
            value=np.concatenate([part.values for part in parts]),
            at_edge=np.zeros(len(vectors), dtype=bool) if bounds is None else bounds.touched_by(vectors),
            support=np.concatenate([part.support for part in parts]) if self._least is not None else None,
            support_binds=np.concatenate([part.support_binds for part in parts]),
            min_support=self._least,
        )

    def tree(
        self,
        X: object,
        *,
        max_depth: int = 2,
        min_share: float = 0.05,
        mode: TreeMode = "maximise",
        max_actions: int = 50,
    ) -> PolicyTree:
        """Return a shallow tree of rules in place of the policy, grown on the contexts ``X``.

        Parameters
        ----------
        X : array-like or frame, shape (n, d_X)
        max_depth : int
            Questions asked before an answer.
        min_share : float
            Least share of the rows that share an answer.
        mode : {"maximise", "imitate"}
            Whether the tree seeks the highest estimated outcome that so few rules can reach, or rules that
            come closest to the recommended actions.
        max_actions : int
            Different answers considered. Of more candidates an evenly spaced part is taken, or in several
            dimensions those that stand for the recommended actions.
        """
        context = self._read(X)
        kept = self._answers(context, max_actions)
        vectors, costs = self._space.vectors[kept], self._cost.of_candidates[kept]
        step = max(1, _CHUNK_ENTRIES // len(vectors))
        values = [
            self._counterfactual.value_grid(context.take(rows), vectors) - costs
            for rows in self._chunks(len(context), step)
        ]
        return grow_policy_tree(
            np.vstack([np.empty((0, len(vectors))), *values]),
            self.candidates[kept],
            vectors,
            context,
            self._counterfactual.context,
            mode=mode,
            max_depth=max_depth,
            min_share=min_share,
        )

    def _answers(self, context: Table, max_actions: int) -> IntArray:
        """Return the numbers of the candidates that a tree may name."""
        check_whole(max_actions=max_actions)
        vectors = self._space.vectors
        if len(vectors) <= max_actions:
            return np.arange(len(vectors))
        if vectors.shape[1] == 1 or self._counterfactual.action.kind == "discrete" or not len(context):
            return np.unique(np.linspace(0, len(vectors) - 1, max_actions).round().astype(np.int64))
        values = [self._net_values(context.take(rows)).argmax(axis=1) for rows in self._chunks(len(context))]
        wanted = np.unique(np.concatenate(values))
        if len(wanted) <= max_actions:
            return wanted
        centres = KMeans(max_actions, n_init=1, random_state=0).fit(vectors[wanted]).cluster_centers_
        return np.unique(pairwise_distances_argmin(centres, vectors))

    def _read(self, X: object) -> Table:
        # Without context there is one situation to decide for.
        return self._counterfactual.read_context(X, 1 if X is None else None)

    def _chunks(self, n_rows: int, step: int | None = None) -> Iterator[IntArray]:
        step = step or max(1, _CHUNK_ENTRIES // len(self._space.vectors))
        for start in range(0, n_rows, step):
            yield np.arange(start, min(start + step, n_rows))

    def _choose(self, context: Table, bounds: Limits | None, limited: bool) -> _Choice:
        """Choose among the candidates, then climb where there is a continuum."""
        values = self._net_values(context)
        if bounds is not None and limited:
            values[~bounds.allow(self._space.vectors)] = -np.inf
        rows = np.arange(len(values))
        free = values.argmax(axis=1)
        chosen, support = free, np.full(len(values), np.nan)
        if self._least is not None and self._support is not None:
            chance = self._support.probability(context, self._space.vectors)
            allowed = np.where(chance >= self._least, values, -np.inf)
            chosen = allowed.argmax(axis=1)
            # Where nothing has enough support the best supported action inside the limits is left.
            none = ~np.isfinite(allowed[rows, chosen])
            chosen[none] = np.where(np.isfinite(values), chance, -1.0)[none].argmax(axis=1)
            support = chance[rows, chosen]
        best = _Choice(self._space.vectors[chosen], values[rows, chosen], support, chosen != free)
        if not self._space.is_continuum or bounds is None:
            return best
        return self._refine(context, best, bounds)

    def _refine(self, context: Table, start: _Choice, bounds: Limits) -> _Choice:
        """Climb from the chosen candidates inside the cell of the grid around each."""
        # Narrow limits may lie between two candidates: then the search covers them from their middle.
        offered = np.isfinite(start.values)[:, None]
        point = np.where(offered, start.vectors, (bounds.low + bounds.high) / 2.0)
        low = np.where(offered, np.maximum(bounds.low, point - self._space.spacing), bounds.low)
        high = np.where(offered, np.minimum(bounds.high, point + self._space.spacing), bounds.high)
        scale = self._counterfactual.outcome.scale

        def value(vectors: FloatArray) -> FloatArray:
            return self._row_values(context, vectors)

        def slope(vectors: FloatArray) -> FloatArray:
            by_model = self._counterfactual.model.gradient(context, vectors) * scale
            return np.asarray(by_model - self._cost.gradient(vectors))

        best, values = climb(value, slope, point, low, high)
        support = start.support
        if self._least is not None and self._support is not None:
            support = self._support.probability(context, best[:, None, :])[:, 0]
            # Climbing may lead out of the supported actions: then the candidate stays.
            left = offered[:, 0] & (support < self._least) & (start.support >= self._least)
            best[left], values[left], support[left] = point[left], start.values[left], start.support[left]
        return _Choice(best, values, support, start.support_binds)

    def _net_values(self, context: Table) -> FloatArray:
        """Return the net value of every candidate in every context, shape (n, m)."""
        return self._counterfactual.value_grid(context, self._space.vectors) - self._cost.of_candidates

    def _row_values(self, context: Table, vectors: FloatArray) -> FloatArray:
        """Return the net value of one action (n, d) per context, shape (n,)."""
        predicted = self._counterfactual.model.predict(context, vectors)
        return np.asarray(self._counterfactual.outcome.to_user(predicted) - self._cost.at(vectors))

    def _to_user(self, vectors: FloatArray) -> npt.NDArray[Any]:
        actions = self._counterfactual.action_to_user(vectors)
        if self._counterfactual.action.kind == "discrete":
            return actions
        # Candidates come back as the very numbers that were offered, whatever the rounding of the units.
        position = self._space.find(vectors)
        found = position >= 0
        actions[found] = self._space.candidates[position[found]]
        return actions


def _read_least_support(min_support: float | None, support: ActionSupport | None) -> float | None:
    if min_support is None:
        return None
    if not isinstance(min_support, (int, float, np.number)) or not 0.0 <= min_support <= 1.0:
        raise InputError(
            f"Expected a probability as min_support, got {min_support!r}; pass a number such as 0.01."
        )
    if support is None:
        raise InputError(
            "Expected an estimator with an action distribution for min_support, got one without; use DMLIV, "
            "CEDMLIV "
            "or DeepIV, or leave min_support out."
        )
    return float(min_support)
