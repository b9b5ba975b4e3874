"""Which samples a rank has in a step, whatever ranks there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rueda.errors import InvalidArgumentError
from rueda.leaves import LeafSampler
from rueda.lifecycle import rank, size

__all__ = ["StepSampler"]


class StepSampler:
    """Deals the samples of a data set out to steps, and those of a step to the ranks that there are at the time.

    ``items``: how many samples there are. ``batch``: how many a step has, on all ranks together; the last step of an
    epoch has what is left, unless ``drop_last``. ``shuffle``: into an order that follows from ``seed`` and the epoch.
    All the same on every rank.

    What a step has follows from its number alone, so there is no state that a newcomer would need, and a step that is
    done again has the same samples, divided anew. With :func:`steps`, in which every step takes effect once, each
    sample is used exactly once in an epoch, whoever comes and goes. For ``reproducible=True`` there is
    :class:`rueda.LeafSampler`.

    Raises :class:`rueda.InvalidArgumentError` for numbers that make no sense.

    Example::

        >>> sampler = rueda.elastic.StepSampler(items=10, batch=4, shuffle=False)
        >>> len(sampler), [sampler.samples(step).tolist() for step in range(3)]  # of one rank
        (3, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])
    """

    def __init__(
        self, items: int, batch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        self._batches = LeafSampler(items, 1, batch, seed, shuffle, drop_last)
        if len(self) == 0:
            raise InvalidArgumentError(
                f"drop_last: {items} samples are less than a batch of {batch}"
            )
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self._batches)

    def epoch(self, step: int) -> int:
        """To which epoch a step belongs, from 0."""
        return step // len(self)

    def samples(self, step: int) -> npt.NDArray[np.int64]:
        """This rank's samples of a step, which is counted over all epochs; none where ranks outnumber samples."""
        return np.array_split(self._all(step), size())[rank()]

    def weight(self, step: int) -> float:
        """By what this rank's mean loss is multiplied, so that ranks' average is that over samples; 1 if even.

        Without samples it is 0, and a mean would be NaN: take ``losses.sum() / max(1, len(samples))`` for it.
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
