"""`rueda bench train --doors`: compares the ways ("doors") to train, with Rueda and without.

Each door is its own job under `rueda run`, as a user would start it. What one door changes in its process, such as
malloc's limits, does not affect the others. One door at a time takes a few steps while the others sleep.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rueda.launcher.environment import without_identity

from ..arena import Arena
from ..contenders import Contender, Setting
from ..group import Command, Group
from ..progress import Progress
from ..wire import Message

# How each door exchanges gradients.
DOORS = {
    "alone": "no communication",
    "ddp-gloo": "DistributedDataParallel over gloo",
    "ddp-rueda": "DistributedDataParallel over rueda",
    "horovod": "rueda.horovod.torch.DistributedOptimizer",
    "optimizer": "rueda.torch.DistributedOptimizer",
}
# The largest relative difference in a parameter's norm that another order of summation may cause in so few steps.
TOLERANCE = 1e-4
# Models in which this difference grows from step to step, so that only the first step is compared. In conv, whose 40
# layers have no skip connections, it grows a thousandfold, in float64 as in float32.
_UNSTABLE = ("conv", "transformer")
_WARM_UP = 5
_CHUNK = 4  # steps per turn


@dataclass(frozen=True)
class Effort:
    """How long to measure one model: `rounds` rounds, or until `seconds` have passed, but at least one round."""

    rounds: int
    steps: int = _CHUNK
    warm_up: int = _WARM_UP
    seconds: float = 60.0


@dataclass
class _Turns:
    """One door's results."""

    group: Group
    seconds: list[float] = field(default_factory=list)  # per step, on the slowest rank
    faults: list[float] = field(default_factory=list)  # rank 0's page faults per step, by turn
    first_step: list[Message] = field(default_factory=list)  # each rank's learnt() after it

    def learnt(self) -> list[Message]:
        """Each rank's parameters: their digest and their norms."""
        ask: Mapping[str, object] = {"what": "learnt"}
        return self.group.ask([ask] * self.group.ranks, [b""] * self.group.ranks)

    def take(self, steps: int, counts: bool = True) -> None:
        ask: Mapping[str, object] = {"what": "steps", "count": steps}
        answers = self.group.ask([ask] * self.group.ranks, [b""] * self.group.ranks)
        if counts:
            times = [np.frombuffer(answer.payload) for answer in answers]
            self.seconds += np.max(times, axis=0).tolist()
            self.faults.append(answers[0].number("faults") / steps)


def _contender(door: str, model: str) -> Contender:
    def commands(setting: Setting) -> list[Command]:
        package = __package__ or "rueda.bench.train"
        order = {
            "door": door,
            "model": model,
            "address": setting.address,
            "token": setting.token,
            "store": str(setting.folder / "store"),
        }
        run = [sys.executable, "-m", package.split(".")[0], "run", "-np", str(setting.ranks)]
        rank = [sys.executable, "-m", f"{package}.door_rank", json.dumps(order)]
        # Otherwise gloo looks up the host's name, which may not resolve to an address.
        environment = {"GLOO_SOCKET_IFNAME": "lo", **without_identity(os.environ)}
        return [Command([*run, "--no-mpi", "--", *rank], environment)]

    return Contender(door, commands)


def measure_doors(
    model: str, ranks: int, doors: Sequence[str], effort: Effort, progress: Progress
) -> dict[str, Any]:
    """Measures one model with all doors. Raises GroupFailed."""
    with Arena(ranks) as arena:
        turns: dict[str, _Turns] = {}
        for door in doors:
            progress.tell(f"{model}, {ranks} ranks: starting {door}", 0)
            turns[door] = _Turns(arena.start(_contender(door, model)))
        for door, turn in turns.items():
            progress.tell(f"{model}, {ranks} ranks: warming up {door}", 0)
            turn.take(1, counts=False)
            turn.first_step = turn.learnt()
            turn.take(effort.warm_up - 1, counts=False)
        deadline = time.monotonic() + effort.seconds
        done = 0
        while done < effort.rounds and (done == 0 or time.monotonic() < deadline):
            first = done % len(turns)
            names = list(turns)
            for door in [*names[first:], *names[:first]]:
                progress.tell(f"{model}, {ranks} ranks: round {done + 1}, {door}", 0)
                turns[door].take(effort.steps)
            done += 1
        progress.tell(f"{model}, {ranks} ranks", 1)
        return _found(model, ranks, turns)


def _found(model: str, ranks: int, turns: Mapping[str, _Turns]) -> dict[str, Any]:
    learnt = {name: turn.learnt() for name, turn in turns.items()}
    wrong = [
        f"{name}: the ranks' parameters differ"
        for name, answers in learnt.items()
        if name != "alone" and len({answer.values["digest"] for answer in answers}) > 1
    ]
    wrong += _differences({name: turn.first_step for name, turn in turns.items()}, "one step")
    if model not in _UNSTABLE:
        wrong += _differences(learnt, "all steps")
    any_answer = next(iter(learnt.values()))[0]
    facts = next(iter(turns.values())).group.facts
    return {
        "model": model,
        "ranks": ranks,
        "threads": int(facts["threads"]),
        "torch": facts["torch"],
        "tensors": any_answer.number("tensors"),
        "bytes": any_answer.number("bytes"),
        "wrong": wrong,
        "results": _results(turns),
    }


def _differences(learnt: Mapping[str, Sequence[Message]], steps: str) -> list[str]:
    """Lists the doors whose parameters differ from those of the first door that communicates."""
    norms = {
        name: np.frombuffer(answers[0].payload)
        for name, answers in learnt.items()
        if name != "alone"
    }
    first = next(iter(norms), "")
    wrong = []
    for name, norm in norms.items():
        difference = float(np.max(np.abs(norm - norms[first]) / (norms[first] + 1e-6)))
        if not difference <= TOLERANCE:
            wrong.append(
                f"{name}: after {steps} parameters differ from those of {first}, {difference:.1e}"
            )
    return wrong


def _results(turns: Mapping[str, _Turns]) -> dict[str, dict[str, float]]:
    medians = {name: 1e3 * float(np.median(turn.seconds)) for name, turn in turns.items()}
    best = min((value for name, value in medians.items() if name != "alone"), default=0.0)
    results = {}
    for name, turn in turns.items():
        low, high = np.percentile(turn.seconds, [10, 90])
        results[name] = {
            "median_ms": medians[name],
            "p10_ms": 1e3 * float(low),
            "p90_ms": 1e3 * float(high),
            "steps": len(turn.seconds),
            "page_faults": float(np.median(turn.faults)),
        }
        if "alone" in medians:
            results[name]["exposed_ms"] = medians[name] - medians["alone"]
        if name != "alone":
            results[name]["of_best"] = medians[name] / best
    return results
