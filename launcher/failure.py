"""Finds out which rank failed first and why."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from .tracebacks import TracebackReader

# Raised because another rank failed, so never the first cause.
_CONSEQUENCE = re.compile(
    r"([\w.]+\.)?(PeerLostError|ShutdownError)\b(?!.*\bthis rank has shut down)|"
    # The same under the names of other libraries.
    r"[\w.]+: (Horovod has been shut down\b|.*\bcannot complete: rank \d+ )"
)
# What such an exception says of the rank that caused it.
_BLAME = re.compile(
    r"rank (\d+)(?: \(([^,()]+), pid \d+\))? (has shut down|is gone\b.*|failed: .*)"
)


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
        self.last_line = ""
        self.raised_at = 0  # when its exception came, among those of all ranks
        self._traceback = TracebackReader()

    @property
    def exception(self) -> str:
        """The last exception in one line, or nothing."""
        return self._traceback.text

    @property
    def is_consequence(self) -> bool:
        """Whether the exception came of another rank's end."""
        members = self._traceback.members
        return any(map(_CONSEQUENCE.match, self._traceback.exceptions)) or (
            bool(members) and all(map(_CONSEQUENCE.match, members))
        )

    @property
    def blame(self) -> re.Match[str] | None:
        """Whom the exceptions name as the cause, where they are a consequence."""
        if not self.is_consequence:
            return None
        texts = [*self._traceback.exceptions, *self._traceback.members]
        return next(filter(None, map(_BLAME.search, texts)), None)

    def see(self, line: str) -> bool:
        """Takes one line; returns whether it completes an exception."""
        if line.strip():
            self.last_line = line.strip()
        return self._traceback.see(line)


class FailureWatch:
    """Reads the ranks' standard error and puts a rank's failure into words."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankErrors] = {}
        self._exceptions = 0

    def see(self, rank: int, line: str) -> None:
        """Takes one line, without its end, that the rank wrote to standard error."""
        errors = self._ranks.setdefault(rank, _RankErrors())
        if errors.see(line):
            self._exceptions += 1
            errors.raised_at = self._exceptions

    def is_consequence(self, rank: int) -> bool:
        """Whether the rank ended because another one did."""
        errors = self._ranks.get(rank)
        return errors is not None and errors.is_consequence

    def first_cause(self, failures: list[Failure]) -> Failure:
        """The first of `failures`, given in order of time, that is no consequence of another."""
        own = [failure for failure in failures if not self.is_consequence(failure.rank)]
        return (own or failures)[0]

    def raised_on_its_own(self) -> int | None:
        """The rank that first printed a traceback which is no consequence of another's end."""
        return self._first_raised(consequences=False)

    def raised(self) -> int | None:
        """The rank that first printed a traceback, if possible one that is no consequence."""
        own = self.raised_on_its_own()
        return own if own is not None else self._first_raised(consequences=True)

    def explain(self, failure: Failure) -> str:
        """The launcher's last line."""
        where = f"rank {failure.rank}" + (f" on {failure.host}" if failure.host else "")
        status = failure.describe_status()
        errors = self._ranks.get(failure.rank, _RankErrors())
        blame = errors.blame
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
            return f"{where} failed first: {status}; last line of stderr: {errors.last_line}"
        return f"{where} failed first: {status}"

    def _first_raised(self, consequences: bool) -> int | None:
        ranks = (r for r, e in self._ranks.items() if e.exception)
        wanted = (r for r in ranks if self._ranks[r].is_consequence == consequences)
        return min(wanted, key=lambda rank: self._ranks[rank].raised_at, default=None)
