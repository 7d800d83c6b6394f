"""A suite of synthetic problems with known truth that differ in what makes them hard.

Each is confounded so that an ordinary regression of outcomes on actions is clearly wrong, has a truth of
variance about one at its test points, and instruments that reach the outcome through the action alone.

Half of the problems may be used to choose settings, the other half is only ever reported:

===================== ===================================================================================
``TUNED_ON``          what it is like
===================== ===================================================================================
saturating-dose       smooth, multiplicative, saturating in the action
stepped-tariff        steps in the action and in a context, an irrelevant context
wavy-response         sine in the action, additive, noise that grows with the context
twenty-columns        20 correlated contexts of which 4 matter, 5 instruments
weak-nudge            5 weak instruments
store-chain           a category of 30 levels with slopes of their own, held as strings
three-clinics         an action of 3 levels, a categorical instrument, a jump in a context
===================== ===================================================================================

===================== ===================================================================================
``REPORTED_ONLY``     what it is like
===================== ===================================================================================
seasonal-sales        periodic in a context, multiplicative
u-shaped-load         U-shaped in the action, additive, 10 contexts of which 3 matter, 3 instruments
heavy-tailed-returns  not monotone, Student's t noise with 3 degrees of freedom
peak-hours            periodic in the action in some contexts only, a category among the instruments,
                      noise that depends on it
crowded-road          a kink whose place jumps, heavy-tailed and heteroscedastic noise, an instrument that is
                      weak in some contexts
price-and-promotion   two actions at once
encouraged-training   a binary action, a binary instrument, noncompliance
===================== ===================================================================================

At strength 1 the instruments of most explain far more of the action than those of published studies do.
:func:`with_instrument_share` makes them ordinary: ``ORDINARY_TUNED_ON`` and ``ORDINARY_REPORTED_ONLY`` are
problems of either half for which that is done, at ``ORDINARY_SHARES``. Problems in which a control function
is wrong are in :mod:`dmliv.problems.suite.violations`.
"""

from types import MappingProxyType
from typing import Final

from dmliv.problems.suite.pieces import SuiteProblem
from dmliv.problems.suite.reported_only import (
    REPORTED_ONLY,
    CrowdedRoad,
    EncouragedTraining,
    HeavyTailedReturns,
    PeakHours,
    PriceAndPromotion,
    SeasonalSales,
    UShapedLoad,
)
from dmliv.problems.suite.shares import instrument_share, strength_for_share, with_instrument_share
from dmliv.problems.suite.tuned_on import (
    TUNED_ON,
    SaturatingDose,
    SteppedTariff,
    StoreChain,
    ThreeClinics,
    TwentyColumns,
    WavyResponse,
    WeakNudge,
)
from dmliv.problems.suite.violations import (
    VIOLATIONS,
    VIOLATIONS_REPORTED_ONLY,
    VIOLATIONS_TUNED_ON,
    ChangingCauses,
    ContextualConfounding,
    FoldedAction,
    HiddenTypes,
    RandomCoefficient,
    SpreadingAction,
)

__all__ = [
    "ORDINARY_REPORTED_ONLY",
    "ORDINARY_SHARES",
    "ORDINARY_TUNED_ON",
    "REPORTED_ONLY",
    "SUITE",
    "TUNED_ON",
    "VIOLATIONS",
    "VIOLATIONS_REPORTED_ONLY",
    "VIOLATIONS_TUNED_ON",
    "ChangingCauses",
    "ContextualConfounding",
    "CrowdedRoad",
    "EncouragedTraining",
    "FoldedAction",
    "HeavyTailedReturns",
    "HiddenTypes",
    "PeakHours",
    "PriceAndPromotion",
    "RandomCoefficient",
    "SaturatingDose",
    "SeasonalSales",
    "SpreadingAction",
    "SteppedTariff",
    "StoreChain",
    "SuiteProblem",
    "ThreeClinics",
    "TwentyColumns",
    "UShapedLoad",
    "WavyResponse",
    "WeakNudge",
    "instrument_share",
    "strength_for_share",
    "with_instrument_share",
]

SUITE: Final = MappingProxyType({problem.name: problem for problem in (*TUNED_ON, *REPORTED_ONLY)})
"""All problems by their names."""

ORDINARY_TUNED_ON: Final[tuple[SuiteProblem, ...]] = (SaturatingDose(), WavyResponse(), TwentyColumns())
"""Problems on which settings may be chosen, for instruments of ordinary strength."""

ORDINARY_REPORTED_ONLY: Final[tuple[SuiteProblem, ...]] = (SeasonalSales(), UShapedLoad(), CrowdedRoad())
"""Problems that no setting was ever chosen on, for instruments of ordinary strength."""

ORDINARY_SHARES: Final = (0.01, 0.03, 0.1, 0.3)
"""Shares of the action that an ordinary instrument explains, beyond the context."""
