"""The learners of Elephas' interface: a model with its optimizer, on ranks and on the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

import rueda.torch
from rueda import lifecycle
from rueda.objects import allgather_object
from rueda.spark.arrays import arrays
from rueda.spark.batches import Batches

__all__ = ["Learner", "TorchLearner", "tensor", "train"]

Logs = dict[str, float]


class Learner(Protocol):
    """A picklable model of any library."""

    def start(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """On a rank: the model and its optimizer."""

    def diverge(self, rank: int) -> None:
        """On a rank, when all have the same model: gives each rank except 0 random numbers of its own."""

    def begin_epoch(self) -> None:
        """On a rank, at the start of an epoch."""

    def loss(
        self, features: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Logs]:
        """On a rank: the loss to differentiate, the loss to report, and the metrics' means so far in this epoch."""

    def end_epoch(self) -> None:
        """On all ranks, at the end of an epoch; may be collective."""

    def state_dict(self) -> dict[str, Any]:
        """On a rank: the tensors of the model, and of an optimizer that is not torch's own."""

    def weights(self) -> Any:
        """On a rank: the weights for :meth:`take` on the driver."""

    def take(self, weights: Any) -> None: ...

    def predict(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]: ...

    def predicting(self) -> Callable[..., Any]:
        """The model in the form that :func:`rueda.spark.predictor` takes."""

    def evaluate(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any: ...

    def save(self, file_name: str | os.PathLike[str]) -> None: ...


@dataclass
class TorchLearner:
    """A torch module, with a function that creates its optimizer from the parameters."""

    model: torch.nn.Module
    optimizer: Callable[[Any], torch.optim.Optimizer]
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def start(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self.model.train()
        return self.model, self.optimizer(self.model.parameters())

    def diverge(self, rank: int) -> None:
        pass  # draws from torch's generator, which train() seeds by rank

    def begin_epoch(self) -> None:
        pass

    def loss(
        self, features: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Logs]:
        value = self.criterion(self.model(features), labels)
        return value, value, {}

    def end_epoch(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def weights(self) -> Any:
        return self.model.state_dict()

    def take(self, weights: Any) -> None:
        self.model.load_state_dict(weights)

    def predict(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self.model.eval()
        with torch.no_grad():
            found: npt.NDArray[Any] = self.model(torch.from_numpy(features)).numpy()
        return found

    def predicting(self) -> Callable[..., Any]:
        return self.model

    def evaluate(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any:
        return float(self.criterion(torch.from_numpy(self.predict(features)), tensor(labels)))

    def save(self, file_name: str | os.PathLike[str]) -> None:
        torch.save(self.model.state_dict(), file_name)


def train(
    batches: Batches, learner: Learner, *, mode: str, frequency: str, epochs: int, seed: int
) -> tuple[Any, dict[str, list[float]]]:
    """Trains on each rank; returns the weights, and the means of each epoch over all ranks' batches.

    ``seed``: the base seed of random numbers, such as dropout's, from which each rank derives its own.
    """
    model, own = learner.start()
    shared = rueda.torch.wrap(model, own, mode=mode, frequency=frequency)
    torch.manual_seed(seed + lifecycle.rank())
    learner.diverge(lifecycle.rank())
    history: dict[str, list[float]] = {}
    for _ in range(epochs):
        seen = _Epoch()
        learner.begin_epoch()
        for batch in batches:
            columns = arrays(batch)
            shared.zero_grad()
            features, labels = tensor(columns["features"]), tensor(columns["label"])
            scaled, value, means = learner.loss(features, labels)
            scaled.backward()  # type: ignore[no-untyped-call]
            shared.step()
            seen.add(float(value.detach()), means)
        if frequency == "batch":
            batches.equalize(learner, own)
        shared.end_epoch()
        learner.end_epoch()
        for name, mean in _means(allgather_object(seen, "rueda.spark.epoch")).items():
            history.setdefault(name, []).append(mean)
    shared.consolidate()
    return learner.weights(), history


@dataclass
class _Epoch:
    """A rank's totals of an epoch."""

    count: int = 0
    loss: float = 0.0
    means: Logs = field(default_factory=dict)

    def add(self, loss: float, means: Logs) -> None:
        self.count, self.loss, self.means = self.count + 1, self.loss + loss, means


def _means(ranks: list[_Epoch]) -> Mapping[str, float]:
    """The means over the batches of all ranks."""
    count = max(1, sum(each.count for each in ranks))
    names = dict.fromkeys(name for each in ranks for name in each.means)
    rest = {n: sum(e.count * e.means.get(n, 0.0) for e in ranks) / count for n in names}
    return {"loss": sum(each.loss for each in ranks) / count, **rest}


def tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """Floats as float32, the usual dtype of models; other numbers as int64."""
    array = np.asarray(values)
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))
