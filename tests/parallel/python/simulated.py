"""Simulates P workers in one process: plain torch, no communication."""

from __future__ import annotations

import copy
from collections.abc import Callable

import rueda
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import Make, Optimizer, batch, model, share

Hook = Callable[[int, "Workers"], None]


def nothing(step: int, workers: Workers) -> None:
    """Does nothing, as a hook."""


class Workers:
    """One model per rank, each trained on that rank's share."""

    def __init__(self, make: Make) -> None:
        self.count = rueda.size()
        self.models = [model() for _ in range(self.count)]
        self.optimizers: list[Optimizer] = [make(list(each.parameters())) for each in self.models]
        self.batches = 0

    @property
    def vectors(self) -> list[torch.Tensor]:
        """Each worker's parameters as one vector."""
        return [parameters_to_vector(each.parameters()).detach().clone() for each in self.models]

    @vectors.setter
    def vectors(self, vectors: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for each, vector in zip(self.models, vectors, strict=True):
                vector_to_parameters(vector.clone(), each.parameters())

    def set_all(self, vector: torch.Tensor) -> None:
        """Sets all workers' parameters to the same vector."""
        self.vectors = [vector] * self.count

    def average(self) -> None:
        """Sets all workers' parameters to their mean."""
        self.set_all(torch.stack(self.vectors).mean(0))

    def backward(self, step: int) -> None:
        """Computes the gradients of each worker's share."""
        x, y = batch(step)
        for each, own_x, own_y in zip(
            self.models, x.chunk(self.count), y.chunk(self.count), strict=True
        ):
            each.zero_grad()
            F.cross_entropy(each(own_x), own_y).backward()

    def average_gradients(self) -> None:
        """Sets all workers' gradients to their mean."""
        for together in zip(*(each.parameters() for each in self.models), strict=True):
            mean = torch.stack([each.grad for each in together]).mean(0)
            for each in together:
                each.grad = mean.clone()

    def average_state(self, *names: str) -> None:
        """Sets these entries of all optimizers' states to their mean."""
        for together in zip(*(each.parameters() for each in self.models), strict=True):
            for name in names:
                kept = [
                    optimizer.state[each][name]
                    for optimizer, each in zip(self.optimizers, together, strict=True)
                ]
                mean = torch.stack(kept).mean(0)
                for each in kept:
                    each.copy_(mean)

    def train(self, steps: int, before: Hook = nothing, after: Hook = nothing) -> None:
        """Trains all workers; hooks get the step's number, from 1 on, and the workers."""
        for step in range(1, steps + 1):
            self.backward(self.batches)
            self.batches += 1
            before(step, self)
            for each in self.optimizers:
                each.step()
            after(step, self)

    def mine(self) -> nn.Module:
        """The model of this rank's worker."""
        return self.models[rueda.rank()]


def train(trained: nn.Module, wrapped: Optimizer, first: int, steps: int) -> None:
    """The usual loop: this rank's share of ``steps`` batches, starting at number ``first``."""
    for step in range(first, first + steps):
        x, y = batch(step)
        wrapped.zero_grad()
        F.cross_entropy(trained(share(x)), share(y)).backward()
        wrapped.step()


def fresh(make: Make, seed: int = 1) -> tuple[nn.Module, Optimizer]:
    """The workers' initial model, with an optimizer."""
    trained = copy.deepcopy(model(seed))
    return trained, make(list(trained.parameters()))
