"""The callbacks of :mod:`rueda.horovod.tensorflow.keras` under Horovod's module name for Keras."""

from rueda.horovod.tensorflow.keras import callbacks
from rueda.horovod.tensorflow.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(callbacks.BestModelCheckpoint):
    """Saves only the best model, as a whole. Set the attribute ``filepath`` before ``fit()``."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
