"""What is done to the ranks of a world, and when: made of a seed, so that it can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# What the ranks do when a blow comes: nothing for long, small operations, or large ones.
PHASES = ("idle", "small", "large", "mixed")


@dataclass(frozen=True)
class Blow:
    """Something that is done to ranks of a world."""

    kind: str  # of KINDS
    victims: tuple[int, ...]  # by process: their ranks in the first world; none of the launcher
    delay: float  # seconds after the world has last gone on
    gap: float = 0.0  # seconds between the first victim and the second

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


# kill: one rank. first: the lowest that is left, which coordinates. two: two at once. again: a second one while the
# others recover. freeze: stopped until it is expelled. pause: stopped for half of a heartbeat, and never expelled.
# launcher: a process of the launcher, with which all ranks end.
KINDS = ("kill", "first", "two", "again", "freeze", "pause", "launcher")


def worlds(kills: int, ranks: int, seed: int, kinds: tuple[str, ...]) -> Iterator[World]:
    """As many worlds as it takes until `kills` processes are killed; each ends with two ranks, one, or none."""
    rng = random.Random(seed)
    lost = 0
    number = 0
    while lost < kills:
        alive = list(range(ranks))
        blows: list[Blow] = []
        while len(alive) > 2 and lost < kills:
            fitting = [kind for kind in kinds if len(alive) > 3 or kind not in ("two", "again")]
            blow = _blow(rng, rng.choice(fitting or ["kill"]), alive)
            blows.append(blow)
            if blow.kind == "pause":
                if len(blows) > 4:
                    break
                continue
            lost += len(blow.victims) or 1
            if blow.kind == "launcher":
                break
            for victim in blow.victims:
                alive.remove(victim)
        yield World(number, ranks, rng.choice(PHASES), rng.randrange(1 << 30), tuple(blows))
        number += 1


def _blow(rng: random.Random, kind: str, alive: list[int]) -> Blow:
    delay = rng.uniform(0.02, 0.15)
    if kind == "first":
        return Blow(kind, (alive[0],), delay)
    if kind == "launcher":
        return Blow(kind, (), delay)
    if kind in ("two", "again"):
        victims = tuple(rng.sample(alive, 2))
        return Blow(kind, victims, delay, rng.uniform(0.0005, 0.012) if kind == "again" else 0.0)
    return Blow(kind, (rng.choice(alive),), delay)
