"""The 40 prepared trainings: which are truly the same as their reference, and which have a fault, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One way to train beside its reference.

    ``fault``: its name in `faults.py`, or "" where the training is truly the same. ``step``, ``tensor`` and ``rank``:
    where it has to be found; None where any will do, as where all tensors leave at once.
    """

    ranks: int
    strategy: str = "sync"
    how: str = ""
    variables: str = ""
    fault: str = ""
    step: int | None = None
    tensor: str | None = None
    rank: int | None = None

    @property
    def variant(self) -> str:
        """As for ``rueda equiv --variant``; "" for a plain run."""
        settings = [
            *([f"EQUIV_FAULT={self.fault}"] if self.fault else []),
            *([f"EQUIV_HOW={self.how}"] if self.how else []),
            *([self.variables] if self.variables else []),
        ]
        return f"{self.name}:{','.join(settings)}" if settings else ""

    @property
    def name(self) -> str:
        """Of the variant."""
        settings = self.variables.removeprefix("RUEDA_").lower().replace("=", "-")
        return self.fault or self.how or settings


@dataclass(frozen=True)
class Group:
    """Cases with the same reference, which one call of `rueda equiv` judges: ranks and arguments of the script."""

    reference: str
    arguments: tuple[str, ...]
    cases: tuple[Case, ...]


def planted(
    ranks: int, fault: str, step: int, tensor: str | None = None, rank: int | None = None
) -> Case:
    """A case with a fault."""
    return Case(ranks, fault=fault, step=step, tensor=tensor, rank=rank)


GROUPS = (
    Group(
        "1:sync",
        (),
        (
            Case(2),
            Case(2, how="distributed"),
            Case(2, how="accumulate"),
            Case(2, how="rows"),
            Case(2, variables="RUEDA_FUSION_THRESHOLD=0"),
            Case(2, variables="RUEDA_ALGORITHM=ring"),
            Case(2, variables="RUEDA_TRANSPORT=tcp"),
            Case(2, variables="RUEDA_BATCHES_IN_FLIGHT=1"),
        ),
    ),
    Group(
        "1:sync",
        (),
        (
            planted(2, "dropped-gradient", 50),
            planted(2, "duplicated-shard", 1),
            planted(2, "misscaled-accumulation", 1),
            planted(2, "scaled-rate", 1),
            planted(2, "repeating-sampler", 30),
            planted(2, "stale-gradient", 40, "2.weight"),
            planted(2, "unreduced-parameter", 1, "0.bias"),
            planted(2, "unequal-beginning", 0, None, 1),
            planted(2, "forgotten-momentum", 60),
            planted(2, "decay-on-one-rank", 1, None, 1),
            planted(2, "skipped-update", 70, "2.bias", 1),
            planted(2, "corrupted-element", 33, "0.weight", 1),
            planted(2, "narrow-gradients", 1),
            planted(2, "late-schedule", 60),
        ),
    ),
    Group(
        "1:sync",
        (),
        (
            Case(3),
            Case(3, variables="RUEDA_TRANSPORT=tcp"),
            planted(3, "averaged-by-fewer", 1),
        ),
    ),
    Group(
        "1:sync",
        (),
        (
            Case(4),
            Case(4, how="rows"),
            Case(4, variables="RUEDA_ALGORITHM=ring"),
            planted(4, "lost-sample", 1),
        ),
    ),
    Group(
        "1:sync",
        ("--model", "bn"),
        (
            Case(2),
            planted(2, "local-statistics", 1),
            planted(2, "stale-statistics", 60, "1.running_mean"),
        ),
    ),
    Group("1:sync", ("--model", "bn"), (Case(3),)),
    Group("1:sync", ("--optimizer", "adam"), (Case(2), Case(4))),
    Group("1:sync", ("--clip", "0.5"), (Case(2), planted(2, "clipped-too-early", 1))),
    Group(
        "2:sync",
        ("--codec", "topk:0.1", "--optimizer", "plain-sgd"),
        (Case(2, variables="RUEDA_TRANSPORT=tcp"), planted(2, "lost-feedback", 2)),
    ),
    Group("1:sync", ("--optimizer", "plain-sgd"), (Case(2, strategy="local:1"),)),
)
