"""Decisions from a structural model, and the policies they are compared with."""

from dmliv.bandits import KernLCB, LinLCB, NeuraLCB, NeuralLinGreedy, NeuralLinLCB, RandomPolicy
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
    "KernLCB",
    "LinLCB",
    "NeuraLCB",
    "NeuralLinGreedy",
    "NeuralLinLCB",
    "PolicyTree",
    "RandomPolicy",
    "RewardRange",
    "policy_value",
    "reward_range",
    "suboptimality",
]
