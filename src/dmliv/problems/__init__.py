"""Benchmark problems with a known counterfactual."""

from dmliv.problems.base import EvaluationSet, Problem
from dmliv.problems.ticket_demand import TicketDemand

__all__ = ["EvaluationSet", "Problem", "TicketDemand"]
