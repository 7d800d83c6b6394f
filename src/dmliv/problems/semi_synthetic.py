"""IHDP and PM-CMR: real contexts, with a drawn instrument, action and outcome.

The equations are in `dmliv.problems.equations`, what a replication consists of in
`dmliv.problems.replication`. The counterfactual is a parabola in the action that opens upwards, so the best
policy in [-3, 5] is the constant 5; few training actions exceed 4, and rewards mostly test how a learned
curve goes on beyond them.

Outcomes are in units of their replication. Hence take samples and truth from one replication: give the same
number to all calls, or work with the object that `replication` returns.

References
----------
Wu et al., "Learning Instrumental Variable from Data Fusion for Treatment Effect Estimation", AAAI 2023 (the
generator).

Shao, Soleymani, Quinzan and Kwiatkowska, "Learning Decision Policies with Instrumental Variables through
Double Machine Learning", ICML 2024 (the benchmark).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, get_args

from numpy.typing import ArrayLike

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.arguments import check_choice
from dmliv.problems.assets import DataDir
from dmliv.problems.equations import Variant, equations
from dmliv.problems.protocol import EvaluationSet
from dmliv.problems.real_contexts import ihdp_contexts, pmcmr_contexts
from dmliv.problems.replication import PartName, Replication, Split, draw_replication

# A replication shuffles once for each one before it, a millisecond each.
_MOST_REPLICATIONS = 10_000


@dataclass(frozen=True)
class SemiSynthetic(ABC):
    """A problem with real contexts; for its parameters see :class:`IHDP`."""

    action_range: ClassVar[tuple[float, float]] = Replication.action_range
    # Seeds of the published runs by number of levels; with them the published files come out.
    _seeds: ClassVar[dict[int, int]]

    n_levels: int = 5
    variant: Variant = "code"
    data_dir: DataDir = None

    def __post_init__(self) -> None:
        check_choice("n_levels", self.n_levels, tuple(self._seeds))
        check_choice("variant", self.variant, get_args(Variant))

    @abstractmethod
    def _real_contexts(self) -> FloatArray:
        """Return all real contexts, shape (n, 6)."""

    def replication(self, number: int = 0) -> Replication:
        """Return replication ``number``, 0 to 9999; 0 to 19 are published, if ``variant`` is "code"."""
        _check_number(number)
        seed = self._seeds[self.n_levels]
        return draw_replication(
            self._real_contexts(), equations(self.variant, self.n_levels), seed, int(number)
        )

    def split(self, replication: int, part: PartName) -> Split:
        """Return a part, "train", "validation" or "test", of a replication with its truth."""
        return self.replication(replication).split(part)

    def sample(self, n: int | None = None, seed: int = 0) -> IVData:
        """Return training rows of a replication, see :meth:`Replication.sample`.

        Parameters
        ----------
        n : int, optional
            The first so many rows; all by default.
        seed : int, default 0
            The number of the replication; pass it as ``replication`` wherever the truth is asked for.
        """
        return self.replication(seed).sample(n)

    def counterfactual(self, X: ArrayLike, T: ArrayLike, replication: int = 0) -> FloatArray:
        """Return h0 in the units of a replication, shape (n,), see :meth:`Replication.counterfactual`."""
        return self.replication(replication).counterfactual(X, T)

    def validation_set(self, replication: int = 0) -> EvaluationSet:
        """Return ``X`` (n, 6), ``T`` (n,) and truth (n,) of the validation rows of a replication."""
        return self.replication(replication).validation_set()

    def test_set(self, replication: int = 0) -> EvaluationSet:
        """Return ``X`` (n, 6), ``T`` (n,) and truth (n,) of the test rows of a replication."""
        return self.replication(replication).test_set()

    def contexts(
        self,
        n: int | None = None,
        seed: int = 1,
        shift: float = 0.0,
        replication: int = 0,
        part: PartName = "validation",
    ) -> FloatArray:
        """Return contexts for evaluating policies, shape (n, 6), see :meth:`Replication.contexts`.

        ``shift`` must be 0: there is no shifted distribution of real contexts.
        """
        if shift != 0:
            raise InputError(
                f"Expected shift=0, as real contexts have no shifted distribution, got {shift!r}; drop it."
            )
        return self.replication(replication).contexts(n, seed, part)


@dataclass(frozen=True)
class IHDP(SemiSynthetic):
    """Infants of the Infant Health and Development Program: 747 rows.

    Training, validation and test part have 470, 202 and 75 rows.

    Parameters
    ----------
    n_levels : {5, 3}, default 5
        Number of levels of the instrument.
    variant : {"code", "text"}, default "code"
        The equations of the code that drew the published data, or those printed in the paper.
    data_dir : path, optional
        A folder that holds the file; without it the file is looked for in the folder that the environment
        variable ``DMLIV_DATA`` names and in the cache, and downloaded at last (0.2 MB).

    Examples
    --------
    >>> replication = IHDP().replication(3)
    >>> data = replication.sample()
    >>> X, T, truth = replication.test_set()
    """

    _seeds: ClassVar[dict[int, int]] = {5: 2023, 3: 2023}

    def _real_contexts(self) -> FloatArray:
        return ihdp_contexts(self.data_dir)


@dataclass(frozen=True)
class PMCMR(SemiSynthetic):
    """Counties of the US in a study of air pollution (PM2.5) and heart mortality (CMR): 2132 rows.

    Training, validation and test part have 1343, 575 and 214 rows (the paper speaks of 1350 for training).

    Parameters
    ----------
    n_levels, variant, data_dir
        As for :class:`IHDP`; the download has 2.8 MB.
    """

    _seeds: ClassVar[dict[int, int]] = {5: 2023, 3: 2024}

    def _real_contexts(self) -> FloatArray:
        return pmcmr_contexts(self.data_dir)


def _check_number(number: object) -> None:
    """Raise unless ``number`` can be that of a replication."""
    is_integer = isinstance(number, Integral) and not isinstance(number, bool)
    if not is_integer or number not in range(_MOST_REPLICATIONS):
        raise InputError(
            f"Expected a replication from 0 to {_MOST_REPLICATIONS - 1}, got {number!r}; pass its number."
        )
