"""Models, optimizers and samplers that survive a failed step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from rueda.horovod import elastic_state
from rueda.horovod.basics import rank
from rueda.horovod.torch.elastic.sampler import ElasticSampler
from rueda.horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class ObjectState(elastic_state.ObjectState):
    """Python objects as attributes, by keyword; ``bcast_object`` and ``get_rank`` are hvd's by default.

    Example::

        >>> state = hvd.elastic.ObjectState(epoch=0)
        >>> state.epoch = 1
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank, **kwargs)


class StateHandler:
    """How one value is saved, restored and synchronised: the base of an application's own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings the copy back."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes it what rank 0 has."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handles another value from now on."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """For values with ``state_dict()``, which is saved when the handler is made."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        """Keeps a copy."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Brings the copy back."""
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """For ``torch.nn.Module``."""

    def sync(self) -> None:
        """Broadcasts parameters and buffers."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """For ``torch.optim.Optimizer``."""

    def sync(self) -> None:
        """Broadcasts the state and hyperparameters."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """For :class:`ElasticSampler`."""

    def sync(self) -> None:
        """Broadcasts how far rank 0 is."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which class handles values of which type; the first that fits counts.

    Example::

        hvd.elastic.state.get_handler_registry().append((MyState, MyStateHandler))
    """
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces what get_handler_registry() returns."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """A model, an optimizer, samplers and other objects, each as an attribute of its name.

    What has a handler (see :func:`get_handler_registry`) is saved by its ``state_dict()``; other values as they are.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0)
        >>> state.batch = 5
        >>> state.commit()
        >>> state.restore()
        >>> state.batch
        5
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {**kwargs, "model": model, "optimizer": optimizer}
        handlers = {name: _handler_of(value) for name, value in values.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler}
        plain = {name: value for name, value in values.items() if name not in self._handlers}
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        super().__init__(**plain)

    def save(self) -> None:
        """Keeps copies of everything."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Brings back what was saved last. Gradients that are being reduced are forgotten."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Makes everything what rank 0 has."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Deals samples out to the ranks of the new world."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
