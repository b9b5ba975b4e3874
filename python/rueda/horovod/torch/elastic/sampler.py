"""A sampler that tracks which samples of the epoch are processed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from rueda.horovod.basics import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Distributes a dataset's samples over the ranks, and redistributes the remaining ones when the world changes.

    Put it into the :class:`TorchState`, call :meth:`record_batch` after each batch, and :meth:`set_epoch` at the end
    of each epoch. ``dataset``: anything with a length, the same on every rank. ``shuffle``: whether samples come in a
    random order, a different one each epoch. ``seed``: the same on every rank.

    Every rank gets the same number of samples; if they do not divide evenly, some are repeated.

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
        """Starts an epoch with all samples; call it at the end of the previous epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that every rank has processed ``batch_size`` samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the number of its processed samples."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a state_dict()."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Distributes the remaining samples over the current ranks."""
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
        if indices:  # repeat from the start so that all ranks get equally many
            indices = (indices * (1 + self.total_size // len(indices)))[: self.total_size]
        return iter(indices[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
