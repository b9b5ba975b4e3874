"""Finds out which rank failed first and why."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

_FRAME = re.compile(r'\s*File ".*", line \d+')
# Raised because another rank failed, so never the first cause.
_CONSEQUENCE = re.compile(r"([\w.]+\.)?(PeerLostError|ShutdownError)\b")
# What such an exception says of the rank that caused it.
_BLAME = re.compile(
    r"rank (\d+)(?: \(([^,()]+), pid \d+\))? (has shut down|is gone\b.*|failed: .*)"
)
# A traceback with more output than this behind it was handled by the program.
_LINES_AFTER_TRACEBACK = 20


@dataclass(frozen=True)
class Failure:
    """How one rank ended: `status` as subprocess gives it, negative for a signal."""

    rank: int
    status: int
    host: str = ""
    manner: str = ""  # in words, where the status does not say it all

    @property
    def exit_code(self) -> int:
        """What the launcher exits with: as a shell would report it."""
        return 128 - self.status if self.status < 0 else self.status

    def describe_status(self) -> str:
        """E.g. "exit code 3" or "killed by SIGSEGV (Segmentation fault)"."""
        if self.manner:
            return self.manner
        if self.status >= 0:
            return f"exit code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            return f"killed by signal {-self.status}"
        return f"killed by {name} ({signal.strsignal(-self.status)})"


class _RankErrors:
    """What one rank wrote to standard error, as far as it may explain its end."""

    def __init__(self) -> None:
        self.exception = ""
        self.last_line = ""
        self._in_traceback = False
        self._lines_since = 0

    def see(self, line: str) -> None:
        if _FRAME.match(line):
            self._in_traceback = True
        elif self._in_traceback and line and not line[0].isspace():
            self._in_traceback = False
            self.exception = line
            self._lines_since = 0
        elif line.strip():
            self._lines_since += 1
            if self._lines_since > _LINES_AFTER_TRACEBACK:
                self.exception = ""
        if line.strip():
            self.last_line = line.strip()


class FailureWatch:
    """Reads the ranks' standard error and puts a rank's failure into words."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankErrors] = {}

    def see(self, rank: int, line: str) -> None:
        """Takes one line, without its end, that the rank wrote to standard error."""
        self._ranks.setdefault(rank, _RankErrors()).see(line)

    def is_consequence(self, rank: int) -> bool:
        """Whether the rank ended because another one did."""
        errors = self._ranks.get(rank)
        return errors is not None and bool(_CONSEQUENCE.match(errors.exception))

    def first_cause(self, failures: list[Failure]) -> Failure:
        """The first of `failures`, given in order of time, that is no consequence of another."""
        own = [failure for failure in failures if not self.is_consequence(failure.rank)]
        return (own or failures)[0]

    def raised_on_its_own(self) -> int | None:
        """The lowest rank that printed a traceback which is no consequence of another's end."""
        ranks = (r for r, e in self._ranks.items() if e.exception and not self.is_consequence(r))
        return min(ranks, default=None)

    def explain(self, failure: Failure) -> str:
        """The launcher's last line."""
        where = f"rank {failure.rank}" + (f" on {failure.host}" if failure.host else "")
        status = failure.describe_status()
        errors = self._ranks.get(failure.rank, _RankErrors())
        blame = _BLAME.search(errors.exception) if self.is_consequence(failure.rank) else None
        if blame and int(blame[1]) != failure.rank:
            culprit = f"rank {blame[1]}" + (f" on {blame[2]}" if blame[2] else "")
            what = f"failed first: {blame[3].removeprefix('failed: ')}"
            if blame[3] == "has shut down":
                what = "left first: it has shut down"
            return f"{culprit} {what} (noticed by {where}: {status})"
        # A killed process did not end by the exception that it printed before.
        if errors.exception and failure.status > 0:
            return f"{where} failed first: {errors.exception} ({status})"
        if errors.last_line:
            return f"{where} failed first: {status}; its last words: {errors.last_line}"
        return f"{where} failed first: {status}"
