"""Models, optimizers and samplers that survive a failed step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from rueda.horovod import elastic_state
from rueda.horovod.basics import rank
from rueda.horovod.torch.elastic.sampler import ElasticSampler
from rueda.horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from rueda.process_sets import global_process_set
from rueda.torch.model_tensors import caches_in_common, caches_of, tensors_of

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
    """Python objects, given by keyword and kept as attributes; ``bcast_object`` and ``get_rank`` default to hvd's.

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
    """Saves, restores and synchronises one value; base class of custom handlers."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings the copy back."""
        raise NotImplementedError

    def sync(self) -> None:
        """Broadcasts the value of rank 0."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Replaces the value and saves the new one."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """For values with ``state_dict()``, which is first saved at construction."""

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
        """Broadcasts parameters, buffers and the extra state of modules.

        Buffers that are not persistent and differ in shape between ranks stay.
        """
        module = self.value
        caches = caches_in_common(caches_of(module), "elastic.caches", global_process_set)
        broadcast_parameters({**tensors_of(module), **caches}, root_rank=0)
        extra = broadcast_object(_extra_state_of(module), root_rank=0)
        if extra and rank() != 0:
            module.load_state_dict({**module.state_dict(), **extra})
        self.save()


def _extra_state_of(module: torch.nn.Module) -> dict[str, Any]:
    state = module.state_dict()
    return {name: each for name, each in state.items() if name.endswith(_EXTRA_STATE_KEY_SUFFIX)}


class OptimizerStateHandler(_StateDictHandler):
    """For ``torch.optim.Optimizer``."""

    def restore(self) -> None:
        """Brings the copy back."""
        if hasattr(self.value, "give_up_step"):  # DistributedOptimizer(reproducible=True)
            self.value.give_up_step()
        super().restore()

    def sync(self) -> None:
        """Broadcasts the state and hyperparameters."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """For :class:`ElasticSampler`."""

    def sync(self) -> None:
        """Broadcasts the progress of rank 0."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Returns pairs of value type and handler class; the first match applies.

    Example::

        hvd.elastic.state.get_handler_registry().append((MyState, MyStateHandler))
    """
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the handler registry."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """A model, an optimizer, samplers and other objects, each as an attribute of its name.

    Values with a handler (see :func:`get_handler_registry`) are saved by it; other values are saved by reference.

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
        """Saves everything: copies of handled values, references to others."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Restores the last saved values. Gradients that are still being reduced are discarded."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Broadcasts everything from rank 0."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Redistributes samples, and leaves of reproducible training, over the ranks of the new world."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
            elif hasattr(handler.value, "divide_anew"):
                handler.value.divide_anew()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
