"""The results, and numbers derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .limits import LIMITS, SHARED_SUMS
from .plan import Entry, Plan
from .samples import Samples

OPEN_MPI = "Open MPI"  # the fastest Open MPI that is installed, with its defaults
OPEN_MPI_BEST = "its best"  # the fastest of all settings


@dataclass
class Report:
    """The results, size by size."""

    plan: Plan
    head: dict[str, str]  # of the report: machine, versions, command
    entries: Sequence[Entry]
    notes: list[str] = field(default_factory=list)
    limits: dict[str, Samples] = field(default_factory=dict)
    sizes: dict[int, dict[str, Samples]] = field(default_factory=dict)
    tuned: dict[int, tuple[str, float]] = field(default_factory=dict)  # setting and seconds

    def ours(self) -> list[str]:
        """Labels of Rueda's columns."""
        return [entry.label for entry in self.entries if not entry.contender.peer]

    def peers(self) -> list[str]:
        """What Rueda is compared with. All Open MPIs count as one."""
        names = []
        for entry in self.entries:
            peer = entry.contender.peer
            name = OPEN_MPI if peer == "mpi" else entry.label
            if entry.sizes:
                name = OPEN_MPI_BEST
            if peer and name not in names:
                names.append(name)
        return names

    def seconds(self, size: int, label: str) -> float | None:
        """The median of a column; for `OPEN_MPI` and `OPEN_MPI_BEST` the lowest median of their columns."""
        results = self.sizes[size]
        if label in (OPEN_MPI, OPEN_MPI_BEST):
            labels = [
                entry.label
                for entry in self.entries
                if entry.contender.peer == "mpi" and (label == OPEN_MPI_BEST or not entry.sizes)
            ]
        else:
            labels = [label]
        known = [results[one].median for one in labels if one in results and results[one].known]
        return min(known) if known else None

    def limit(self, size: int) -> float | None:
        """The time of the loads and stores alone, in seconds."""
        results = self.sizes[size]
        known = [results[n].median for n in SHARED_SUMS if n in results and results[n].known]
        return min(known) if known else None

    def constant(self, name: str) -> float | None:
        """The median of a limit that does not depend on the size."""
        samples = self.limits.get(name)
        return samples.median if samples is not None and samples.known else None

    def bandwidths(self, size: int, seconds: float) -> tuple[float, float]:
        """Algorithm and bus bandwidth in GB/s, as nccl-tests defines them."""
        algorithm = size / seconds / 1e9
        return algorithm, algorithm * self.plan.collective.bus_factor(self.plan.ranks)

    @property
    def wrong(self) -> int:
        """The total number of wrong elements."""
        return sum(s.wrong for results in self.sizes.values() for s in results.values())

    def _size_as_json(self, size: int) -> dict[str, object]:
        results: dict[str, object] = {}
        for label, samples in self.sizes[size].items():
            row = samples.as_json()
            if samples.known and label not in SHARED_SUMS:
                algorithm, bus = self.bandwidths(size, samples.median)
                row |= {"algbw_gbps": algorithm, "busbw_gbps": bus}
            results[label] = row
        setting = self.tuned.get(size)
        return {
            "size": size,
            "count": self.plan.collective.shown_count(self.plan.count(size), self.plan.ranks),
            "results": results,
            "best_setting": setting[0] if setting else None,
        }

    def as_json(self) -> dict[str, object]:
        """Schema 1, as `rueda bench --help` documents it."""
        return {
            "schema": 1,
            "head": self.head,
            "notes": self.notes,
            "collective": self.plan.collective.name,
            "ranks": self.plan.ranks,
            "dtype": self.plan.dtype,
            "op": self.plan.op if self.plan.collective.reduces else None,
            "contenders": {entry.label: entry.group.facts for entry in self.entries},
            "limits": {
                limit.name: {"what": limit.what, **self._limit_as_json(limit.name)}
                for limit in LIMITS
                if limit.name in self.limits
            },
            "sizes": [self._size_as_json(size) for size in self.sizes],
        }

    def _limit_as_json(self, name: str) -> dict[str, object]:
        row = self.limits[name].as_json()
        limit = next(limit for limit in LIMITS if limit.name == name)
        seconds = self.constant(name)
        if seconds is not None and limit.bytes_moved:
            row["gbps"] = limit.rate(seconds, self.plan.ranks)
        return row
