"""What happens to the ranks of a world and when: derived from a seed, so it can be repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What the ranks do when a blow comes: idle mostly, small operations, large ones, or a mix.
PHASES = ("idle", "small", "large", "mixed")


@dataclass(frozen=True)
class Blow:
    """An action against ranks of a world."""

    kind: str  # one of KINDS
    # Process numbers: ranks of the first world, then processes started later; empty for `launcher`.
    victims: tuple[int, ...]
    delay: float  # seconds after the world last went on
    gap: float = 0.0  # seconds between the first and the second victim
    bursts: tuple[float, ...] = ()  # each stop of the victim, in heartbeats

    def __str__(self) -> str:
        """Formats the blow for the log."""
        names = "+".join(map(str, self.victims))
        return f"{self.kind}({names}) after {self.delay * 1e3:.0f} ms" + (
            f", {self.gap * 1e3:.1f} ms apart" if self.gap else ""
        )


@dataclass(frozen=True)
class World:
    """A job and its blows, in order."""

    number: int
    ranks: int
    phase: str
    seed: int
    blows: tuple[Blow, ...]

    @property
    def is_replaced(self) -> bool:
        """Whether a new process replaces each lost one."""
        return any(blow.kind == "restart" for blow in self.blows)


# kill: one rank. first: the lowest survivor, which coordinates. two: two at once. again: a second
# one while the others recover. freeze: stopped until it is expelled. pause: stopped for half a
# heartbeat, not expelled. slow: stopped repeatedly for less, not expelled. launcher: a process of
# the launcher; all ranks end with it. restart: one rank, which another process replaces; in
# separate worlds.
KINDS = ("kill", "first", "two", "again", "freeze", "pause", "slow", "launcher", "restart")
# The others go on as if nothing had happened.
HARMLESS = ("pause", "slow")


def worlds(kills: int, ranks: int, seed: int, kinds: tuple[str, ...]) -> Iterator[World]:
    """Yields worlds until `kills` processes are killed; each ends with two ranks, one, or none.

    Worlds of restarts end with all ranks. If `kinds` kill nobody, each blow counts as a kill.
    """
    rng = random.Random(seed)
    harmless = HARMLESS if set(kinds) - set(HARMLESS) else ()
    others = [kind for kind in kinds if kind != "restart"]
    lost = 0
    number = 0
    while lost < kills:
        if not others or ("restart" in kinds and rng.random() * len(kinds) < 1):
            blows = _restarts(rng, ranks, min(3, kills - lost))
        else:
            blows = _losses(rng, ranks, kills - lost, others, harmless)
        lost += sum(len(blow.victims) or 1 for blow in blows if blow.kind not in harmless)
        yield World(number, ranks, rng.choice(PHASES), rng.randrange(1 << 30), tuple(blows))
        number += 1


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value of `ordered` that at most 1 - `share` of the values exceed."""
    return ordered[max(0, math.ceil(round(len(ordered) * share, 6)) - 1)]


def _losses(
    rng: random.Random, ranks: int, kills: int, kinds: Sequence[str], harmless: Sequence[str]
) -> list[Blow]:
    """Returns blows of a world without replacement; `harmless` ones do not count as kills."""
    alive = list(range(ranks))
    blows: list[Blow] = []
    lost = 0
    while len(alive) > 2 and lost < kills:
        fitting = [kind for kind in kinds if len(alive) > 3 or kind not in ("two", "again")]
        if set(kinds) - set(harmless) and not set(fitting) - set(harmless):
            fitting.append("kill")  # or the loop would never end
        blow = _blow(rng, rng.choice(fitting), alive)
        blows.append(blow)
        lost += 0 if blow.kind in harmless else len(blow.victims) or 1
        if blow.kind == "launcher" or (blow.kind in HARMLESS and len(blows) > 4):
            break
        if blow.kind in HARMLESS:
            continue
        for victim in blow.victims:
            alive.remove(victim)
    return blows


def _restarts(rng: random.Random, ranks: int, count: int) -> list[Blow]:
    """Returns blows of a world that is whole again before each of them."""
    alive = list(range(ranks))
    blows = []
    for newcomer in range(ranks, ranks + count):
        blows.append(_blow(rng, "restart", alive))
        alive.remove(blows[-1].victims[0])
        alive.append(newcomer)
    return blows


def _blow(rng: random.Random, kind: str, alive: list[int]) -> Blow:
    delay = rng.uniform(0.02, 0.15)
    if kind == "first":
        return Blow(kind, (alive[0],), delay)
    if kind == "launcher":
        return Blow(kind, (), delay)
    if kind in ("two", "again"):
        victims = tuple(rng.sample(alive, 2))
        return Blow(kind, victims, delay, rng.uniform(0.0005, 0.012) if kind == "again" else 0.0)
    victims = (rng.choice(alive),)
    if kind == "slow":
        return Blow(kind, victims, delay, bursts=tuple(rng.uniform(0.05, 0.4) for _ in range(4)))
    return Blow(kind, victims, delay)
