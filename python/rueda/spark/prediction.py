"""Applies a trained model to a DataFrame, without a barrier stage and without a world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import cloudpickle

from rueda.engines.given import function_of
from rueda.engines.pickling import pickled
from rueda.errors import InvalidArgumentError
from rueda.spark.arrays import arrays

__all__ = ["predictor"]


def predictor(
    model: Callable[..., Any],
    state: Any = None,
    *,
    column: str = "features",
    output: str = "prediction",
    then: Callable[[Any], Any] | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``df.mapInArrow(predictor(model, state), schema)``: appends a column of predictions to each batch.

    - ``model``: a torch module, which loads ``state`` with ``load_state_dict()`` and is evaluated without gradients, in
      batches of Spark's size; or any other callable that takes and returns a NumPy array.
    - ``column``: the input column, passed as float32. ``output``: the name of the appended column, with a number per
      row, or a list if the model returns several. ``then``: converts the model's result to that, such as
      ``lambda scores: scores.argmax(1)``.

    ``schema``: that of the DataFrame with the new column, such as ``"features array<double>, prediction bigint"``.

    Raises :class:`rueda.InvalidArgumentError` here for a model that cannot be pickled, and in Spark's job for a missing
    column and for a model that does not return one row per input row.
    """
    function_of("model", model)
    prediction = _Predictor(model, state, column, output, then)
    pickled(cloudpickle.dumps, "the model with its state", prediction)
    return prediction


@dataclass
class _Predictor:
    model: Callable[..., Any]
    state: Any
    column: str
    output: str
    then: Callable[[Any], Any] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predict = self._prepared()
        for batch in batches:
            if self.column not in batch.schema.names:
                raise InvalidArgumentError(
                    f"there is no column '{self.column}' to predict from; there are {', '.join(batch.schema.names)}"
                )
            inputs = arrays(batch.select([self.column]))[self.column]
            found = predict(np.asarray(inputs, np.float32))
            if found.ndim == 0 or len(found) != batch.num_rows:
                raise InvalidArgumentError(
                    f"the model has returned an array of shape {found.shape} for {batch.num_rows} rows: it must "
                    "return one row for each"
                )
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, _column(found)], names=[*batch.schema.names, self.output]
            )

    def _prepared(self) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]:
        then = self.then or (lambda found: found)
        if not hasattr(self.model, "load_state_dict"):
            return lambda inputs: np.asarray(then(self.model(inputs)))
        import torch

        if self.state is not None:
            self.model.load_state_dict(self.state)
        if isinstance(self.model, torch.nn.Module):
            self.model.eval()

        def predict(inputs: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
            with torch.no_grad():
                return np.asarray(then(self.model(torch.from_numpy(inputs))))

        return predict


def _column(found: npt.NDArray[Any]) -> pa.Array:
    if found.ndim == 1:
        return pa.array(found)
    rows = found.reshape(len(found), -1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(rows.ravel()))
