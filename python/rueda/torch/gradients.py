"""Reduces gradients while the backward pass goes on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet
from rueda.submission import Collectives, refuse
from rueda.torch.compression import Compressor
from rueda.torch.tensors import TorchAdapter

__all__ = ["GradientReducer"]

_collectives = Collectives(TorchAdapter())
_reducers = itertools.count()


@dataclass
class _InFlight:
    """One gradient on its way."""

    handle: Handle[torch.Tensor] | Handle[None]
    wire: torch.Tensor | None  # what is reduced in place; None where the gradient was refused
    dtype: torch.dtype


class GradientReducer:
    """Submits each parameter's gradient as soon as backward has accumulated it, and waits for all of them.

    A parameter's gradient is submitted after ``passes`` backward passes since the last synchronize(), as what they
    have summed up in ``.grad``.
    """

    def __init__(
        self,
        compression: Compressor,
        passes: int,
        op: ReduceOp,
        predivide_factor: float,
        process_set: ProcessSet,
    ) -> None:
        # Optimizers that live side by side must not meet under one name. Ranks create them in the same order.
        number = next(_reducers)
        self._prefix = "gradient" if number == 0 else f"gradient.{number}"
        self._compression = compression
        self._op = op
        self._prescale = 1.0 / predivide_factor if op == Average else 1.0
        self._postscale = predivide_factor if op == Average else 1.0
        self.process_set = process_set
        self._names: dict[torch.Tensor, str] = {}
        self._passes_left: dict[torch.Tensor, int] = {}
        self._in_flight: dict[torch.Tensor, _InFlight] = {}
        self.passes = passes
        self.synchronized = False  # nothing has changed since synchronize()

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Watches a parameter from now on."""
        self._names[parameter] = name
        self._passes_left[parameter] = self.passes
        if parameter.requires_grad:
            parameter.register_hook(lambda _: self._before_accumulation(parameter))  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def names(self) -> Sequence[str]:
        """The watched parameters' names."""
        return list(self._names.values())

    def in_flight(self) -> list[str]:
        """Names of the parameters whose gradients are on their way."""
        return [self._names[parameter] for parameter in self._in_flight]

    def start_over(self) -> None:
        """Counts backward passes from zero again."""
        self.synchronized = False
        for parameter in self._passes_left:
            self._passes_left[parameter] = self.passes

    def synchronize(self) -> None:
        """Submits what this rank has no gradient for, as zeros, then waits until every ``.grad`` is reduced."""
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._in_flight:
                self._submit(parameter)
        in_flight, self._in_flight = self._in_flight, {}
        self.start_over()
        # All are waited for, also after an error: none may change a gradient once this has returned.
        errors: list[Exception] = []
        for parameter, reduction in in_flight.items():
            try:
                reduction.handle.result()
            except Exception as error:
                errors.append(error)
            else:
                self._receive(parameter, reduction)
        if errors:
            raise errors[0]
        self.synchronized = True

    def _before_accumulation(self, parameter: torch.Tensor) -> None:
        """Refuses to add to a gradient that is being reduced."""
        if self._passes_left[parameter] <= 0:
            raise InvalidArgumentError(
                f"the gradient of '{self._names[parameter]}' was computed more often than "
                f"backward_passes_per_step={self.passes} before step() or synchronize(): a larger "
                f"backward_passes_per_step accumulates gradients first"
            )

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self.synchronized = False
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._submit(parameter)

    def _submit(self, parameter: torch.Tensor) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        gradient = parameter.grad
        name = f"{self._prefix}/{self._names[parameter]}"
        if gradient.layout != torch.strided:
            why = "its gradient is sparse, which Rueda does not reduce: use sparse=False for the embedding"
            handle = refuse(name, self.process_set, Refusal(why, unsupported=True))
            self._in_flight[parameter] = _InFlight(handle, None, gradient.dtype)
            return
        wire, dtype = self._compression.compress(gradient.detach())
        wire = wire.contiguous()
        self._in_flight[parameter] = _InFlight(
            _collectives.allreduce(
                wire,
                name,
                self._op,
                self._prescale,
                self._postscale,
                self.process_set,
                in_place=True,
            ),
            wire,
            dtype,
        )

    def _receive(self, parameter: torch.Tensor, reduction: _InFlight) -> None:
        assert reduction.wire is not None
        if parameter.grad is None:  # taken away meanwhile
            parameter.grad = torch.zeros_like(parameter)
        if reduction.wire.data_ptr() == parameter.grad.data_ptr() and reduction.wire.numel() > 0:
            return  # was reduced in place
        with torch.no_grad():
            parameter.grad.copy_(self._compression.decompress(reduction.wire, reduction.dtype))
