"""Callbacks of ``model.fit()`` for models that several ranks train."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

import rueda
from rueda.errors import InvalidArgumentError, MismatchError
from rueda.keras.agreement import Entry, agree_on_layout
from rueda.process_sets import ProcessSet, global_process_set

__all__ = [
    "BroadcastCallback",
    "JoinCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "set_learning_rate",
]


class BroadcastCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcasts the weights and the optimizer's variables of ``root_rank`` when training begins.

    States of random generators stay each rank's own. ``root_rank``: a world rank, 0 by default. Raises
    :class:`rueda.MismatchError` on every rank where models or optimizers differ.

    Example::

        >>> model.fit(x, y, callbacks=[rueda.keras.BroadcastCallback()])  # doctest: +SKIP
    """

    def __init__(self, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._process_set = process_set

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        _broadcast(self._chosen(_state_of(self.model)), self._root_rank, self._process_set)

    def _chosen(self, variables: list[Any]) -> list[Any]:
        """Those that are broadcast."""
        return variables


class JoinCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """For ranks with different numbers of batches: a rank that runs out of batches joins, and the others go on.

    At the end of such an epoch, before it is validated, all get the weights and optimizer's variables of a rank that
    had most batches, as those that have joined take no steps. Each rank needs one batch. Put it before callbacks
    that talk to other ranks, such as :class:`MetricAverageCallback`.

    Example::

        >>> model.fit(x, y, callbacks=[rueda.keras.JoinCallback()])  # doctest: +SKIP
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set
        self._is_training = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._is_training = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._end_training()  # what is validated is the same everywhere

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_training()

    def _end_training(self) -> None:
        if not self._is_training:
            return
        self._is_training = False
        # Before it joins: JAX may still be at work on the last step, which takes part in the others'.
        mine = _progress_of(self.model.optimizer)
        last = rueda.join(self._process_set)  # a rank that has had most batches
        everyone = rueda.allgather(mine[None], "keras.steps", self._process_set)
        if (everyone != everyone[0]).any():
            _broadcast(_state_of(self.model), last, self._process_set)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces an epoch's metrics by their averages over the ranks, with equal weights.

    Put it before callbacks that read metrics, such as ModelCheckpoint and EarlyStopping; ``History`` comes after it by
    itself. Raises :class:`rueda.MismatchError` on every rank where ranks have metrics of different names.

    Example::

        >>> model.fit(x, y, callbacks=[rueda.keras.MetricAverageCallback()])  # doctest: +SKIP
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

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
            logs[name] = math.fsum(other[name] for other in everyone) / len(everyone)


class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from ``initial_lr / rueda.size()`` to ``initial_lr`` during the first epochs.

    It grows with each step, linearly: Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.2.
    ``initial_lr``: the rate for all ranks together, above 0. ``warmup_epochs``: 5 by default, above 0.
    ``steps_per_epoch``: by default what ``fit()`` knows. Training that begins behind these epochs keeps its rate.
    Raises :class:`rueda.InvalidArgumentError` when training begins where that is unknown or the optimizer follows a
    schedule.

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
        # A rate that was loaded, or lowered since, is not to be changed.
        if done > 1 and not self._begun:
            return
        self._begun = True
        share = 1 / rueda.size()
        set_learning_rate(self.model, self._initial_lr * (share + (1 - share) * min(done, 1.0)))


def _state_of(model: Any) -> list[Any]:
    """What ranks have in common: weights and the optimizer's variables, and no states of random generators."""
    return [*model.weights, *model.optimizer.variables]


def _progress_of(optimizer: Any) -> Any:
    """What each batch changes, also one of several that are accumulated, or one that loss scaling skips.

    Not the numbers of batches that Keras tells, which count those that an execution of several has not had.
    """
    proper = getattr(optimizer, "inner_optimizer", optimizer)
    counters = [proper._iterations]  # the property's are divided by gradient_accumulation_steps
    if proper is not optimizer:
        counters += [optimizer.step_counter, optimizer.dynamic_scale]
    return np.array([float(keras.ops.convert_to_numpy(each)) for each in counters])


def _broadcast(variables: list[Any], root_rank: int, process_set: ProcessSet) -> None:
    """Gives every rank those of ``root_rank``; raises :class:`rueda.MismatchError` on all where they differ in kind."""
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
    """Sets the rate of the model's optimizer, also within an epoch."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()  # within an epoch JAX's trainer does not look at variables
    model.optimizer.learning_rate = rate
