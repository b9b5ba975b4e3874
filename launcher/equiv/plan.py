"""The runs to make: ways to train times seeds. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rueda.equivalence.run_settings import RunSettings
from rueda.equivalence.strategy_names import NAMES

from ..environment import NAME
from ..errors import LaunchError

__all__ = [
    "Plan",
    "Planned",
    "Way",
    "parse_list",
    "parse_metric",
    "parse_strategies",
    "parse_variant",
]


@dataclass(frozen=True)
class Way:
    """A way to train: number of ranks, strategy, and a named set of further variables."""

    ranks: int
    strategy: str
    variant: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        more = f" {self.variant}" if self.variant else ""
        return f"{self.ranks} {'rank' if self.ranks == 1 else 'ranks'} {self.strategy}{more}"

    @property
    def folder(self) -> str:
        """A name for its runs."""
        words = [f"np{self.ranks}", self.strategy, *([self.variant] if self.variant else [])]
        return "-".join(re.sub(r"[^\w.=]+", "_", word) for word in words)


@dataclass(frozen=True)
class Planned:
    """One run, of a way or of a twin of the reference."""

    way: Way
    seed: int
    is_twin: bool = False

    @property
    def folder(self) -> str:
        """Its subfolder in the folder of all runs."""
        return f"{self.way.folder}{'-twin' if self.is_twin else ''}/seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.way}{' (twin)' if self.is_twin else ''}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All ways to compare with the reference, which is not among the candidates."""

    reference: Way
    candidates: tuple[Way, ...]
    seeds: int
    command: tuple[str, ...]
    launch: tuple[str, ...] = ()
    every: int = 1

    def runs(self) -> Iterator[Planned]:
        """All runs, seed by seed, so that disturbances of the machine affect all ways alike."""
        for seed in range(self.seeds):
            yield Planned(self.reference, seed)
            yield Planned(self.reference, seed, is_twin=True)
            for way in self.candidates:
                yield Planned(way, seed)

    def settings(self, run: Planned) -> RunSettings:
        """A run's settings, with ``{seed}``, ``{strategy}`` and ``{np}`` in the command filled in."""
        way = run.way
        known = {"{seed}": str(run.seed), "{strategy}": way.strategy, "{np}": str(way.ranks)}
        return RunSettings(
            way.ranks,
            way.strategy,
            run.seed,
            tuple(_filled(word, known) for word in self.command),
            self.launch,
            way.variables,
            run.is_twin,
            self.every,
        )


def _filled(word: str, known: dict[str, str]) -> str:
    return re.sub(r"\{(?:seed|strategy|np)\}", lambda found: known[found.group()], word)


def parse_list(text: str, option: str) -> tuple[int, ...]:
    """Parses ``1,2,4``. Raises LaunchError."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise LaunchError(f"{option} {text}: give numbers of ranks with commas, such as 1,2,4")
    return found


def parse_strategies(text: str) -> tuple[str, ...]:
    """Parses ``sync,local:8,diloco:16,codec=int8``. After a colon come parameters, up to the next strategy's name.

    Separate a strategy of your own, whose name is not known here, from preceding parameters with a semicolon. Raises
    LaunchError if there is no strategy.
    """
    found: list[str] = []
    for few in text.split(";"):
        begun: list[str] = []
        for part in filter(None, (part.strip() for part in few.split(","))):
            begins = ":" in part or part in NAMES
            if begun and not begins and (":" in begun[-1] or "=" in part):
                begun[-1] += f",{part}"
            else:
                begun.append(part)
        found += begun
    if not found:
        raise LaunchError(f"--strategy {text!r}: names no strategy, such as sync or local:8")
    return tuple(dict.fromkeys(found))


def parse_metric(text: str) -> tuple[str, str]:
    """Parses ``NAME``, ``NAME:max`` or ``NAME:min``. Raises LaunchError."""
    name, mark, direction = text.partition(":")
    if not name or (mark and direction not in ("max", "min")):
        raise LaunchError(
            f"--metric {text}: give a name, with :max or :min if needed, such as accuracy:max"
        )
    return name, direction


def parse_variant(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Parses ``ring:RUEDA_ALGORITHM=ring,X=1``: a name and variables. Raises LaunchError."""
    name, _, settings = text.partition(":")
    pairs = [part.partition("=") for part in settings.split(",")]
    if not re.fullmatch(r"[\w.+-]+", name) or not all(
        NAME.fullmatch(key.strip()) and mark for key, mark, _ in pairs
    ):
        raise LaunchError(
            f"--variant {text}: give a name and variables, such as ring:RUEDA_ALGORITHM=ring"
        )
    return name, tuple((key.strip(), value) for key, _, value in pairs)


def candidates_of(
    ranks: Sequence[int], strategies: Sequence[str], variants: Sequence[str], reference: Way
) -> tuple[Way, ...]:
    """Every number of ranks with every strategy, plain and in each variant, except the reference."""
    named = [("", ()), *(parse_variant(text) for text in variants)]
    doubled = {name for name, _ in named if [n for n, _ in named].count(name) > 1}
    if doubled:
        raise LaunchError(f"--variant {min(doubled)}: given twice")
    ways = (
        Way(count, strategy, name, variables)
        for count in ranks
        for strategy in strategies
        for name, variables in named
    )
    return tuple(way for way in ways if way != reference)
