"""What is done to the ranks of a world, and when: made of a seed, so that it can be repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What the ranks do when a blow comes: nothing for long, small operations, or large ones.
PHASES = ("idle", "small", "large", "mixed")


@dataclass(frozen=True)
class Blow:
    """Something that is done to ranks of a world."""

    kind: str  # of KINDS
    # By process: their ranks in the first world; who is started later comes after these; none of the launcher.
    victims: tuple[int, ...]
    delay: float  # seconds after the world has last gone on
    gap: float = 0.0  # seconds between the first victim and the second
    bursts: tuple[float, ...] = ()  # for how much of a heartbeat the victim is stopped each time

    def __str__(self) -> str:
        """For the log, so that a run can be followed."""
        names = "+".join(map(str, self.victims))
        return f"{self.kind}({names}) after {self.delay * 1e3:.0f} ms" + (
            f", {self.gap * 1e3:.1f} ms apart" if self.gap else ""
        )


@dataclass(frozen=True)
class World:
    """A job, and the blows that it gets one after the other."""

    number: int
    ranks: int
    phase: str
    seed: int
    blows: tuple[Blow, ...]

    @property
    def is_replaced(self) -> bool:
        """Whether another process is started in the place of each that is lost."""
        return any(blow.kind == "restart" for blow in self.blows)


# kill: one rank. first: the lowest that is left, which coordinates. two: two at once. again: a second one while the
# others recover. freeze: stopped until it is expelled. pause: stopped for half of a heartbeat, and never expelled.
# slow: stopped again and again for less than that, and never expelled. launcher: a process of the launcher, with which
# all ranks end. restart: one rank, and another process joins in its place; in worlds of their own.
KINDS = ("kill", "first", "two", "again", "freeze", "pause", "slow", "launcher", "restart")
# After which all go on as if nothing had been.
HARMLESS = ("pause", "slow")


def worlds(kills: int, ranks: int, seed: int, kinds: tuple[str, ...]) -> Iterator[World]:
    """As many worlds as it takes until `kills` processes are killed; each ends with two ranks, one, or none.

    Those of restarts end with all. Where `kinds` kill nobody, each blow counts.
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
    """The least of the values, which are in order, that no more than 1 - `share` of them exceed."""
    return ordered[max(0, math.ceil(round(len(ordered) * share, 6)) - 1)]


def _losses(
    rng: random.Random, ranks: int, kills: int, kinds: Sequence[str], harmless: Sequence[str]
) -> list[Blow]:
    """Blows of a world in which nobody is replaced; those that are `harmless` do not count."""
    alive = list(range(ranks))
    blows: list[Blow] = []
    lost = 0
    while len(alive) > 2 and lost < kills:
        fitting = [kind for kind in kinds if len(alive) > 3 or kind not in ("two", "again")]
        if set(kinds) - set(harmless) and not set(fitting) - set(harmless):
            fitting.append("kill")  # else it would never end
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
    """Blows of a world that is whole again before each of them."""
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
