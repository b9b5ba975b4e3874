"""From the ranks' clocks to a median and its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """The ranks' results for one block of calls."""

    durations: npt.NDArray[np.float64]  # seconds, one per call
    wrong: int
    interval: float  # seconds from one call to the next, including the rewriting of buffers


def block_of(clocks: Sequence[tuple[Times, Times]], steps: int, wrong: int) -> Block:
    """`clocks`: for each rank, when it entered and left each call, in ns of a clock that all ranks share.

    A call lasts from the moment the last rank enters it until the last rank leaves it.
    """
    entered = np.stack([ours for ours, _ in clocks]).max(axis=0)
    left = np.stack([theirs for _, theirs in clocks]).max(axis=0)
    durations = (left - entered) * 1e-9 / steps
    count = len(entered)
    interval = float(entered[-1] - entered[0]) * 1e-9 / (count - 1) if count > 1 else 0.0
    return Block(durations, wrong, max(interval, float(durations.max()) * steps))


@dataclass
class Samples:
    """All results of one contender at one size."""

    rounds: list[npt.NDArray[np.float64]] = field(default_factory=list)
    wrong: int = 0
    unsupported: str = ""

    def add(self, block: Block) -> None:
        self.rounds.append(block.durations)
        self.wrong += block.wrong

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self.rounds)

    def quantile(self, share: float) -> float:
        """In seconds, over all calls of all rounds. `share`: 0 to 1; 0.5 gives the median."""
        return float(np.quantile(np.concatenate(self.rounds), share))

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    def as_json(self) -> dict[str, object]:
        """Times in µs."""
        if not self.known:
            return {"unsupported": self.unsupported}
        return {
            "time_us": self.median * 1e6,
            "min_us": self.quantile(0) * 1e6,
            "p10_us": self.quantile(0.1) * 1e6,
            "p90_us": self.quantile(0.9) * 1e6,
            "calls": sum(len(durations) for durations in self.rounds),
            "round_medians_us": [float(np.median(durations)) * 1e6 for durations in self.rounds],
            "wrong": self.wrong,
        }
