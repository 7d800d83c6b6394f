"""Benchmark problems with a known counterfactual."""

from dmliv.problems.assets import AssetError
from dmliv.problems.base import ContextArray, EvaluationSet, Problem
from dmliv.problems.decisions import PriceAndAdvertising, TreatmentChoice
from dmliv.problems.image_demand import ImageDemand
from dmliv.problems.replication import Replication, Split
from dmliv.problems.semi_synthetic import IHDP, PMCMR
from dmliv.problems.ticket_demand import TicketDemand

__all__ = [
    "IHDP",
    "PMCMR",
    "AssetError",
    "ContextArray",
    "EvaluationSet",
    "ImageDemand",
    "PriceAndAdvertising",
    "Problem",
    "Replication",
    "Split",
    "TicketDemand",
    "TreatmentChoice",
]
