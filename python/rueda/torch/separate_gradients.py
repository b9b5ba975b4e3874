"""Gradients that are reduced one by one, each under its parameter's name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rueda.adapter import Refusal
from rueda.handles import Handle
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet
from rueda.submission import Collectives, refuse
from rueda.torch.buckets import Slot
from rueda.torch.compression import Compressor
from rueda.torch.tensors import TorchAdapter

__all__ = ["InFlight", "Reduction", "SeparateGradients", "Watched"]

_collectives = Collectives(TorchAdapter())


@dataclass(frozen=True)
class Reduction:
    """How gradients become one over the ranks."""

    op: ReduceOp
    predivide_factor: float
    process_set: ProcessSet

    def start(self, tensor: torch.Tensor, name: str) -> Handle[torch.Tensor]:
        """Begins to reduce a contiguous tensor in place."""
        factor = self.predivide_factor if self.op == Average else 1.0
        return _collectives.allreduce(
            tensor, name, self.op, 1.0 / factor, factor, self.process_set, in_place=True
        )

    def refuse(self, name: str, why: str, unsupported: bool = False) -> Handle[None]:
        """Makes the operation of this name fail on every rank."""
        return refuse(name, self.process_set, Refusal(why, unsupported))


@dataclass
class InFlight:
    """One gradient on its way by itself."""

    parameter: torch.Tensor
    handle: Handle[torch.Tensor] | Handle[None]
    wire: torch.Tensor | None  # what is reduced in place; None where the gradient was refused
    dtype: torch.dtype


class Watched:
    """A parameter and how far its gradient is."""

    __slots__ = ("in_flight", "name", "number", "parameter", "passes_left", "slot")

    def __init__(self, parameter: torch.Tensor, name: str, number: int, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.number = number  # in the order in which they were added
        self.passes_left = passes
        self.slot: Slot | None = None  # where the gradient lies, if in a bucket
        self.in_flight: InFlight | None = None  # while it is being reduced outside of one


class SeparateGradients:
    """Submits gradients by themselves, and receives them."""

    def __init__(self, prefix: str, compression: Compressor, reduction: Reduction) -> None:
        self._prefix = prefix
        self._compression = compression
        self._reduction = reduction

    def submit(self, watched: Watched) -> None:
        """Begins to reduce ``.grad``; nothing there counts as zeros."""
        parameter = watched.parameter
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        gradient = parameter.grad
        name = f"{self._prefix}/{watched.name}"
        if gradient.layout != torch.strided:
            why = "its gradient is sparse, which Rueda does not reduce: use sparse=False for the embedding"
            refused = self._reduction.refuse(name, why, unsupported=True)
            watched.in_flight = InFlight(parameter, refused, None, gradient.dtype)
            return
        wire, dtype = self._compression.compress(gradient.detach())
        wire = wire.contiguous()
        handle = self._reduction.start(wire, name)
        watched.in_flight = InFlight(parameter, handle, wire, dtype)

    def receive(self, gradients: Iterable[InFlight]) -> list[Exception]:
        """Waits for all of them, also after an error; returns what went wrong."""
        errors: list[Exception] = []
        for gradient in gradients:
            try:
                gradient.handle.result()
            except Exception as error:
                errors.append(error)
            else:
                self._take(gradient)
        return errors

    def _take(self, gradient: InFlight) -> None:
        parameter, wire = gradient.parameter, gradient.wire
        assert wire is not None
        if parameter.grad is None:  # taken away meanwhile
            parameter.grad = torch.zeros_like(parameter)
        if wire.data_ptr() == parameter.grad.data_ptr() and wire.numel() > 0:
            return  # was reduced in place
        with torch.no_grad():
            parameter.grad.copy_(self._compression.decompress(wire, gradient.dtype))
