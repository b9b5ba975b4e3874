"""Strategies: what ranks exchange in training, and when, see :func:`rueda.torch.wrap`.

Each is a small class over what :class:`Replica` offers; docs/strategies.md compares them.
"""

from rueda.torch.strategies.accumulation import GradientAccumulation
from rueda.torch.strategies.des_loc import DESLOC
from rueda.torch.strategies.diloco import DiLoCo
from rueda.torch.strategies.easgd import EASGD
from rueda.torch.strategies.gossip import ADPSGD, NoLoCo
from rueda.torch.strategies.local_sgd import EpochAveraging, LocalSGD, PostLocalSGD
from rueda.torch.strategies.parsing import parse_strategy
from rueda.torch.strategies.replica import Averaging, Replica
from rueda.torch.strategies.sparse_loco import SparseLoCo
from rueda.torch.strategies.strategy import Strategy
from rueda.torch.strategies.synchronous import Synchronous

__all__ = [
    "ADPSGD",
    "DESLOC",
    "EASGD",
    "Averaging",
    "DiLoCo",
    "EpochAveraging",
    "GradientAccumulation",
    "LocalSGD",
    "NoLoCo",
    "PostLocalSGD",
    "Replica",
    "SparseLoCo",
    "Strategy",
    "Synchronous",
    "parse_strategy",
]
