"""scikit-learn's digits, which engines train, and a linear classifier for engines without models.

Not every environment has scikit-learn: DIGITS names a file of the digits, which the tests write.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import rueda

TRAINED = 1408  # whole steps of 32; the rest is held out
_STEPS, _RATE = 60, 2.0


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Returns all images, scaled to 0 to 1, and their labels."""
    if path := os.environ.get("DIGITS"):
        found = np.load(path)
        images, labels = found["images"], found["labels"]
    else:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
    return images / 16, labels


def with_bias(images: np.ndarray) -> np.ndarray:
    """Appends a 1 to each image."""
    return np.hstack([images, np.ones((len(images), 1))])


def gradient_of(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the gradient of a linear classifier's cross entropy."""
    raised = np.exp(with_bias(images) @ weights)
    share = raised / raised.sum(1, keepdims=True)
    gradient: np.ndarray = with_bias(images).T @ (share - np.eye(10)[labels]) / len(images)
    return gradient


def accuracy_of(weights: np.ndarray) -> float:
    """Returns the percentage of correct labels on the held-out images."""
    images, _ = samples()
    scores = with_bias(images[TRAINED:]) @ weights
    return right(scores.argmax(1))


def right(found: np.ndarray) -> float:
    """Returns the percentage of ``found`` that match the held-out labels."""
    return float((found == samples()[1][TRAINED:]).mean() * 100)


def trained_by(rank: int, size: int, rate: float = _RATE, process_set: Any = None) -> np.ndarray:
    """Trains on every ``size``-th image from ``rank``, all ranks together; returns the weights."""
    images, labels = samples()
    mine = slice(rank, TRAINED, size)
    options = {} if process_set is None else {"process_set": process_set}
    weights = np.zeros((65, 10))
    for _ in range(_STEPS):
        gradient = gradient_of(weights, images[mine], labels[mine])
        weights -= rate * rueda.allreduce(gradient, "gradient", **options)
    return weights


def learned(process_set: Any = None) -> float:
    """Returns the accuracy that all ranks, or those of a process set, reach together."""
    ranks = rueda if process_set is None else process_set
    return accuracy_of(trained_by(ranks.rank(), ranks.size(), process_set=process_set))


def require_trained_as_by_one() -> None:
    """On all ranks: checks that together they reach the same as each other, and as each alone."""
    together = learned()
    assert set(rueda.allgather_object(together)) == {together}
    alone = [rueda.add_process_set([rank]) for rank in range(rueda.size())]
    require_as_good(together, learned(alone[rueda.rank()]))


def learned_alone() -> float:
    """Returns the accuracy that this process reaches alone. For processes that are no ranks."""
    with rueda.world(0, 1):
        return learned()


def require_as_good(several: float, one: float) -> None:
    """Compares the accuracies in percent of several ranks and of one; both must have learned."""
    print("accuracy", several, one, flush=True)
    assert min(several, one) > 85
    assert abs(several - one) <= 0.5
