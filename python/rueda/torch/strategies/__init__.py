"""Strategies: what ranks exchange in training, and when, see :func:`rueda.torch.wrap`.

Each is a small class over what :class:`Replica` offers; docs/strategies.md compares them.
"""

from rueda.torch.strategies.accumulation import GradientAccumulation
from rueda.torch.strategies.diloco import DiLoCo
from rueda.torch.strategies.local_sgd import EpochAveraging, LocalSGD, PostLocalSGD
from rueda.torch.strategies.parsing import parse_strategy
from rueda.torch.strategies.replica import Averaging, Replica
from rueda.torch.strategies.strategy import Strategy
from rueda.torch.strategies.synchronous import Synchronous

__all__ = [
    "Averaging",
    "DiLoCo",
    "EpochAveraging",
    "GradientAccumulation",
    "LocalSGD",
    "PostLocalSGD",
    "Replica",
    "Strategy",
    "Synchronous",
    "parse_strategy",
]
