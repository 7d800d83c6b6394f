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

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dtrtri
from scipy.optimize import minimize

from dmliv.data import FloatArray, IntArray
from dmliv.kernels.additive import AdditiveKernel, Inputs, Pair, variance
from dmliv.progress import ProgressReporter

# Added to the diagonal of the landmarks' covariances, relative to its mean, so that they can be factored.
_JITTER = 1e-6
# Prior of the logarithms of length scales (in median distances): mean and standard deviation.
_SCALE_PRIOR = (float(np.log(3.0)), 1.0)
# Standard deviation of the prior of a slope around the one it would have if f did not depend on the columns:
# what is hidden seldom moves the target by more than its own spread. Where the rows cannot tell f from the
# slope, f is left without an effect.
SLOPE_PRIOR = 0.4
# Ranges of the logarithms of amplitudes, length scales and noise, and of slopes: wide, but with covariances
# that single precision can tell apart.
_AMPLITUDES, _SCALES, _NOISES, _SLOPES = (-6.0, 2.3), (-5.0, 5.0), (-4.0, 1.5), (-6.0, 6.0)
_START_AMPLITUDE, _START_NOISE = float(np.log(0.3)), float(np.log(0.5))
#: Where searches start: length scales in median distances, and slopes as shares of those that are given.
STARTS = ((2.0, 0.5), (0.5, 0.5), (2.0, 1.0))
# Steps from each start, and from the best point found by then.
_FIRST_STEPS = 12
_MOST_STEPS = 20
_LAST_STEPS = 12
# Steps are in units of what the rows leave open of noise and slopes, and of the priors' spreads of all else,
# but of no more than this.
_LARGEST_UNIT = 0.3
# A climb ends where a step raises the bound by less than this share; a step that does not rise is shortened
# at most so many times, because what is left then is the rounding of single precision.
_LEAST_RISE, _SHORTENED = 3e-5, 5
# Terms with a smaller expected amplitude are the first to go, unless the bound falls by more than this.
_HARDLY_EXPECTED, _LEAST_GAIN = 0.01, 1.0
# Rows that decide which terms are needed, at most.
DECISION_ROWS = 5000
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
    free : ndarray, shape (n, q)
        Features of errors that move the target by amounts of their own, whatever the slopes.
    """

    columns: FloatArray
    errors: Sequence[FloatArray]
    free: FloatArray

    @classmethod
    def none(cls, n_rows: int) -> Control:
        """Return no columns."""
        return cls(np.empty((n_rows, 0)), (), np.empty((n_rows, 0)))

    def take(self, rows: IntArray | slice) -> Control:
        """Return some rows."""
        return Control(self.columns[rows], [each[rows] for each in self.errors], self.free[rows])

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of the features of each column's error."""
        return tuple(each.shape[1] for each in self.errors)

    @property
    def n_errors(self) -> int:
        """Number of the features of all errors."""
        return int(sum(self.widths) + self.free.shape[1])

    @property
    def error_columns(self) -> list[slice]:
        """Where the features of each column's error stand among those of all errors."""
        ends = np.cumsum([0, *self.widths]).tolist()
        return [slice(start, stop) for start, stop in itertools.pairwise(ends)]

    def scale(self, slopes: FloatArray) -> FloatArray:
        """Return what each feature of the errors is multiplied by in the target, the free ones last."""
        return np.concatenate([np.repeat(slopes, self.widths), np.ones(self.free.shape[1])])


@dataclass(frozen=True, eq=False)
class Rows:
    """What a regression learns from.

    Attributes
    ----------
    inputs : Inputs
    target, weight : ndarray, shape (n,)
    control : Control
    """

    inputs: Inputs
    target: FloatArray
    weight: FloatArray
    control: Control

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.target)

    def take(self, rows: IntArray | slice) -> Rows:
        """Return some rows."""
        return Rows(self.inputs.take(rows), self.target[rows], self.weight[rows], self.control.take(rows))

    def first(self, n_rows: int) -> Rows:
        """Return the first rows."""
        return self.take(slice(n_rows))


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
    candidates : AdditiveKernel
        All terms that were tried, with what was found before some of them went.
    """

    kernel: AdditiveKernel
    noise: float
    slopes: FloatArray
    candidates: AdditiveKernel


def search(
    kernel: AdditiveKernel,
    rows: Rows,
    start_slopes: FloatArray,
    *,
    n_rows: int,
    n_landmarks: int,
    progress: ProgressReporter,
    label: str,
    starts: Sequence[tuple[float, float]] = STARTS,
) -> Searched:
    """Maximise the marginal likelihood over amplitudes, length scales, noise and slopes, and over terms.

    Which summit is the highest is seen on some rows, what it looks like on more, and which terms are needed
    there on all; without the others the search then goes on.

    Parameters
    ----------
    kernel : AdditiveKernel
        With length scales at the median distances of their columns; amplitudes are not looked at.
    rows : Rows
        In no particular order.
    start_slopes : ndarray, shape (d,)
        Of the control columns, if f did not depend on them: the centre of their prior.
    n_rows, n_landmarks : int
        How many of the first rows are climbed on, and how many of these stand for all.
    progress : ProgressReporter
    label : str
        Of the bar.
    starts : sequence of (float, float)
        Length scales to start from, in median distances, and shares of ``start_slopes``. The likelihood has
        several summits: a smooth function with noise, a rough one without, slopes of either sign.
    """
    n_rows = min(n_rows, len(rows))
    n_landmarks = min(n_landmarks, n_rows)
    n_scouts = min(max(int(_SCOUT_SHARE * n_rows), _FEWEST_SCOUTS), n_rows)
    ascent = _Ascent(kernel, start_slopes)
    with progress.stage(label, len(starts) * _FIRST_STEPS + _MOST_STEPS + _LAST_STEPS) as advance:
        scouts = _Bound(kernel, rows.first(n_scouts), max(min(n_landmarks, n_scouts) // 2, 1))
        tried = [ascent.climb(ascent.start(*each), scouts, _FIRST_STEPS, advance) for each in starts]
        _, best = min(tried, key=lambda each: each[0])
        _, point = ascent.climb(best, _Bound(kernel, rows.first(n_rows), n_landmarks), _MOST_STEPS, advance)
        needed = _Bound(kernel, rows.first(DECISION_ROWS), n_landmarks).needed(point)
        candidates = kernel.with_parameters(point[: len(kernel.parameters)])
        if len(needed) < len(kernel.terms):
            kept = np.concatenate([np.arange(kernel.slices[k].start, kernel.slices[k].stop) for k in needed])
            others = np.arange(len(kernel.parameters), len(point))
            ascent = _Ascent(kernel.only(needed), start_slopes)
            bound = _Bound(ascent.kernel, rows.first(n_rows), n_landmarks)
            _, point = ascent.climb(point[np.concatenate([kept, others])], bound, _LAST_STEPS, advance)
        else:
            for _ in range(_LAST_STEPS):
                advance()
    n = len(ascent.kernel.parameters)
    noise = float(np.exp(2.0 * point[n]))
    return Searched(ascent.kernel.with_parameters(point[:n]), noise, point[n + 1 :], candidates)


class _Ascent:
    """Climbs the posterior of a kernel's parameters, log noise and slopes.

    Attributes
    ----------
    kernel : AdditiveKernel
        Its parameters are the logarithms of median distances.
    """

    def __init__(self, kernel: AdditiveKernel, start_slopes: FloatArray) -> None:
        self.kernel, self._start_slopes = kernel, start_slopes
        self._means = kernel.parameters + _SCALE_PRIOR[0]
        self._spreads = np.full(len(kernel.parameters), _SCALE_PRIOR[1])
        self._bounds = [_SCALES] * len(self._means) + [_NOISES] + [_SLOPES] * len(start_slopes)
        for term, where in zip(kernel.terms, kernel.slices, strict=True):
            self._means[where.start], self._spreads[where.start] = np.log(term.expected), term.spread
            self._bounds[where.start] = _AMPLITUDES

    def start(self, multiple: float, share: float) -> FloatArray:
        """Return a point with length scales in median distances, and a share of the start slopes."""
        parameters = self.kernel.parameters + np.log(multiple)
        for where in self.kernel.slices:
            # Also where a small one is expected: from there the likelihood is too flat to climb.
            parameters[where.start] = max(_START_AMPLITUDE, self._means[where.start])
        found = np.concatenate([parameters, [_START_NOISE], share * self._start_slopes])
        return np.asarray(np.clip(found, *np.transpose(self._bounds)))

    def climb(
        self, point: FloatArray, bound: _Bound, steps: int, advance: Callable[[], None]
    ) -> tuple[float, FloatArray]:
        """Climb at most so many steps; return the loss that was reached, and where."""
        unit = self._units(point, bound)
        low, high = np.transpose(self._bounds) / unit

        def loss(scaled: FloatArray) -> tuple[float, FloatArray]:
            value, slope = self._loss(scaled * unit, bound)
            return value, slope * unit

        climbed = minimize(
            loss,
            point / unit,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(low, high, strict=True)),
            callback=lambda _: advance(),
            options={"maxiter": steps, "maxfun": 2 * steps, "maxls": _SHORTENED, "ftol": _LEAST_RISE},
        )
        # A search that ends early has come as far as one that takes all of its steps.
        for _ in range(steps - int(climbed.nit)):
            advance()
        return float(climbed.fun), np.clip(climbed.x * unit, *np.transpose(self._bounds))

    def _units(self, point: FloatArray, bound: _Bound) -> FloatArray:
        """Return steps in which the bound is about equally curved: without them most trials overshoot."""
        noise = np.exp(2.0 * point[len(self._means)])
        curvature = np.sum(bound.control.columns**2, axis=0) / noise + SLOPE_PRIOR**-2
        by_noise = [1.0 / np.sqrt(2.0 * bound.n_rows)]
        return np.concatenate([np.minimum(self._spreads, _LARGEST_UNIT), by_noise, curvature**-0.5])

    def _loss(self, point: FloatArray, bound: _Bound) -> tuple[float, FloatArray]:
        try:
            value, slope = bound.at(point)
        except LinAlgError:
            return np.inf, np.zeros_like(point)
        n = len(self._means)
        apart = (point[:n] - self._means) / self._spreads
        slope[:n] -= apart / self._spreads
        own = (point[n + 1 :] - self._start_slopes) / SLOPE_PRIOR
        slope[n + 1 :] -= own / SLOPE_PRIOR
        return -(value - 0.5 * float(apart @ apart + own @ own)), -slope


@dataclass(frozen=True, eq=False)
class _Solved:
    """The bound at one point, and what its derivatives are made of.

    Features of the rows are F: covariances with the m landmarks, whitened, and then the errors of the control
    columns, as they move the target.

    Attributes
    ----------
    value : float
    whiten : ndarray, shape (m, m)
        Inverse of the lower Cholesky factor of the landmarks' covariances.
    scale : ndarray, shape (q,)
        What each error is multiplied by.
    errors : ndarray, shape (m + q, q)
        Products of F with the errors, before they are multiplied.
    gram : ndarray, shape (m, m)
        Products of the landmarks' part of F.
    half : ndarray, shape (m + q, m + q)
        Inverse of the lower Cholesky factor of F F' / noise + I.
    moment, solution : ndarray, shape (m + q,)
    left : ndarray, shape (n,)
        Target without the control columns.
    unexplained : float
    """

    value: float
    whiten: FloatArray
    scale: FloatArray
    errors: FloatArray
    gram: FloatArray
    half: FloatArray
    moment: FloatArray
    solution: FloatArray
    left: FloatArray
    unexplained: float


class _Bound:
    """The bound on the log marginal likelihood and its derivatives.

    Rows are many and landmarks few, so that what has the length of the rows is made in as few passes as can
    be: covariances and their derivatives in single precision, sums over rows in double.
    """

    def __init__(self, kernel: AdditiveKernel, rows: Rows, n_landmarks: int, *, single: bool = True) -> None:
        self._kernel, self._rows, control = kernel, rows, rows.control
        points = rows.inputs.take(slice(n_landmarks))
        self._among = Pair.of(kernel, points, points, reused=True)
        # The large part is as good in single precision; what is inverted is not.
        self._to_rows = Pair.of(kernel, points, rows.inputs, single=single, reused=True)
        self._root = np.sqrt(rows.weight)
        # What residuals are made of: covariances with landmarks, errors, control columns, target. The first
        # are filled in for each point.
        m = len(points)
        self._sources = np.empty((m + control.n_errors + control.columns.shape[1] + 1, len(rows)))
        self._rooted, self._fixed = self._sources[:m], self._sources[m:]
        fixed = np.hstack([*control.errors, control.free, control.columns, rows.target[:, None]])
        self._fixed[:] = fixed.T * self._root
        self._errors = self._fixed[: control.n_errors]
        self._error_gram = self._errors @ self._errors.T
        self._by_cross = np.empty((m, len(rows)))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def control(self) -> Control:
        """The control columns of the rows."""
        return self._rows.control

    def needed(self, point: FloatArray) -> list[int]:
        """Return the terms that are left when those go without which the bound is no lower.

        Terms go one by one, those that are worth least first. Parameters are not found anew in between.
        """
        parameters, noise, slopes = self._split(point)
        located = self._kernel.located
        parts = [
            (
                self._among.term(term, parameters[where]).values,
                self._to_rows.term(term, parameters[where]).values,
                variance(term, parameters[where], self._rows.inputs)[0],
            )
            for term, where in located
        ]
        kept = list(range(len(located)))
        total = [np.sum([part[k] for part in parts], axis=0) for k in range(3)]

        def value(parts: list[FloatArray]) -> float:
            inner, cross, prior = parts
            return self._solve(inner, cross, prior, noise, slopes).value

        def without(number: int) -> tuple[float, list[FloatArray]]:
            rest = [whole - part for whole, part in zip(total, parts[number], strict=True)]
            return value(rest), rest

        highest = value(total)
        losses = {
            k: highest - without(k)[0]
            for k, (term, _) in enumerate(located)
            if term.optional and len(kept) > 1
        }
        # Those that are hardly expected first: others that can stand for them are still there.
        hardly = {k: located[k][0].expected < _HARDLY_EXPECTED for k in losses}
        for k in sorted(losses, key=lambda each: (not hardly[each], losses[each])):
            if len(kept) == 1:
                break
            found, rest = without(k)
            if found >= highest - (_LEAST_GAIN if hardly[k] else 0.0):
                kept.remove(k)
                highest, total = found, rest
        return kept

    def _split(self, point: FloatArray) -> tuple[FloatArray, float, FloatArray]:
        n = len(self._kernel.parameters)
        return point[:n], float(np.exp(2.0 * point[n])), point[n + 1 :]

    def _solve(
        self, inner: FloatArray, cross: FloatArray, prior: FloatArray, noise: float, slopes: FloatArray
    ) -> _Solved:
        """Return the bound for covariances among landmarks, with rows, and variances of rows."""
        control, m = self._rows.control, len(inner)
        whiten = whitening(inner)
        rooted = np.multiply(cross, self._root, out=self._rooted)
        left = self._root * (self._rows.target - control.columns @ slopes)
        scale = control.scale(slopes)
        # Products first, then whitening: the longer dimension is gone after one product.
        gram = whiten @ (rooted @ rooted.T) @ whiten.T
        errors = np.vstack([whiten @ (rooted @ self._errors.T), scale[:, None] * self._error_gram])
        between, among = errors[:m] * scale, errors[m:] * scale
        system = np.block([[gram, between], [between.T, among]]) / noise + np.eye(m + len(scale))
        root = cholesky(system, lower=True)
        moment = np.concatenate([whiten @ (rooted @ left), scale * (self._errors @ left)]) / noise
        half = inverse_of_lower(root)
        solution = half.T @ (half @ moment)
        # Rounding can make this negative where landmarks explain everything.
        unexplained = max(0.0, float(self._rows.weight @ prior) - float(np.trace(gram)))
        value = (
            -float(np.log(np.diag(root)).sum())
            - 0.5 * len(left) * np.log(noise)
            - 0.5 * float(left @ left) / noise
            + 0.5 * float(moment @ solution)
            - 0.5 * unexplained / noise
        )
        return _Solved(value, whiten, scale, errors, gram, half, moment, solution, left, unexplained)

    def at(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Return the bound and its derivatives at log parameters, log noise and slopes."""
        parameters, noise, slopes = self._split(point)
        rows, control, n = self._rows, self._rows.control, len(parameters)
        inside, outside = self._among.covariance(parameters), self._to_rows.covariance(parameters)
        variances = [variance(term, parameters[where], rows.inputs) for term, where in self._kernel.located]
        prior = np.sum([values for values, _ in variances], axis=0)
        solved = self._solve(inside.values, outside.values, prior, noise, slopes)
        whiten, scale, solution, m = solved.whiten, solved.scale, solved.solution, len(solved.whiten)
        inverse = solved.half.T @ solved.half
        # In units of covariances with landmarks: the solution, and what shrinks it.
        weights, by_error = whiten.T @ solution[:m], scale * solution[m:]
        shrunk = np.eye(m) - inverse[:m, :m]
        # Derivative in the covariances with rows: residual times weights, and what the determinants say; the
        # residual is what the fixed columns are without covariances and errors.
        on_sources = np.outer(weights, np.concatenate([-weights, -by_error, -slopes, [1.0]]))
        on_sources[:, :m] += whiten.T @ shrunk @ whiten
        on_sources[:, m : m + len(scale)] -= (whiten.T @ inverse[:m, m:]) * scale
        # In double precision: much of this cancels.
        by_cross = np.matmul(on_sources / noise, self._sources, out=self._by_cross)
        by_cross *= self._root
        by_inner = np.outer(solution[:m], solution[:m]) + solved.gram / noise - shrunk
        by_inner = -0.5 * (whiten.T @ by_inner @ whiten)
        found = np.empty(len(point))
        found[:n] = inside.pull_back(by_inner) + outside.pull_back(by_cross)
        by_variance = -0.5 * rows.weight / noise
        for (_, where), (_, slope) in zip(self._kernel.located, variances, strict=True):
            found[where] += slope @ by_variance
        found[n] = (
            len(solution)
            - float(np.trace(inverse))
            - len(rows)
            + (float(solved.left @ solved.left) + solved.unexplained) / noise
            - float(solved.moment @ solution)
            - float(solution @ solution)
        )
        residual = solved.left - weights @ self._rooted - by_error @ self._errors
        products = self._fixed @ residual
        q, d = len(scale), len(slopes)
        found[n + 1 :] = products[q : q + d]
        own = solution[m:] * products[:q] - np.sum(inverse[m:] * solved.errors.T, axis=1)
        found[n + 1 :] += [own[columns].sum() for columns in control.error_columns]
        found[n + 1 :] /= noise
        return solved.value, found


def whitening(inner: FloatArray) -> FloatArray:
    """Return the inverse of the lower Cholesky factor of landmarks' covariances, shape (m, m)."""
    level = _JITTER * float(np.mean(np.diag(inner)))
    return inverse_of_lower(cholesky(inner + level * np.eye(len(inner)), lower=True))


def inverse_of_lower(factor: FloatArray) -> FloatArray:
    """Return the inverse of a lower triangular matrix: products with it are quicker than solving with it."""
    found, _ = dtrtri(factor, lower=1)
    return np.asarray(found)
