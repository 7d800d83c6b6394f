"""Decisions from a structural model."""

from dmliv.deprecation import moved_names
from dmliv.policy.decisions import Decisions
from dmliv.policy.greedy import GreedyPolicy
from dmliv.policy.spaces import Box, Interval
from dmliv.policy.tree import PolicyTree
from dmliv.policy.value import RewardRange, policy_value, reward_range, suboptimality

__all__ = [
    "Box",
    "Decisions",
    "GreedyPolicy",
    "Interval",
    "PolicyTree",
    "RewardRange",
    "policy_value",
    "reward_range",
    "suboptimality",
]

__getattr__ = moved_names(
    __name__,
    dict.fromkeys(
        ("KernLCB", "LinLCB", "NeuraLCB", "NeuralLinGreedy", "NeuralLinLCB", "RandomPolicy"), "dmliv.bandits"
    ),
)
