"""``model.fit()`` callbacks for models trained on several ranks."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import keras
import numpy as np

import rueda
from rueda.errors import InvalidArgumentError, MismatchError
from rueda.keras.agreement import Entry, agree_on_layout
from rueda.keras.optimizer import warn_if_plain
from rueda.process_sets import ProcessSet, global_process_set

__all__ = [
    "BroadcastCallback",
    "JoinCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "set_learning_rate",
]


class BroadcastCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcasts the weights and optimizer variables of ``root_rank`` when training begins.

    Each rank keeps its own random generator states. ``root_rank``: a world rank, 0 by default. Raises
    :class:`rueda.MismatchError` on every rank if models or optimizers differ.

    Example::

        >>> model.fit(x, y, callbacks=[rueda.keras.BroadcastCallback()])  # doctest: +SKIP
    """

    def __init__(self, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._process_set = process_set

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        warn_if_plain(self.model, self._process_set)
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        _broadcast(self._chosen(_state_of(self.model)), self._root_rank, self._process_set)

    def _chosen(self, variables: list[Any]) -> list[Any]:
        """Returns the variables to broadcast."""
        return variables


class JoinCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Supports ranks with different numbers of batches: a rank that runs out of batches joins, and the others go on.

    Joined ranks take no steps, so at the end of such an epoch, before validation, all ranks get the weights and
    optimizer variables of a rank that had the most batches. Each rank needs at least one batch. Put this callback
    before callbacks that communicate, such as :class:`MetricAverageCallback`.

    Example::

        >>> model.fit(x, y, callbacks=[rueda.keras.JoinCallback()])  # doctest: +SKIP
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set
        self._is_training = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        warn_if_plain(self.model, self._process_set)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._is_training = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._end_training()  # so that every rank validates the same model

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_training()

    def _end_training(self) -> None:
        if not self._is_training:
            return
        self._is_training = False
        # Read before join(): JAX may still run the last step, whose collectives involve the other ranks.
        mine = _progress_of(self.model.optimizer)
        last = rueda.join(self._process_set)  # a rank that had the most batches
        everyone = rueda.allgather(mine[None], "keras.steps", self._process_set)
        if (everyone != everyone[0]).any():
            _broadcast(_state_of(self.model), last, self._process_set)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces an epoch's metrics with their averages over the ranks, weighted equally; NaN if a rank has NaN.

    Put it before callbacks that read metrics, such as ModelCheckpoint and EarlyStopping; Keras always runs ``History``
    after it. Raises :class:`rueda.MismatchError` on every rank if the ranks' metric names differ.

    Example::

        >>> model.fit(x, y, callbacks=[rueda.keras.MetricAverageCallback()])  # doctest: +SKIP
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        warn_if_plain(self.model, self._process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            logs = {}
        mine = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        everyone = rueda.allgather_object(mine, "keras.metrics", self._process_set)
        for position, other in enumerate(everyone):
            if set(other) != set(everyone[0]):
                raise MismatchError(
                    f"'keras.metrics': the first rank has the metrics {sorted(everyone[0])} and rank {position} of "
                    f"the set has {sorted(other)}: give fit() the same metrics and validation data everywhere",
                    tensor="keras.metrics",
                )
        for name in mine:
            logs[name] = _average([other[name] for other in everyone])


def _average(values: list[float]) -> float:
    """The average, which may be infinite or NaN; exact before it is rounded."""
    if not all(map(math.isfinite, values)):
        return sum(each for each in values if not math.isfinite(each))  # without fsum()'s errors
    # Their sum may be too large for a float where their average is not.
    return float(sum(map(Fraction, values)) / len(values))


class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from ``initial_lr / rueda.size()`` to ``initial_lr`` during the first epochs.

    The rate grows linearly, at each step: Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.2.
    ``initial_lr``: the rate after the warm-up, for all ranks together, above 0. ``warmup_epochs``: 5 by default,
    above 0. ``steps_per_epoch``: by default the number that ``fit()`` knows. Training that begins after the warm-up
    epochs keeps its rate. When training begins, raises :class:`rueda.InvalidArgumentError` if the number of steps is
    unknown or the optimizer follows a schedule.

    Example::

        >>> warmup = rueda.keras.LearningRateWarmupCallback(0.4, warmup_epochs=5)  # doctest: +SKIP
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None
    ) -> None:
        super().__init__()
        if not initial_lr > 0 or not warmup_epochs > 0:
            raise InvalidArgumentError(
                f"initial_lr={initial_lr!r} and warmup_epochs={warmup_epochs!r} must be above 0"
            )
        self._initial_lr = initial_lr
        self._warmup_epochs = warmup_epochs
        self._steps_per_epoch = steps_per_epoch
        self._epoch = 0
        self._begun = False
        self._ended = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        steps = self._steps_per_epoch or self.params.get("steps")
        if not steps:
            raise InvalidArgumentError(
                "the number of steps of an epoch is unknown: LearningRateWarmupCallback(..., steps_per_epoch=)"
            )
        optimizer = self.model.optimizer
        proper = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(proper._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise InvalidArgumentError(
                "the optimizer follows a schedule, which cannot be warmed up by a callback: use the schedule's own "
                "warm-up, or a fixed learning rate"
            )
        self._steps = steps
        self._begun = self._ended = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._ended:
            return
        done = (self._epoch * self._steps + batch) / (self._warmup_epochs * self._steps)
        self._ended = done >= 1
        # Keep a rate that was loaded, or lowered since.
        if done > 1 and not self._begun:
            return
        self._begun = True
        share = 1 / rueda.size()
        set_learning_rate(self.model, self._initial_lr * (share + (1 - share) * min(done, 1.0)))


def _state_of(model: Any) -> list[Any]:
    """Returns the state that ranks share: weights and optimizer variables, without random generator states."""
    return [*model.weights, *model.optimizer.variables]


def _progress_of(optimizer: Any) -> Any:
    """Returns counters that change with each batch, even one that is only accumulated or that loss scaling skips.

    Keras' own batch numbers do not serve: with ``steps_per_execution`` they count batches that did not exist.
    """
    proper = getattr(optimizer, "inner_optimizer", optimizer)
    counters = [proper._iterations]  # the public property is divided by gradient_accumulation_steps
    if proper is not optimizer:
        counters += [optimizer.step_counter, optimizer.dynamic_scale]
    return np.array([float(keras.ops.convert_to_numpy(each)) for each in counters])


def _broadcast(variables: list[Any], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcasts from ``root_rank``; raises :class:`rueda.MismatchError` on all if counts, shapes or dtypes differ."""
    values = [np.array(keras.ops.convert_to_numpy(v.value)) for v in variables]
    layout = [
        Entry(v.path, value.shape, value.dtype.name)
        for v, value in zip(variables, values, strict=True)
    ]
    agree_on_layout("keras.broadcast", layout, process_set)
    handles = [
        rueda.broadcast_async_(value, root_rank, f"keras.broadcast.{index}", process_set)
        for index, value in enumerate(values)
    ]
    for variable, handle in zip(variables, handles, strict=True):
        variable.assign(handle.result())


def set_learning_rate(model: Any, rate: float) -> None:
    """Sets the learning rate of the model's optimizer; also works within an epoch."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()  # within an epoch JAX's trainer does not read the variables
    model.optimizer.learning_rate = rate
