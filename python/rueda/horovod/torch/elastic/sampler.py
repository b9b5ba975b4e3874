"""A sampler that knows which samples of the epoch are done."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from rueda.horovod.basics import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals the samples of a dataset out to the ranks, and those that are left anew when the world changes.

    Put it into the :class:`TorchState`, call :meth:`record_batch` after each batch, and :meth:`set_epoch` at the end
    of each epoch. ``dataset``: anything with a length, the same on every rank. ``shuffle``: whether samples come in an
    order of chance, another one each epoch. ``seed``: the same on every rank.

    Every rank gets the same number of samples; where they do not divide evenly, some are given out twice.

    Example::

        >>> dataset = torch.utils.data.TensorDataset(torch.arange(6))
        >>> sampler = hvd.elastic.ElasticSampler(dataset, shuffle=False)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler)
        >>> [len(batch) for batch, in loader]
        [4, 2]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch with all samples; to be called at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has processed ``batch_size`` samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """How far the epoch is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what state_dict() has given."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals out what is left to the ranks that there are."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = self.remaining_indices
        if indices:  # again from the start where ranks would get fewer than others
            indices = (indices * (1 + self.total_size // len(indices)))[: self.total_size]
        return iter(indices[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
