"""Decisions from a structural model."""

from dmliv.policy.greedy import GreedyPolicy

__all__ = ["GreedyPolicy"]
