"""Elephas' ``SparkModel``, based on the strategies of :func:`rueda.torch.wrap`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from rueda.engines.given import count_of, function_of
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.spark.fitting import fit
from rueda.spark.keras_learner import KerasLearner, is_keras_model
from rueda.spark.learners import Learner, TorchLearner, train
from rueda.spark.prediction import predictor
from rueda.spark.rdds import as_frame
from rueda.torch.strategies.parsing import strategy_of

__all__ = ["SparkModel", "to_simple_rdd"]

_COLUMNS = ("features", "label")


class SparkModel:
    """Trains a model on an RDD or a DataFrame, each rank on its partition.

    - ``model``: a compiled Keras 3 model on the torch backend, as in Elephas, or a torch module with ``optimizer``,
      which creates the optimizer from the parameters, such as ``functools.partial(torch.optim.SGD, lr=0.1)``, and
      ``loss``, a function of the model's output and the labels. ``custom_objects``: those Keras needs to load it.
    - ``mode`` and ``frequency``: ``"synchronous"`` with ``"batch"`` averages gradients in every step, with ``"epoch"``
      averages parameters after every epoch; ``"asynchronous"``, Elephas' default, works as in :func:`rueda.torch.wrap`.
      Only the final parameters pass through the driver.
    - ``num_workers``: the number of ranks, by default ``spark.default.parallelism``.
    - ``parameter_server_mode`` and ``port`` have no effect: ranks hold the parameters.

    ``training_histories`` has the mean loss of each epoch, with Keras also the metrics, for each call of :meth:`fit`.

    Raises :class:`rueda.InvalidArgumentError` and :class:`rueda.UnsupportedError` for arguments that cannot work.
    """

    def __init__(
        self,
        model: Any,
        mode: str = "asynchronous",
        frequency: str = "epoch",
        num_workers: int | None = None,
        batch_size: int = 32,
        *,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        parameter_server_mode: str | None = None,
        port: int | None = None,
    ) -> None:
        self._learner = _learner_of(model, optimizer, loss, custom_objects)
        if frequency not in ("epoch", "batch"):
            raise InvalidArgumentError(f"frequency={frequency!r} is neither 'epoch' nor 'batch'")
        strategy_of(None, mode, frequency)  # rejects unknown modes before a job starts
        self.master_network = model
        self.training_histories: list[dict[str, list[float]]] = []
        self._mode, self._frequency = mode, frequency
        self._num_workers = num_workers
        self._batch_size = batch_size

    def fit(
        self,
        data: RDD[Any] | DataFrame,
        epochs: int = 10,
        batch_size: int | None = None,
        verbose: int = 0,
        validation_split: float = 0.0,
    ) -> None:
        """Trains on pairs of features and labels: an RDD of tuples, or columns ``features`` and ``label``.

        Raises the errors of :func:`rueda.spark.fit`. ``verbose`` prints losses and metrics on the driver afterwards.
        """
        if validation_split:
            raise UnsupportedError(
                "validation_split= is not available: split the data with randomSplit(), and call evaluate()"
            )
        weights, history = fit(
            as_frame(data, _COLUMNS),
            train,
            self._num_workers,
            columns=_COLUMNS,
            batch_size=self._batch_size if batch_size is None else batch_size,
            args=(self._learner,),
            kwargs={
                "mode": self._mode,
                "frequency": self._frequency,
                "epochs": count_of("epochs", epochs, "epochs"),
                "seed": int(torch.randint(2**31, (), device="cpu")),
            },
        )
        self._learner.take(weights)
        self.training_histories.append(history)
        for epoch in range(epochs if verbose else 0):
            told = ", ".join(f"{name} {values[epoch]:.4f}" for name, values in history.items())
            print(f"epoch {epoch + 1}: {told}")

    def predict(self, data: DataFrame | npt.NDArray[Any]) -> Any:
        """For an array, the model's output; for a DataFrame, adds a column ``prediction`` of lists of floats."""
        if not isinstance(data, DataFrame):
            return self._learner.predict(np.array(data, np.float32))
        predict = predictor(self._learner.predicting(), then=_as_rows)
        added = StructField("prediction", ArrayType(FloatType()))
        return data.mapInArrow(predict, StructType([*data.schema.fields, added]))

    def evaluate(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any:
        """The loss on this data, computed on the driver; with Keras the result of its ``evaluate()``."""
        return self._learner.evaluate(np.array(features, np.float32), np.asarray(labels))

    def save(self, file_name: str | os.PathLike[str]) -> None:
        """Saves a Keras model with its own ``save()``, and the ``state_dict()`` of a torch module."""
        self._learner.save(file_name)


def _learner_of(
    model: Any, optimizer: Any, loss: Any, custom_objects: Mapping[str, Any] | None
) -> Learner:
    """The learner of a compiled Keras model, or of a torch module with ``optimizer`` and ``loss``."""
    if is_keras_model(model) and optimizer is None and loss is None:
        return KerasLearner(model, custom_objects)
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedError(
            "SparkModel takes a compiled model of Keras 3 on its backend torch, or a torch.nn.Module, not a "
            f"{type(model).__name__}: train others in a function for rueda.spark.fit()"
        )
    if optimizer is None or loss is None:
        raise InvalidArgumentError(
            "SparkModel needs optimizer= and loss= for a torch.nn.Module, and neither for a compiled model of Keras"
        )
    return TorchLearner(model, function_of("optimizer", optimizer), function_of("loss", loss))


def to_simple_rdd(
    sc: SparkContext, features: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> RDD[Any]:
    """An RDD of (features, label) pairs."""
    return sc.parallelize(list(zip(features, labels, strict=True)))


def _as_rows(found: Any) -> Any:
    return found.reshape(len(found), -1)
