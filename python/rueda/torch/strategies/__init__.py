"""Strategies: what ranks exchange during training, and when, see :func:`rueda.torch.wrap`.

Each is a small class on top of :class:`Replica`; docs/strategies.md compares them.
"""

from rueda.torch.strategies.accumulation import GradientAccumulation
from rueda.torch.strategies.aeasgd import AEASGD, EAMSGD
from rueda.torch.strategies.delays import stability_limit
from rueda.torch.strategies.des_loc import DESLOC
from rueda.torch.strategies.diloco import DiLoCo
from rueda.torch.strategies.downpour import ADAG, Downpour, DynSGD, Hogwild
from rueda.torch.strategies.easgd import EASGD
from rueda.torch.strategies.gossip import ADPSGD, NoLoCo
from rueda.torch.strategies.guard import Guard
from rueda.torch.strategies.local_sgd import EpochAveraging, LocalSGD, PostLocalSGD
from rueda.torch.strategies.parsing import parse_strategy
from rueda.torch.strategies.replica import Averaging, Replica
from rueda.torch.strategies.served import Served
from rueda.torch.strategies.sparse_loco import SparseLoCo
from rueda.torch.strategies.ssp import SSP
from rueda.torch.strategies.strategy import Strategy
from rueda.torch.strategies.synchronous import Synchronous

__all__ = [
    "ADAG",
    "ADPSGD",
    "AEASGD",
    "DESLOC",
    "EAMSGD",
    "EASGD",
    "SSP",
    "Averaging",
    "DiLoCo",
    "Downpour",
    "DynSGD",
    "EpochAveraging",
    "GradientAccumulation",
    "Guard",
    "Hogwild",
    "LocalSGD",
    "NoLoCo",
    "PostLocalSGD",
    "Replica",
    "Served",
    "SparseLoCo",
    "Strategy",
    "Synchronous",
    "parse_strategy",
    "stability_limit",
]
