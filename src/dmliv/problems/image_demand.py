"""Image demand: ticket demand in which the type of the customer is a handwritten digit.

Everything is as in `dmliv.problems.ticket_demand`, but learners see a 28 x 28 image where that problem shows
them the type s, so that they have to find out by themselves what tells the seven types apart. The
counterfactual follows the type that the image stands for. Two codes of the types are in use: in the text of
Shao et al. (2024) an image of digit s, 1 to 7, stands for type s; in the code released with it an image of
digit s - 1, 0 to 6. Samples take their images from the training part of MNIST; whatever is for evaluation
takes them from the test part.

Pixels are scaled to [0, 1]; the released code leaves them at 0 to 255.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.assets import DataDir
from dmliv.problems.checks import check_choice
from dmliv.problems.mnist import N_PIXELS, Part, digits_shown, load_digits
from dmliv.problems.ticket_demand import N_TYPES, TicketDemand

Digits: TypeAlias = Literal["1-7", "0-6"]
ImageContexts: TypeAlias = NDArray[np.float32]
"""Contexts of shape (n, 785): the time, then 784 pixels in [0, 1], one row of the image after the other."""

_FIRST_DIGIT: dict[Digits, int] = {"1-7": 1, "0-6": 0}
_N_COLUMNS = 1 + N_PIXELS
_BRIGHTEST = 255.0
_GRID_SEED = 0
# Images come from a stream of their own, so that all other draws are those of ticket demand.
_IMAGE_STREAM = 784


@dataclass(frozen=True)
class ImageDemand:
    """The image demand problem.

    For one seed the time, the type, the instrument, the action and the outcome of a sample are those of
    `TicketDemand` with the same parameters: comparisons between the two are paired.

    Parameters
    ----------
    instrument_strength : float, default 1.0
        Factor on the instrument in the price equation, at least 0.
    confounding : float, default 0.9
        Correlation of the outcome noise with the hidden event that moves the price, in [-1, 1].
    digits : {"1-7", "0-6"}, default "1-7"
        The digits that stand for the types 1 to 7.
    data_dir : path, optional
        A folder that holds the MNIST files; without it they are looked for in the folder that the environment
        variable ``DMLIV_DATA`` names and in the cache, and downloaded at last (12 MB).
    """

    action_range: ClassVar[tuple[float, float]] = TicketDemand.action_range

    instrument_strength: float = 1.0
    confounding: float = 0.9
    digits: Digits = "1-7"
    data_dir: DataDir = None

    def __post_init__(self) -> None:
        check_choice("digits", self.digits, get_args(Digits))
        # The other parameters are checked where they are used.
        _ = self._tickets

    # ------------------------------------------------------------------------------------------ sampling

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw observed rows.

        No image of the training part occurs twice as long as its digit has images left (5421 at least).

        Parameters
        ----------
        n : int
            Number of rows.
        seed : int, default 0
            Seed of the generator.

        Returns
        -------
        IVData
            Outcome ``Y`` (n,), standardised price ``T`` (n,), fuel cost ``Z`` (n, 1) and context ``X``
            (n, 785) in single precision: time, then pixels.
        """
        data = self._tickets.sample(n, seed)
        return IVData(Y=data.Y, T=data.T, Z=data.Z, X=self._show(data.X, "train", seed))

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> ImageContexts:
        """Draw contexts with images of the test part for judging policies.

        Parameters
        ----------
        n : int
            Number of contexts. A digit has 892 test images at least; past these, images occur again.
        seed : int, default 1
            Seed of the generator.
        shift : float, default 0.0
            Added to the time: 0 is the training distribution U(0, 10), 1 the out-of-distribution distribution
            U(1, 11).

        Returns
        -------
        ndarray, shape (n, 785)
        """
        return self._show(self._tickets.contexts(n, seed, shift), "test", seed)

    def test_set(self) -> tuple[ImageContexts, FloatArray, FloatArray]:
        """Return the grid of ticket demand with one fixed image of the test part at every point.

        Returns
        -------
        X : ndarray, shape (2800, 785)
        T : ndarray, shape (2800,)
        truth : ndarray, shape (2800,)
        """
        plain, action, truth = self._tickets.test_set()
        return self._show(plain, "test", _GRID_SEED), action, truth

    def iid_test_set(
        self, n: int = 10_000, seed: int = 12345
    ) -> tuple[ImageContexts, FloatArray, FloatArray]:
        """Return fresh draws from the model, the action included, with images of the test part.

        Parameters
        ----------
        n : int, default 10_000
            Number of points.
        seed : int, default 12345
            Seed of the generator; keep it apart from the seeds of training samples.

        Returns
        -------
        X : ndarray, shape (n, 785)
        T : ndarray, shape (n,)
        truth : ndarray, shape (n,)
        """
        plain, action, truth = self._tickets.iid_test_set(n, seed)
        return self._show(plain, "test", seed), action, truth

    # -------------------------------------------------------------------------------------- exact answers

    def customer_types(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the types 1 to 7 that the images in contexts (n, 785) stand for, shape (n,)."""
        return self._plain(X)[:, 1].astype(np.int64)

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the true counterfactual h0, the mean standardised outcome under do(T) in context X.

        Parameters
        ----------
        X : array_like, shape (n, 785)
            Contexts with images of MNIST, of either part.
        T : array_like, shape (n,) or (n, 1), or a scalar
            Standardised prices.

        Returns
        -------
        ndarray, shape (n,)
        """
        return self._tickets.counterfactual(self._plain(X), T)

    def exact_action_distribution(self, X: ArrayLike, Z: ArrayLike) -> tuple[FloatArray, float]:
        """Return mean (n,) and standard deviation of the action (Gaussian) given X and Z."""
        return self._tickets.exact_action_distribution(self._plain(X), Z)

    def exact_outcome_mean(self, X: ArrayLike, Z: ArrayLike) -> FloatArray:
        """Return s0(X, Z) = E[Y | X, Z], shape (n,)."""
        return self._tickets.exact_outcome_mean(self._plain(X), Z)

    # ------------------------------------------------------------------------------------------- policies

    def reward(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the noise-free reward of action T in context X, shape (n,): the counterfactual."""
        return self.counterfactual(X, T)

    def optimal_action(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> FloatArray:
        """Return the best action in [low, high] for every context, shape (n,)."""
        return self._tickets.optimal_action(self._plain(X), low, high)

    def optimal_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the mean reward of the best action in [low, high] over the contexts."""
        return self._tickets.optimal_value(self._plain(X), low, high)

    def random_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the expected mean reward of an action drawn uniformly from [low, high]."""
        return self._tickets.random_value(self._plain(X), low, high)

    def worst_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the mean reward of the worst action in [low, high] over the contexts."""
        return self._tickets.worst_value(self._plain(X), low, high)

    # -------------------------------------------------------------------------------------------- private

    @property
    def _tickets(self) -> TicketDemand:
        """The problem behind the images; its contexts are (n, 2), time and type."""
        return TicketDemand(self.instrument_strength, self.confounding, "scalar")

    def _show(self, plain: FloatArray, part: Part, seed: int) -> ImageContexts:
        """Return contexts (n, 785) for times and types (n, 2): every type becomes an image of its digit."""
        images = load_digits(part, self.data_dir)
        rng = np.random.default_rng([seed, _IMAGE_STREAM])
        chosen = np.empty(len(plain), dtype=np.int64)
        for kind in range(1, N_TYPES + 1):
            rows = np.flatnonzero(plain[:, 1] == kind)
            supply = np.flatnonzero(images.labels == kind - 1 + _FIRST_DIGIT[self.digits])
            # One shuffled pack after the other: no image again before all have been used.
            packs = [rng.permutation(supply) for _ in range(0, len(rows), len(supply))]
            chosen[rows] = np.concatenate([supply[:0], *packs])[: len(rows)]
        X = np.empty((len(plain), _N_COLUMNS), dtype=np.float32)
        X[:, 0] = plain[:, 0]
        X[:, 1:] = images.pixels[chosen]
        X[:, 1:] /= np.float32(_BRIGHTEST)
        return X

    def _plain(self, X: ArrayLike) -> FloatArray:
        """Return times and types (n, 2) for contexts (n, 785)."""
        context = np.asarray(X)
        if context.ndim != 2 or context.shape[1] != _N_COLUMNS:
            raise InputError(
                f"Expected X of shape (n, {_N_COLUMNS}), got shape {context.shape}; pass time and pixels."
            )
        scaled = context[:, 1:]
        if not ((scaled >= 0) & (scaled <= 1)).all():
            raise InputError("Expected pixels in [0, 1], got others; divide pixels of 0 to 255 by 255.")
        digit = digits_shown(np.rint(scaled * _BRIGHTEST).astype(np.uint8), self.data_dir)
        kind = digit - _FIRST_DIGIT[self.digits] + 1
        wrong = np.flatnonzero((digit < 0) | (kind < 1) | (kind > N_TYPES))
        if wrong.size:
            shown = digit[wrong[0]]
            raise InputError(
                f"Expected images of the digits {self.digits} from MNIST, got "
                f"{'an image that is not in MNIST' if shown < 0 else f'a digit {shown}'} in row {wrong[0]}; "
                "pass contexts that this problem has drawn."
            )
        return np.column_stack([context[:, 0].astype(np.float64), kind.astype(np.float64)])
