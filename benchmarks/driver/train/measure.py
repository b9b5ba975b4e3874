"""Lets contenders take turns, and compares the parameters that they have learnt."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rueda.torch as rueda
import torch
from rueda import allreduce as allreduce_array

from .contenders import Contender, make_contender
from .models import Training

# The largest difference that another order of summation may cause in float32 in so few steps.
TOLERANCE = 1e-4
WARM_UP = 3

Times = dict[str, list[float]]


def take_turns(
    actions: Mapping[str, Callable[[], float]], rounds: int, steps: int, warm_up: int = WARM_UP
) -> Times:
    """Returns the time of each step on the slowest rank, in seconds. Collective.

    In each round every contender takes ``steps`` steps, and a different one goes first. Ranks start each step together.
    """
    names = list(actions)
    for name in names:
        for _ in range(warm_up):
            actions[name]()
    local: Times = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            for _ in range(steps):
                rueda.barrier()
                local[name].append(actions[name]())
    slowest = allreduce_array(np.array([local[name] for name in names]), op=rueda.Max)
    return {name: row.tolist() for name, row in zip(names, slowest, strict=True)}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and spread, in milliseconds."""
    low, high = np.percentile(seconds, [10, 90])
    return {
        "median_ms": 1e3 * statistics.median(seconds),
        "p10_ms": 1e3 * float(low),
        "p90_ms": 1e3 * float(high),
        "steps": len(seconds),
    }


def measure_training(
    training: Training, names: Sequence[str], rounds: int, steps: int, bucket_bytes: int
) -> dict[str, Any]:
    """A collective call. Returns the same on every rank."""
    contenders = {name: make_contender(name, training, bucket_bytes) for name in names}
    times = take_turns({name: c.step for name, c in contenders.items()}, rounds, steps)
    alone = statistics.median(times["none"])
    parameters = list(contenders["none"].module.parameters())
    results: dict[str, Any] = {}
    for name, seconds in times.items():
        results[name] = summary(seconds)
        results[name]["exposed_ms"] = 1e3 * (statistics.median(seconds) - alone)
    return {
        "tensors": len(parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
        "results": results,
        "wrong": _wrong(contenders),
    }


def _wrong(contenders: Mapping[str, Contender]) -> list[str]:
    """Lists what is wrong with the learnt parameters. Collective."""
    wrong = []
    learnt = {
        name: [p.detach() for p in contender.module.parameters()]
        for name, contender in contenders.items()
        if name != "none"
    }
    for name, tensors in learnt.items():
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.numpy().tobytes())
        if len(set(rueda.allgather_object(digest.hexdigest()))) > 1:
            wrong.append(f"{name}: the ranks' parameters differ")
    reference = "ddp" if "ddp" in learnt else next(iter(learnt), None)
    for name, tensors in learnt.items():
        difference = max(
            (
                float((a - b).abs().max())
                for a, b in zip(tensors, learnt[reference or name], strict=True)
            ),
            default=0.0,
        )
        if not difference <= TOLERANCE:
            wrong.append(f"{name}: parameters differ from those of {reference} by {difference:.1e}")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            wrong.append(f"{name}: parameters are not finite")
    return wrong
