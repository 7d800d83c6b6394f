"""Offline bandits: one lower-confidence rule over different models of the reward, blind to confounding."""

from dmliv.bandits.neural import NeuraLCB, NeuralLinGreedy, NeuralLinLCB
from dmliv.bandits.rule import KernLCB, LinLCB, OfflineBandit, RandomPolicy

__all__ = [
    "KernLCB",
    "LinLCB",
    "NeuraLCB",
    "NeuralLinGreedy",
    "NeuralLinLCB",
    "OfflineBandit",
    "RandomPolicy",
]
