"""Parameters of an additive kernel by marginal likelihood, on some rows and through some landmarks.

The model of a row is ``target = f(inputs) + control . (slopes) + noise``, with f a Gaussian process. The
marginal likelihood weighs fit against flexibility without held-out rows. It is bounded from below through
landmarks (Titsias, 2009), so that an evaluation costs rows times landmarks squared. Where the control columns
were estimated, their errors are part of the model: the posterior of the estimate says along which directions
they may be wrong, and by how much, and the slopes say what such an error does to the target. This is the
likelihood of limited-information maximum likelihood; leaving the errors out pulls f towards the regression
that ignores the control columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import OptimizeResult, minimize

from dmliv.data import FloatArray, IntArray
from dmliv.kernels.additive import AdditiveKernel, Inputs, Pair, variance
from dmliv.progress import ProgressReporter

#: Added to the diagonal of the landmarks' covariances, relative to its mean, so that they can be factored.
JITTER = 1e-6
# Prior of the logarithms of length scales (in median distances): mean and standard deviation.
_SCALE_PRIOR = (float(np.log(3.0)), 1.0)
# Standard deviation of the prior of a slope around the one it would have if f did not depend on the columns:
# what is hidden seldom moves the target by more than its own spread. Where the rows cannot tell f from the
# slope, f is left without an effect.
_SLOPE_PRIOR = 0.75
# Ranges of the logarithms of amplitudes, length scales and noise, and of slopes: wide, but with covariances
# that single precision can tell apart.
_AMPLITUDES, _SCALES, _NOISES, _SLOPES = (-6.0, 2.3), (-5.0, 5.0), (-4.0, 1.5), (-6.0, 6.0)
_START_AMPLITUDE, _START_NOISE = float(np.log(0.3)), float(np.log(0.5))
#: Where searches start: length scales in median distances, and slopes as shares of those that are given.
STARTS = ((2.0, 0.5), (0.5, 0.5), (2.0, 1.0))
# Steps from each start, and from the best point found by then.
_FIRST_STEPS = 12
_MOST_STEPS = 20
# Which summit is the highest shows on this share of the rows, but never on fewer rows than so many.
_SCOUT_SHARE, _FEWEST_SCOUTS = 0.4, 300


@dataclass(frozen=True, eq=False)
class Control:
    """Columns that enter linearly with slopes of their own, and the errors they were estimated with.

    Attributes
    ----------
    columns : ndarray, shape (n, d)
    errors : sequence of d ndarray, shape (n, q)
        Features F of each column's error: its covariance over rows is F F'. Width zero where it has none.
    """

    columns: FloatArray
    errors: Sequence[FloatArray]

    @classmethod
    def none(cls, n_rows: int) -> Control:
        """Return no columns."""
        return cls(np.empty((n_rows, 0)), ())

    def take(self, rows: IntArray | slice) -> Control:
        """Return some rows."""
        return Control(self.columns[rows], [each[rows] for each in self.errors])

    def features(self, slopes: FloatArray) -> FloatArray:
        """Return features of what the errors do to the target, shape (n, sum of widths)."""
        parts = [slope * each for slope, each in zip(slopes, self.errors, strict=True)]
        return np.hstack([np.empty((len(self.columns), 0)), *parts])


@dataclass(frozen=True, eq=False)
class Searched:
    """Parameters that marginal likelihood found.

    Attributes
    ----------
    kernel : AdditiveKernel
    noise : float
        Variance of the noise.
    slopes : ndarray, shape (d,)
        Of the control columns.
    evidence : float
        The bound on the log marginal likelihood there, priors included.
    """

    kernel: AdditiveKernel
    noise: float
    slopes: FloatArray
    evidence: float


def search(
    kernel: AdditiveKernel,
    inputs: Inputs,
    target: FloatArray,
    weight: FloatArray,
    control: Control,
    start_slopes: FloatArray,
    *,
    landmarks: IntArray,
    progress: ProgressReporter,
    label: str,
    starts: Sequence[tuple[float, float]] = STARTS,
) -> Searched:
    """Maximise the marginal likelihood over amplitudes, length scales, noise and slopes.

    Parameters
    ----------
    kernel : AdditiveKernel
        With length scales at the median distances of their columns; amplitudes are not looked at.
    inputs : Inputs
    target, weight : ndarray, shape (n,)
    control : Control
    start_slopes : ndarray, shape (d,)
        Of the control columns, if f did not depend on them: the centre of their prior.
    landmarks : ndarray of int
        Rows that stand for all. The first rows, in no particular order, are tried before all are.
    progress : ProgressReporter
    label : str
        Of the bar.
    starts : sequence of (float, float)
        Length scales to start from, in median distances, and shares of ``start_slopes``. The likelihood has
        several summits: a smooth function with noise, a rough one without, slopes of either sign.
    """
    means, spreads = _priors(kernel)
    whole = _Bound(kernel, inputs, target, weight, control, landmarks)
    n, n_scouts = len(means), max(int(_SCOUT_SHARE * len(inputs)), min(_FEWEST_SCOUTS, len(inputs)))
    some = slice(n_scouts)
    scouted = landmarks[landmarks < n_scouts][: max(len(landmarks) // 2, 1)]
    scouts = _Bound(kernel, inputs.take(some), target[some], weight[some], control.take(some), scouted)

    def loss(point: FloatArray, bound: _Bound) -> tuple[float, FloatArray]:
        try:
            value, slope = bound.at(point)
        except LinAlgError:
            return np.inf, np.zeros_like(point)
        apart = (point[:n] - means) / spreads
        slope[:n] -= apart / spreads
        own = (point[n + 1 :] - start_slopes) / _SLOPE_PRIOR
        slope[n + 1 :] -= own / _SLOPE_PRIOR
        return -(value - 0.5 * float(apart @ apart + own @ own)), -slope

    middle = np.concatenate([means, [_START_NOISE], start_slopes])
    scales = [number for where in kernel.slices for number in range(where.start + 1, where.stop)]
    bounds = [_SCALES] * n + [_NOISES] + [_SLOPES] * len(start_slopes)
    for where in kernel.slices:
        bounds[where.start] = _AMPLITUDES
        # Also where a small one is expected: from there the likelihood is too flat to climb.
        middle[where.start] = max(_START_AMPLITUDE, means[where.start])
    points = []
    for multiple, share in starts:
        start = middle.copy()
        start[scales] += np.log(multiple) - _SCALE_PRIOR[0]
        start[n + 1 :] *= share
        points.append(np.clip(start, *np.transpose(bounds)))
    with progress.stage(label, len(points) * _FIRST_STEPS + _MOST_STEPS) as advance:

        def climb(point: FloatArray, steps: int, bound: _Bound) -> OptimizeResult:
            climbed = minimize(
                loss,
                point,
                args=(bound,),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=lambda _: advance(),
                options={"maxiter": steps, "maxfun": 2 * steps},
            )
            # A search that ends early has come as far as one that takes all of its steps.
            for _ in range(steps - int(climbed.nit)):
                advance()
            return climbed

        tried = [climb(start, _FIRST_STEPS, scouts) for start in points]
        found = climb(min(tried, key=lambda each: float(each.fun)).x, _MOST_STEPS, whole)
    point = np.asarray(found.x)
    noise = float(np.exp(2.0 * point[n]))
    return Searched(kernel.with_parameters(point[:n]), noise, point[n + 1 :], -float(found.fun))


def _priors(kernel: AdditiveKernel) -> tuple[FloatArray, FloatArray]:
    """Return means and standard deviations of the parameters; the kernel holds the logs of the medians."""
    means, spreads = kernel.parameters + _SCALE_PRIOR[0], np.full(len(kernel.parameters), _SCALE_PRIOR[1])
    for term, where in zip(kernel.terms, kernel.slices, strict=True):
        means[where.start], spreads[where.start] = np.log(term.expected), term.spread
    return means, spreads


class _Bound:
    """The bound on the log marginal likelihood and its derivatives."""

    def __init__(
        self,
        kernel: AdditiveKernel,
        inputs: Inputs,
        target: FloatArray,
        weight: FloatArray,
        control: Control,
        landmarks: IntArray,
    ) -> None:
        self._kernel, self._inputs, self._control = kernel, inputs, control
        self._target, self._weight, self._root = target, weight, np.sqrt(weight)
        points = inputs.take(landmarks)
        self._among = Pair.of(kernel.blocks, points, points)
        # The large part is as good in single precision; what is inverted is not.
        self._to_rows = Pair.of(kernel.blocks, points, inputs, single=True)

    def at(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Return the bound and its derivatives at log parameters, log noise and slopes."""
        kernel, n = self._kernel, len(self._kernel.parameters)
        parameters, noise, slopes = point[:n], float(np.exp(2.0 * point[n])), point[n + 1 :]
        located = list(zip(kernel.terms, kernel.slices, strict=True))
        among = [self._among.term(term, parameters[where]) for term, where in located]
        to_rows = [self._to_rows.term(term, parameters[where]) for term, where in located]
        variances = [variance(term, parameters[where], self._inputs) for term, where in located]
        inner = np.sum([each.values() for each in among], axis=0)
        cross = reduce(np.add, [each.values() for each in to_rows]).astype(np.float64) * self._root
        prior = np.sum([each[0] for each in variances], axis=0)
        jitter = JITTER * float(np.mean(np.diag(inner)))
        factor = cholesky(inner + jitter * np.eye(len(inner)), lower=True)
        own = solve_triangular(factor, cross, lower=True)
        m = len(own)
        errors = self._control.features(slopes).T * self._root
        features = np.vstack([own, errors])
        left = self._root * (self._target - self._control.columns @ slopes)
        size, n_rows = len(features), len(left)
        gram = features @ features.T / noise + np.eye(size)
        root = cholesky(gram, lower=True)
        moment = features @ left / noise
        solution = cho_solve((root, True), moment)
        # Rounding can make this negative where landmarks explain everything.
        unexplained = max(0.0, float(self._weight @ prior - np.sum(own**2)))
        value = (
            -float(np.log(np.diag(root)).sum())
            - 0.5 * n_rows * np.log(noise)
            - 0.5 * float(left @ left) / noise
            + 0.5 * float(moment @ solution)
            - 0.5 * unexplained / noise
        )
        residual = left - features.T @ solution
        inverse = cho_solve((root, True), np.eye(size))
        by_feature = np.outer(solution, residual) - inverse @ features
        by_feature[:m] += own
        by_feature /= noise
        by_cross = solve_triangular(factor, by_feature[:m], lower=True, trans="T")
        lower = np.tril(by_feature[:m] @ own.T)
        lower[np.diag_indices(m)] *= 0.5
        half = solve_triangular(factor, 0.5 * (lower + lower.T), lower=True, trans="T")
        by_inner = -solve_triangular(factor, half.T, lower=True, trans="T")
        by_variance = -0.5 * self._weight / noise
        weighted = by_cross * self._root
        found = np.empty(len(point))
        for (_, where), inside, outside, (_, spread) in zip(located, among, to_rows, variances, strict=True):
            found[where] = inside.pull_back(by_inner) + outside.pull_back(weighted) + spread @ by_variance
        found[n] = (
            (size - np.trace(inverse))
            - n_rows
            + float(left @ left) / noise
            - 2.0 * float(moment @ solution)
            + float(solution @ gram @ solution - solution @ solution)
            + unexplained / noise
        )
        found[n + 1 :] = (self._control.columns.T @ (self._root * residual)) / noise
        first = m
        for column, each in enumerate(self._control.errors):
            rows = slice(first, first + each.shape[1])
            found[n + 1 + column] += float(np.vdot(by_feature[rows], each.T * self._root))
            first = rows.stop
        return value, found
