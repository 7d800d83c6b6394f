"""Benchmark problems with a known counterfactual."""

from dmliv.problems import suite
from dmliv.problems.assets import AssetError
from dmliv.problems.card import CardWages
from dmliv.problems.encouragement import Encouragement
from dmliv.problems.image_demand import ImageDemand
from dmliv.problems.protocol import ContextArray, EvaluationSet, Problem
from dmliv.problems.replication import Replication, Split
from dmliv.problems.semi_synthetic import IHDP, PMCMR
from dmliv.problems.suite import *  # noqa: F403 - the suite lists its names itself, once
from dmliv.problems.ticket_demand import TicketDemand
from dmliv.problems.treatments import PriceAndAdvertising, TreatmentChoice

__all__ = [
    "IHDP",
    "PMCMR",
    "AssetError",
    "CardWages",
    "ContextArray",
    "Encouragement",
    "EvaluationSet",
    "ImageDemand",
    "PriceAndAdvertising",
    "Problem",
    "Replication",
    "Split",
    "TicketDemand",
    "TreatmentChoice",
]
__all__ += suite.__all__
