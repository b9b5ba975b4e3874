"""Records of trainings as the judge gets them, made of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rueda.equivalence.record_files import Layout, RankRecord, loss_cell, record_of

Array = NDArray[np.float64]


def recorded(
    states: Mapping[str, Array],
    losses: Sequence[float | None] = (),
    rank: int = 0,
    results: Mapping[str, float] | None = None,
    eps: float = 2.0**-23,
) -> RankRecord:
    """``states``: of each tensor, which has at most 32 elements, (R, n); the last is that of the end as well.

    A step whose loss is None has none.
    """
    names = tuple(states)
    layout = Layout(names, tuple(states[name].shape[1] for name in names), (eps,) * len(names))
    count = len(next(iter(states.values())))
    rows = np.zeros((count + 1, layout.width))
    for number in range(count + 1):
        row = min(number, count - 1)
        rows[number, Layout.STEP] = row
        for name, place in layout.places.items():
            values = np.ascontiguousarray(states[name][row])
            digest = hashlib.blake2b(values.tobytes(), digest_size=8).digest()
            rows.view(np.int64)[number, place.start] = int.from_bytes(digest, "little", signed=True)
            rows[number, place.start + 1] = np.linalg.norm(values)
            rows[number, place.start + 2 : place.stop] = values
    steps = np.zeros((count, Layout.HEAD))
    steps[:, Layout.STEP] = np.arange(count)
    told = losses or [1.0] * (count - 1)
    steps[:, Layout.LOSS] = [
        np.nan,
        *(np.nan if each is None else loss_cell(each) for each in told),
    ]
    steps[:, Layout.SECONDS] = np.arange(count) * 0.5
    steps[:, Layout.BYTES] = np.arange(count) * 100.0
    metrics = [
        {"name": name, "value": value, "step": count - 1, "result": True}
        for name, value in (results or {}).items()
    ]
    return record_of(rank, layout, steps, rows, metrics, frozenset({"seed"}))


def training(seed: int, steps: int = 20, moved: float = 0.0, by: int = 0) -> dict[str, Array]:
    """A linear model that is fitted: tensors "weight" and "bias" after each step, moved at random by so much."""
    rng = np.random.default_rng(seed)
    noise = np.random.default_rng([seed, by])
    weight, bias = rng.normal(size=8), rng.normal(size=3)
    found: dict[str, list[Array]] = {"weight": [], "bias": []}
    for _ in range(steps + 1):
        found["weight"].append(weight.copy())
        found["bias"].append(bias.copy())
        weight = 0.9 * weight + 0.1 * rng.normal(size=8)
        bias = 0.9 * bias + 0.1 * rng.normal(size=3)
        weight *= 1 + moved * noise.uniform(-1, 1, size=8)
        bias *= 1 + moved * noise.uniform(-1, 1, size=3)
    return {name: np.stack(rows) for name, rows in found.items()}
