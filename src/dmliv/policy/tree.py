"""A shallow tree of rules in place of a policy: something to read, to discuss and to hand over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dmliv.data import FloatArray, IntArray, Table, TableSchema
from dmliv.errors import InputError

TreeMode = Literal["maximise", "imitate"]

# A split has to gain more than rounding: this part of the range of the scores, per row.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Question:
    """Asks whether a number is at most ``threshold``, or whether a category is ``level``.

    Attributes
    ----------
    column : str
    threshold : float or None
        For a numeric column.
    level : str or None
        For a categorical one.
    """

    column: str
    threshold: float | None = None
    level: str | None = None

    def __str__(self) -> str:
        """Return the question in words."""
        if self.level is not None:
            return f"{self.column} is {self.level}"
        return f"{self.column} <= {self.threshold:.4g}"


@dataclass(frozen=True, eq=False)
class TreeNode:
    """A leaf with its answer, or a question with two branches.

    Attributes
    ----------
    answer : int
        Number of the best single action here.
    n_rows : int
        Rows of the sample that come here.
    value : float
        Mean estimated outcome of these rows under the answers below this node.
    question : Question or None
        None at a leaf.
    yes, no : TreeNode or None
    """

    answer: int
    n_rows: int
    value: float
    question: Question | None = None
    yes: TreeNode | None = None
    no: TreeNode | None = None

    def leaves(self) -> Iterator[TreeNode]:
        """Yield the leaves, those of the yes branch first."""
        if self.yes is None or self.no is None:
            yield self
            return
        yield from self.yes.leaves()
        yield from self.no.leaves()


@dataclass(frozen=True, eq=False)
class PolicyTree:
    """Rules that recommend an action.

    Attributes
    ----------
    root : TreeNode
    actions : ndarray, shape (m,) or (m, d)
        The actions the rules may name, in the user's units.
    schema : TableSchema
        Of the contexts.
    tree_value, best_value, constant_value : float
        Mean estimated outcome on the sample: of the rules, of the best action row by row, and of the best
        single action for all rows.
    """

    root: TreeNode
    actions: npt.NDArray[Any]
    schema: TableSchema
    tree_value: float
    best_value: float
    constant_value: float

    def predict(self, X: object) -> npt.NDArray[Any]:
        """Return the action the rules name for each row of ``X``, shape (n,), or (n, d)."""
        table = self.schema.read(X)
        answers = np.empty(len(table), dtype=np.int64)
        waiting = [(self.root, np.arange(len(table)))]
        while waiting:
            node, rows = waiting.pop()
            if node.question is None or node.yes is None or node.no is None:
                answers[rows] = node.answer
                continue
            said_yes = _ask(node.question, self.schema, table.take(rows))
            waiting += [(node.yes, rows[said_yes]), (node.no, rows[~said_yes])]
        return np.asarray(self.actions[answers])

    def answer(self, node: TreeNode) -> str:
        """Return the action of a leaf in words."""
        action = self.actions[node.answer]
        numbers = np.atleast_1d(action)
        if numbers.dtype.kind == "f":
            return ", ".join(f"{number:.4g}" for number in numbers)
        return str(action)

    def share(self, node: TreeNode) -> float:
        """Return the share of the sample that comes to a node."""
        return node.n_rows / self.root.n_rows

    def __str__(self) -> str:
        """Return the rules as indented text, with what they are worth."""
        lines = [
            f"estimated mean outcome {self.tree_value:.4g} "
            f"(best action row by row {self.best_value:.4g}, best single action {self.constant_value:.4g})"
        ]
        lines.extend(self._lines(self.root, ""))
        return "\n".join(lines)

    def _lines(self, node: TreeNode, indent: str) -> Iterator[str]:
        if node.question is None or node.yes is None or node.no is None:
            yield f"{indent}-> {self.answer(node)}  ({self.share(node):.0%} of rows, {node.value:.4g})"
            return
        yield f"{indent}if {node.question}:"
        yield from self._lines(node.yes, indent + "    ")
        yield f"{indent}else:"
        yield from self._lines(node.no, indent + "    ")


def grow_policy_tree(
    values: FloatArray,
    actions: npt.NDArray[Any],
    vectors: FloatArray,
    context: Table,
    schema: TableSchema,
    *,
    mode: TreeMode,
    max_depth: int,
    min_share: float,
) -> PolicyTree:
    """Grow a tree question by question, each the one that gains most.

    Parameters
    ----------
    values : ndarray, shape (n, m)
        Estimated outcome of every context under every action.
    actions : ndarray, shape (m,) or (m, d)
        In the user's units.
    vectors : ndarray, shape (m, d)
        In model units.
    context : Table
        n rows.
    schema : TableSchema
    mode, max_depth, min_share
        As in :meth:`dmliv.policy.GreedyPolicy.tree`.
    """
    if mode not in ("maximise", "imitate"):
        raise InputError(f"Expected mode 'maximise' or 'imitate', got {mode!r}; pass one of them.")
    if not isinstance(max_depth, (int, np.integer)) or max_depth < 0 or not 0.0 < min_share <= 0.5:
        raise InputError(
            f"Expected a depth of at least 0 and a share in (0, 0.5], got max_depth={max_depth!r} and "
            f"min_share={min_share!r}; pass numbers such as 2 and 0.05."
        )
    if not len(values):
        raise InputError("Expected contexts to grow a tree on, got none; pass some rows.")
    scores = values
    if mode == "imitate":
        # The squared distance from the recommended action; for labels it counts the rows that differ.
        wanted = vectors[values.argmax(axis=1)]
        scores = -np.sum((wanted[:, None, :] - vectors[None, :, :]) ** 2, axis=2)
    grower = _Grower(scores, values, context, schema, max(1, round(min_share * len(values))))
    root = grower.grow(np.arange(len(values)), int(max_depth))
    return PolicyTree(
        root,
        actions,
        schema,
        tree_value=root.value,
        best_value=float(values.max(axis=1).mean()),
        constant_value=float(values.mean(axis=0).max()),
    )


@dataclass(frozen=True, eq=False)
class _Grower:
    """Grows nodes: ``scores`` (n, m) decide, ``values`` (n, m) are reported."""

    scores: FloatArray
    values: FloatArray
    context: Table
    schema: TableSchema
    least_rows: int

    def grow(self, rows: IntArray, depth: int) -> TreeNode:
        totals = self.scores[rows].sum(axis=0)
        answer = int(totals.argmax())
        question = self._best_question(rows, totals) if depth > 0 else None
        if question is None:
            return TreeNode(answer, len(rows), float(self.values[rows, answer].mean()))
        said_yes = _ask(question, self.schema, self.context.take(rows))
        yes, no = self.grow(rows[said_yes], depth - 1), self.grow(rows[~said_yes], depth - 1)
        if yes.question is None and no.question is None and yes.answer == no.answer:
            return TreeNode(answer, len(rows), float(self.values[rows, answer].mean()))
        value = (yes.n_rows * yes.value + no.n_rows * no.value) / len(rows)
        return TreeNode(answer, len(rows), value, question, yes, no)

    def _best_question(self, rows: IntArray, totals: FloatArray) -> Question | None:
        scores = self.scores[rows]
        best_gain = _LEAST_GAIN * float(np.ptp(self.scores)) * len(rows)
        best: Question | None = None
        part = self.context.take(rows)
        for column, numbers in zip(self.schema.numeric, part.numeric.T, strict=True):
            order = np.argsort(numbers, kind="stable")
            ordered = numbers[order]
            sums = np.cumsum(scores[order], axis=0)
            gains = sums.max(axis=1) + (totals - sums).max(axis=1) - totals.max()
            n_yes = np.arange(1, len(rows) + 1)
            possible = (n_yes >= self.least_rows) & (len(rows) - n_yes >= self.least_rows)
            possible[:-1] &= ordered[:-1] < ordered[1:]
            gains = np.where(possible, gains, -np.inf)
            at = int(gains.argmax())
            if gains[at] > best_gain:
                best_gain = float(gains[at])
                threshold = _between(float(ordered[at]), float(ordered[at + 1]))
                best = Question(column.name, threshold=threshold)
        for column, codes in zip(self.schema.categorical, part.codes.T, strict=True):
            for code, level in enumerate(column.levels):
                inside = codes == code
                if min(inside.sum(), (~inside).sum()) < self.least_rows:
                    continue
                sums = scores[inside].sum(axis=0)
                gain = float(sums.max() + (totals - sums).max() - totals.max())
                if gain > best_gain:
                    best_gain, best = gain, Question(column.name, level=level)
        return best


def _between(low: float, high: float) -> float:
    middle = low + (high - low) / 2.0
    # Neighbouring floats have nothing between them; "at most low" still tells them apart.
    return middle if low <= middle < high else low


def _ask(question: Question, schema: TableSchema, table: Table) -> npt.NDArray[np.bool_]:
    """Return which rows say yes, shape (n,)."""
    for column, values in schema.pairs(table):
        if column.name == question.column:
            if question.threshold is not None:
                return np.asarray(values <= question.threshold)
            return np.asarray(values == column.levels.index(str(question.level)))
    raise ValueError(f"No column {question.column!r}.")
