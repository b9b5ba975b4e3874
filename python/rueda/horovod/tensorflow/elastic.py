"""Elastic training for TensorFlow and Keras: states that survive a failed step, and the loop that restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rueda.horovod.basics import rank
from rueda.horovod.elastic_state import ObjectState, State
from rueda.horovod.forming import run as run_again
from rueda.horovod.tensorflow.functions import broadcast_object, broadcast_variables
from rueda.horovod.tensorflow.host import recovered

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

P = ParamSpec("P")
T = TypeVar("T")


def run(func: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Decorates a training function, whose first argument is a state; see ``rueda.horovod.torch.elastic.run``.

    Failed collectives within ``tf.function`` and ``model.fit()`` also cause a restart.
    """
    return run_again(recovered(func))


class TensorFlowState(ObjectState):
    """TensorFlow variables and, as keyword arguments, Python objects. ``session`` has no effect.

    Example::

        >>> state = hvd.elastic.TensorFlowState(variables=[step], batch=0)  # doctest: +SKIP
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        if variables is None:
            raise ValueError(
                "TensorFlow 2 has no global variables: pass variables to TensorFlowState"
            )
        self.variables = list(variables)
        self._values: list[Any] = []
        self._save_variables()
        super().__init__(broadcast_object, rank, **kwargs)

    def save(self) -> None:
        """Saves the values of variables and objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Restores the last saved values."""
        for variable, value in zip(self._watched(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Broadcasts the values of rank 0 to every rank."""
        broadcast_variables(self._watched(), root_rank=0)
        self._save_variables()
        super().sync()

    def _watched(self) -> list[Any]:
        return self.variables

    def _save_variables(self) -> None:
        self._values = [variable.numpy().copy() for variable in self._watched()]


class TensorFlowKerasState(TensorFlowState):
    """A Keras model, its optimizer and, as keyword arguments, Python objects.

    ``optimizer``: the model's by default. ``backend`` has no effect. Raises ``ValueError`` if the model is not built.

    Example::

        >>> state = hvd.elastic.TensorFlowKerasState(model, epoch=0)  # doctest: +SKIP
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__((), **kwargs)

    def _watched(self) -> list[Any]:
        # Not model.variables: they include random generator states, which each rank keeps.
        optimizer = [] if self.optimizer is None else self.optimizer.variables
        return [*self.model.weights, *optimizer]
