"""``SparkModel`` as Elephas has it, over strategies of :func:`rueda.torch.wrap`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

import rueda.torch
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.spark.arrays import arrays
from rueda.spark.batches import Batches
from rueda.spark.fitting import fit
from rueda.spark.prediction import predictor
from rueda.spark.rdds import as_frame
from rueda.torch.strategies.parsing import strategy_of

__all__ = ["SparkModel", "to_simple_rdd"]

_COLUMNS = ("features", "label")


class SparkModel:
    """Trains a module of torch on an RDD or a DataFrame, each rank on its partition.

    - ``mode`` and ``frequency``: ``"synchronous"`` with ``"batch"``, gradients are averaged in every step, or with
      ``"epoch"``, parameters are averaged after every epoch; ``"asynchronous"``, Elephas' default, as far as
      :func:`rueda.torch.wrap` has it. No parameters go through the driver but the result.
    - ``num_workers``: the number of ranks, by default ``spark.default.parallelism``.
    - ``optimizer``: makes the optimizer of parameters, such as ``functools.partial(torch.optim.SGD, lr=0.1)``.
      ``loss``: of the model's output and the labels. Modules of torch are not compiled with them, as those of Keras.

    ``training_histories`` has the mean loss of each epoch, for each call of :meth:`fit`.

    Raises :class:`rueda.InvalidArgumentError` and :class:`rueda.UnsupportedError` here for what cannot work.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mode: str = "asynchronous",
        frequency: str = "epoch",
        num_workers: int | None = None,
        batch_size: int = 32,
        *,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise UnsupportedError(
                f"SparkModel takes a torch.nn.Module, not a {type(model).__name__}: train others, such as those of "
                "Keras with rueda.keras, in a function for rueda.spark.fit()"
            )
        if frequency not in ("epoch", "batch"):
            raise InvalidArgumentError(f"frequency={frequency!r} is neither 'epoch' nor 'batch'")
        strategy_of(None, mode, frequency)  # raises for what there is not, before a job starts
        self.master_network = model
        self.training_histories: list[dict[str, list[float]]] = []
        self._mode, self._frequency = mode, frequency
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._optimizer = optimizer
        self._loss = loss

    def fit(
        self,
        data: RDD[Any] | DataFrame,
        epochs: int = 10,
        batch_size: int | None = None,
        verbose: int = 0,
        validation_split: float = 0.0,
    ) -> None:
        """Trains on pairs of features and labels: an RDD of tuples, or columns ``features`` and ``label``.

        Raises what :func:`rueda.spark.fit` raises. ``verbose`` prints the losses on the driver.
        """
        if validation_split:
            raise UnsupportedError(
                "validation_split= is not available: split the data with randomSplit(), and call evaluate()"
            )
        state, losses = fit(
            as_frame(data, _COLUMNS),
            _train,
            self._num_workers,
            columns=_COLUMNS,
            batch_size=self._batch_size if batch_size is None else batch_size,
            args=(self.master_network, self._optimizer, self._loss),
            kwargs={"mode": self._mode, "frequency": self._frequency, "epochs": epochs},
        )
        self.master_network.load_state_dict(state)
        self.training_histories.append({"loss": losses})
        for epoch, value in enumerate(losses if verbose else (), 1):
            print(f"epoch {epoch}: loss {value:.4f}")

    def predict(self, data: DataFrame | npt.NDArray[Any]) -> Any:
        """Of an array the model's output as an array; of a DataFrame one with a column ``prediction``, lists."""
        predict = predictor(self.master_network, then=_as_rows)
        if not isinstance(data, DataFrame):
            self.master_network.eval()
            with torch.no_grad():
                inputs = torch.from_numpy(np.array(data, np.float32))
                return self.master_network(inputs).numpy()
        added = StructField("prediction", ArrayType(FloatType()))
        return data.mapInArrow(predict, StructType([*data.schema.fields, added]))

    def evaluate(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
        """The loss on these, on the driver."""
        return float(self._loss(torch.from_numpy(self.predict(features)), _tensor(labels)))

    def save(self, file_name: str | os.PathLike[str]) -> None:
        """Writes the model's ``state_dict()`` as torch does."""
        torch.save(self.master_network.state_dict(), file_name)


def to_simple_rdd(
    sc: SparkContext, features: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> RDD[Any]:
    """An RDD of pairs of features and label."""
    return sc.parallelize(list(zip(features, labels, strict=True)))


def _train(
    batches: Batches,
    model: torch.nn.Module,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    mode: str,
    frequency: str,
    epochs: int,
) -> tuple[dict[str, Any], list[float]]:
    model.train()
    own = optimizer(model.parameters())
    shared = rueda.torch.wrap(model, own, mode=mode, frequency=frequency)
    losses = []
    for _ in range(epochs):
        told = np.zeros(2)  # the sum over batches, and their number
        for batch in batches:
            columns = arrays(batch)
            shared.zero_grad()
            value = loss(model(_tensor(columns["features"])), _tensor(columns["label"]))
            value.backward()  # type: ignore[no-untyped-call]
            shared.step()
            told += float(value.detach()), 1
        if frequency == "batch":
            batches.equalize(model, own)
        shared.end_epoch()
        total = rueda.allreduce(told, "rueda.spark.loss", rueda.Sum)
        losses.append(float(total[0] / max(total[1], 1)))
    shared.consolidate()
    return model.state_dict(), losses


def _tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """Reals as float32, as models have them; whole numbers as they are."""
    array = np.asarray(values)
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


def _as_rows(found: torch.Tensor) -> torch.Tensor:
    return found.reshape(len(found), -1)
