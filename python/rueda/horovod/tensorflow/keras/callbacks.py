"""``model.fit()`` callbacks with Horovod's signatures, based on :mod:`rueda.keras`.

``momentum_correction`` is accepted and has no effect: Keras 3 compiles the optimizer's momentum into the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras

import rueda
from rueda.keras import callbacks

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(callbacks.BroadcastCallback):
    """Broadcasts the weights and optimizer variables of ``root_rank`` when training begins.

    ``local_variables``: variables that each rank keeps. ``device`` has no effect.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__(root_rank)
        several = local_variables
        if several is None or not isinstance(several, Iterable):
            several = [] if several is None else [several]
        self._local: dict[int, Any] = {}
        for variable in several:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Excludes this variable from the broadcast."""
        self._local[id(var)] = var

    def _chosen(self, variables: list[Any]) -> list[Any]:
        return [v for v in variables if id(v) not in self._local]


class MetricAverageCallback(callbacks.MetricAverageCallback):
    """Replaces an epoch's metrics with their averages over the ranks. ``device`` has no effect."""

    def __init__(self, device: str = "") -> None:
        super().__init__()


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr * multiplier`` from ``start_epoch`` until before ``end_epoch``.

    ``multiplier``: a function of the epoch, or a number, which is raised to the power of the epochs since
    ``start_epoch``. ``staircase``: update once per epoch, the default, or else at every step, with fractional epochs.
    ``steps_per_epoch``: by default the number that ``fit()`` knows; raises ``ValueError`` if needed and unknown.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"the number of steps of an epoch is unknown: {type(self).__name__}(..., steps_per_epoch=)"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase:
            if batch == 0:
                callbacks.set_learning_rate(self.model, self.initial_lr * self.multiplier(epoch))
            return
        assert self.steps_per_epoch is not None  # set by on_train_begin()
        at = epoch + batch / self.steps_per_epoch
        callbacks.set_learning_rate(self.model, self.initial_lr * self.multiplier(at))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / hvd.size()`` to ``initial_lr`` during the first epochs, each step.

    ``verbose``: if above 0, rank 0 prints a message at the end.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            # As in Horovod, so that an epoch ends at a round number.
            ranks, done = rueda.size(), epoch + 1.0 / self.steps_per_epoch
            return 1.0 / ranks * (done * (ranks - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
        self._last = warmup_epochs - 1
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self._last and self._verbose > 0 and rueda.rank() == 0:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves only the best model. Set the attribute ``filepath`` before ``fit()``."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        # Keras 3 checks the suffix in the constructor.
        suffix = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(suffix, monitor, verbose, True, save_weights_only, mode, save_freq)
