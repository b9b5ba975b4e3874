"""Compiled Keras 3 models on the torch backend, for Elephas' interface."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import rueda
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.spark.learners import Logs
from rueda.variables import set_variables

__all__ = ["KerasLearner", "is_keras_model"]

# Distance between the seeds of two ranks. Keras adds the number of each draw to the seed, so close seeds would overlap.
_FAR = 0x9E3779B1


def is_keras_model(model: object) -> bool:
    """Whether ``model`` is a Keras model. Does not import Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, getattr(keras, "Model", ()))


class KerasLearner:
    """A compiled model with the optimizer, loss and metrics it was compiled with.

    ``custom_objects``: classes and functions by name that Keras needs to load it on other ranks.

    Raises :class:`rueda.UnsupportedError` for a backend other than torch and for a model with its own ``train_step()``,
    and :class:`rueda.InvalidArgumentError` for a model that is not compiled or has no weights yet.
    """

    def __init__(self, model: Any, custom_objects: Mapping[str, Any] | None = None) -> None:
        import keras

        backend = keras.backend.backend()
        if backend != "torch":
            raise UnsupportedError(
                f"SparkModel trains models of Keras on its backend torch, and this process has {backend}: set "
                "KERAS_BACKEND=torch before keras is imported, or train with rueda.keras in a function for "
                "rueda.spark.fit()"
            )
        if type(model).train_step is not keras.Model.train_step:
            raise UnsupportedError(
                f"SparkModel takes the steps itself, and {type(model).__name__} has a train_step() of its own, which "
                "it would not call: train with rueda.keras in a function for rueda.spark.fit()"
            )
        if not model.compiled:
            raise InvalidArgumentError(
                "the model of Keras is not compiled: call compile() with an optimizer and a loss first"
            )
        if not model.built:
            raise InvalidArgumentError(
                "the model of Keras has no weights yet: begin it with a keras.Input, or call build()"
            )
        self.model = model
        self._custom_objects = dict(custom_objects or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (pickle.dumps(self.model), self._custom_objects)

    def start(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self.model.optimizer.build(self.model.trainable_variables)
        return self.model, _KerasOptimizer(self.model)

    def diverge(self, rank: int) -> None:
        # The model's variables besides its weights are states of its random generators: a seed and a count.
        weights = {id(each) for each in self.model.weights}
        for each in self.model.variables:
            if id(each) not in weights:
                seed, count = each.value.tolist()
                each.assign(np.array([(seed + rank * _FAR) % 2**31, count], np.int32))

    def begin_epoch(self) -> None:
        self.model.reset_metrics()

    def loss(
        self, features: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Logs]:
        given = {"training": True} if self.model._call_has_training_arg else {}
        found = self.model(features, **given)
        value = self.model.compute_loss(x=features, y=labels, y_pred=found, training=True)
        told = self.model.compute_metrics(features, labels, found)
        means = {name: float(each) for name, each in told.items() if name != "loss"}
        return self.model.optimizer.scale_loss(value), value, means

    def end_epoch(self) -> None:
        """Averages the moving statistics of normalization layers, which no optimizer sees, over all ranks."""
        # By layer: model.non_trainable_variables also contains the frozen weights.
        own = [
            each
            for layer in self.model._flatten_layers()
            for each in layer._non_trainable_variables
        ]
        for number, variable in enumerate(own):
            if variable.value.is_floating_point():
                value = variable.value.detach().cpu().numpy()
                variable.assign(
                    rueda.allreduce(value, f"rueda.spark.statistics.{number}", rueda.Average)
                )

    def state_dict(self) -> dict[str, Any]:
        variables = [*self.model.weights, *self.model.optimizer.variables]
        return {f"{number}": each.value.data for number, each in enumerate(variables)}

    def weights(self) -> Any:
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        return self.model.get_weights()

    def take(self, weights: Any) -> None:
        self.model.set_weights(weights)

    def predict(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(self.model.predict(features, verbose=0))

    def predicting(self) -> Callable[..., Any]:
        return self

    def __call__(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(self.model.predict_on_batch(features))

    def evaluate(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any:
        """The loss, or a list of the loss and the metrics, as Keras returns it."""
        return self.model.evaluate(features, labels, verbose=0)

    def save(self, file_name: str | os.PathLike[str]) -> None:
        self.model.save(os.fspath(file_name))


def _restored(content: bytes, custom_objects: Mapping[str, Any]) -> KerasLearner:
    """Unpickles in a worker, whose environment may name no backend or another one."""
    with set_variables({"KERAS_BACKEND": "torch"}):
        import keras
    with keras.saving.custom_object_scope(custom_objects):
        return KerasLearner(pickle.loads(content), custom_objects)


class _KerasOptimizer(torch.optim.Optimizer):
    """A model's Keras optimizer as a torch optimizer; its state stays in Keras' variables."""

    def __init__(self, model: Any) -> None:
        self._model = model
        super().__init__([each.value for each in model.trainable_variables], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        variables = self._model.trainable_variables
        self._model.optimizer.apply([each.value.grad for each in variables], variables)
