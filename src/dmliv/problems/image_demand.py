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
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.problems.arguments import as_contexts, check_choice
from dmliv.problems.assets import DataDir
from dmliv.problems.mnist import N_PIXELS, digits_shown, load_digits
from dmliv.problems.protocol import Part
from dmliv.problems.ticket_demand import N_TYPES, Demand

Digits: TypeAlias = Literal["1-7", "0-6"]
ImageContexts: TypeAlias = NDArray[np.float32]
"""Contexts of shape (n, 785): the time, then 784 pixels in [0, 1], one row of the image after the other."""

_FIRST_DIGIT: dict[Digits, int] = {"1-7": 1, "0-6": 0}
_N_COLUMNS = 1 + N_PIXELS
_BRIGHTEST = 255.0
# Images come from a stream of their own, so that all other draws are those of ticket demand.
_IMAGE_STREAM = 784


@dataclass(frozen=True)
class ImageDemand(Demand):
    """The image demand problem.

    For one seed the time, the type, the instrument, the action and the outcome of a sample are those of
    `TicketDemand` with the same parameters: comparisons between the two are paired. Contexts are (n, 785) in
    single precision, time and pixels. No image occurs twice before all images of its digit have been used: a
    digit has at least 5421 in the training part of MNIST and at least 892 in the test part.

    Parameters
    ----------
    instrument_strength, confounding
        As for `TicketDemand`.
    digits : {"1-7", "0-6"}, default "1-7"
        The digits that stand for the types 1 to 7.
    data_dir : path, optional
        A folder that holds the MNIST files; without it they are looked for in the folder that the environment
        variable ``DMLIV_DATA`` names and in the cache, and downloaded at last (12 MB).
    """

    digits: Digits = "1-7"
    data_dir: DataDir = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("digits", self.digits, get_args(Digits))

    def customer_types(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the types 1 to 7 that the images in contexts (n, 785) stand for, shape (n,)."""
        return self._read(X)[1].astype(np.int64)

    def _show(self, time: FloatArray, kind: NDArray[np.int64], part: Part, seed: int) -> ImageContexts:
        """Return contexts (n, 785) in which every type is an image of its digit."""
        images = load_digits(part, self.data_dir)
        rng = np.random.default_rng([seed, _IMAGE_STREAM])
        chosen = np.empty(len(time), dtype=np.int64)
        for position in range(N_TYPES):
            rows = np.flatnonzero(kind == position + 1)
            supply = np.flatnonzero(images.labels == position + _FIRST_DIGIT[self.digits])
            # One shuffled pack after the other: no image again before all have been used.
            packs = [rng.permutation(supply) for _ in range(0, len(rows), len(supply))]
            chosen[rows] = np.concatenate([supply[:0], *packs])[: len(rows)]
        X = np.empty((len(time), _N_COLUMNS), dtype=np.float32)
        X[:, 0] = time
        X[:, 1:] = images.pixels[chosen]
        X[:, 1:] /= np.float32(_BRIGHTEST)
        return X

    def _read(self, X: ArrayLike) -> tuple[FloatArray, FloatArray]:
        context = as_contexts(X, _N_COLUMNS, dtype=None)
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
        return context[:, 0].astype(np.float64), kind.astype(np.float64)
