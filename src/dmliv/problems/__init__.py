"""Benchmark problems with a known counterfactual."""

from dmliv.problems.assets import AssetError
from dmliv.problems.base import ContextArray, EvaluationSet, Problem
from dmliv.problems.decisions import PriceAndAdvertising, TreatmentChoice
from dmliv.problems.image_demand import ImageDemand
from dmliv.problems.replication import Replication, Split
from dmliv.problems.semi_synthetic import IHDP, PMCMR
from dmliv.problems.suite import (
    REPORTED_ONLY,
    SUITE,
    TUNED_ON,
    CrowdedRoad,
    EncouragedTraining,
    HeavyTailedReturns,
    PeakHours,
    PriceAndPromotion,
    SaturatingDose,
    SeasonalSales,
    SteppedTariff,
    StoreChain,
    SuiteProblem,
    ThreeClinics,
    TwentyColumns,
    UShapedLoad,
    WavyResponse,
    WeakNudge,
)
from dmliv.problems.ticket_demand import TicketDemand

__all__ = [
    "IHDP",
    "PMCMR",
    "REPORTED_ONLY",
    "SUITE",
    "TUNED_ON",
    "AssetError",
    "ContextArray",
    "CrowdedRoad",
    "EncouragedTraining",
    "EvaluationSet",
    "HeavyTailedReturns",
    "ImageDemand",
    "PeakHours",
    "PriceAndAdvertising",
    "PriceAndPromotion",
    "Problem",
    "Replication",
    "SaturatingDose",
    "SeasonalSales",
    "Split",
    "SteppedTariff",
    "StoreChain",
    "SuiteProblem",
    "ThreeClinics",
    "TicketDemand",
    "TreatmentChoice",
    "TwentyColumns",
    "UShapedLoad",
    "WavyResponse",
    "WeakNudge",
]
