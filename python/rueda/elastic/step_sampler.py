"""Distributes the samples of each step, regardless of the ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rueda.arguments import whole_number
from rueda.errors import InvalidArgumentError
from rueda.leaves import LeafSampler
from rueda.lifecycle import rank, size

__all__ = ["StepSampler"]


class StepSampler:
    """Distributes the samples of a data set over steps, and those of a step over the ranks present at the time.

    ``items``: the number of samples. ``batch``: the number of samples per step, on all ranks together; the last step of
    an epoch has the remaining ones, unless ``drop_last``. ``shuffle``: the order depends on ``seed`` and the epoch. All
    must be the same on every rank.

    The samples of a step depend on its number alone. So there is no state that a newcomer would need, and a repeated
    step has the same samples, redistributed. With :func:`steps`, in which every step takes effect once, each sample is
    used exactly once per epoch, whoever comes and goes. For ``reproducible=True``, use :class:`rueda.LeafSampler`.

    Raises :class:`rueda.InvalidArgumentError` for invalid numbers.

    Example::

        >>> sampler = rueda.elastic.StepSampler(items=10, batch=4, shuffle=False)
        >>> len(sampler), [sampler.samples(step).tolist() for step in range(3)]  # of one rank
        (3, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])
    """

    def __init__(
        self, items: int, batch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        batch = whole_number("batch", batch, 1)
        self._batches = LeafSampler(items, 1, batch, seed, shuffle, drop_last)
        if len(self) == 0:
            raise InvalidArgumentError(
                f"drop_last: {items} samples are fewer than a batch of {batch}"
            )
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Steps per epoch."""
        return len(self._batches)

    def epoch(self, step: int) -> int:
        """The epoch of a step, from 0."""
        return step // len(self)

    def samples(self, step: int) -> npt.NDArray[np.int64]:
        """This rank's samples of a step, counted over all epochs; empty if there are more ranks than samples."""
        return np.array_split(self._all(step), size())[rank()]

    def weight(self, step: int) -> float:
        """The factor for this rank's mean loss that makes the ranks' average that over samples; 1 if even.

        Without samples it is 0, and a mean would be NaN: use ``losses.sum() / max(1, len(samples))`` instead.
        """
        return len(self.samples(step)) * size() / len(self._all(step))

    def _all(self, step: int) -> npt.NDArray[np.int64]:
        if step < 0:
            raise InvalidArgumentError(f"there is no step {step}")
        epoch, position = divmod(step, len(self))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._batches.order(epoch)
        batch = self._batches.leaf_size
        return self._order[position * batch : (position + 1) * batch]
