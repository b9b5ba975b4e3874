"""The results: histograms, so that runs can be added up, and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..tables import Table, microseconds

# Neighbouring bins differ by 2%.
_STEPS_PER_DOUBLING = 36


@dataclass
class Distribution:
    """A histogram of call times, and the median of each run."""

    counts: Counter[int] = field(default_factory=Counter)  # n: calls of about 2^(n/36) ns
    medians: list[float] = field(default_factory=list)  # seconds

    def add_run(self, nanoseconds: Iterable[int]) -> None:
        """Adds all calls of all ranks in one run."""
        run = Counter(round(math.log2(max(1, ns)) * _STEPS_PER_DOUBLING) for ns in nanoseconds)
        self.medians.append(_quantile(run, 0.5))
        self.counts.update(run)

    def quantile(self, part: float) -> float:
        """In seconds, over all runs."""
        return _quantile(self.counts, part)

    def to_json(self) -> dict[str, Any]:
        return {"counts": sorted(self.counts.items()), "medians": self.medians}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Distribution:
        counts = Counter({int(step): int(count) for step, count in value["counts"]})
        return Distribution(counts, [float(median) for median in value["medians"]])


def _quantile(counts: Counter[int], part: float) -> float:
    left = math.ceil(part * counts.total())
    for step in sorted(counts):
        left -= counts[step]
        if left <= 0:
            return 2 ** (step / _STEPS_PER_DOUBLING) * 1e-9
    return math.nan


@dataclass
class Report:
    """Distributions by case and contender."""

    head: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    cases: dict[str, dict[str, Distribution]] = field(default_factory=dict)

    def of(self, case: str, contender: str) -> Distribution:
        return self.cases.setdefault(case, {}).setdefault(contender, Distribution())

    def to_json(self) -> dict[str, Any]:
        cases = {
            case: {name: distribution.to_json() for name, distribution in results.items()}
            for case, results in self.cases.items()
        }
        return {"schema": 1, "head": self.head, "versions": self.versions, "cases": cases}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Report:
        """Raises AttributeError, KeyError, TypeError or ValueError if `value` is not a report."""
        if value["schema"] != 1:
            raise ValueError("of another version")
        cases = {
            case: {name: Distribution.from_json(each) for name, each in results.items()}
            for case, results in value["cases"].items()
        }
        return Report(dict(value["head"]), dict(value["versions"]), cases)

    def table(self) -> Table:
        """One row per case and contender, in microseconds."""
        rows = []
        for case, results in self.cases.items():
            for name, distribution in results.items():
                parts = [distribution.quantile(part) for part in (0.5, 0.9, 0.99)]
                slowest = max(distribution.medians)
                cells = [microseconds(value) for value in (*parts, slowest)]
                rows.append([case, name, str(len(distribution.medians)), *cells])
        columns = ["case", "contender", "runs", "median", "p90", "p99", "slowest run"]
        return Table("times of single calls in µs", columns, rows)

    def lines(self) -> list[str]:
        """The report's head: machine, command and versions."""
        return [f"{name}: {text}" for name, text in {**self.head, **self.versions}.items()]
