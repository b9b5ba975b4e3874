"""Determines which rank failed first, and why."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from .tracebacks import TracebackReader

# Exceptions of rueda.init() that another rank's failure explains, if that rank has failed too.
_ECHO = re.compile(
    r"(?:[\w.:]+[.:])?InitializationError: (?:rank (?P<told>\d+): |.*?(?:"
    r"\bcannot reach rank (?P<unreached>\d+): .*(?:refused|reset by peer|[Bb]roken)|"
    r"\brank (?P<ended>\d+) ended before the world was formed))"
)
# Where such an exception names the rank that caused it.
_BLAME = re.compile(
    r"rank (\d+)(?: \(([^,()]+), pid \d+\))? (has shut down|is gone\b.*|failed: .*)"
)
# Open MPI's report, on standard error, of a signal that kills the process: "[host:pid] Signal: Aborted (6)".
_SIGNAL_REPORT = re.compile(
    r"\[[^\s\[\]]+:\d+\] (?:\*{3} (?:Process received signal|End of error message) \*{3}|"
    r"Signal: .*\((?P<signal>\d+)\)|Signal code: |Associated errno: |Failing at address: |"
    r"\[ ?\d+\] .*\[0x[0-9a-f]+\]$)"
)


@dataclass(frozen=True)
class Failure:
    """How one rank ended. `status`: as in subprocess, negative for a signal."""

    rank: int
    status: int
    host: str = ""
    manner: str = ""  # in words, if the status does not say everything
    cause: str = ""  # what is known of why it was killed

    @property
    def exit_code(self) -> int:
        """The launcher's exit code: the one that a shell would report."""
        return 128 - self.status if self.status < 0 else self.status

    def describe_status(self) -> str:
        """For example "exit code 3" or "killed by SIGSEGV (Segmentation fault)"."""
        manner = self.manner or self._describe_number()
        return f"{manner}: {self.cause}" if self.cause else manner

    def _describe_number(self) -> str:
        if self.status >= 0:
            return f"exit code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            return f"killed by signal {-self.status}"
        return f"killed by {name} ({signal.strsignal(-self.status)})"


class _RankErrors:
    """The parts of one rank's standard error that may explain its end."""

    def __init__(self) -> None:
        self.last_line = ""
        self.raised_at = 0  # the position of its exception among those of all ranks
        self._reported_signal = 0  # by Open MPI
        self._traceback = TracebackReader()

    @property
    def exception(self) -> str:
        """The last exception in one line, or ""."""
        return self._traceback.text

    @property
    def is_consequence(self) -> bool:
        """Whether the exception was caused by another rank's end."""
        return self._traceback.is_consequence

    @property
    def blame(self) -> re.Match[str] | None:
        """The part of the exceptions that names the rank that caused them, if they are a consequence."""
        if not self.is_consequence:
            return None
        texts = [*self._traceback.exceptions, *self._traceback.members]
        return next(filter(None, map(_BLAME.search, texts)), None)

    @property
    def echoes(self) -> int | None:
        """The rank whose failure, if it has failed too, explains the exception."""
        match = next(filter(None, map(_ECHO.match, self._traceback.exceptions)), None)
        return None if match is None else int(next(filter(None, match.groups())))

    @property
    def told_status(self) -> int | None:
        """The status, as in subprocess, with which the process ends by what it has printed. None: not known."""
        if self._reported_signal:
            return -self._reported_signal
        return -signal.SIGABRT if self._traceback.is_termination else None

    def may_end(self, failure: Failure) -> bool:
        """Whether the process may have ended because of the exception: one that was killed did not."""
        aborted = failure.status == -signal.SIGABRT and self._traceback.is_termination
        return failure.status > 0 or aborted

    def see(self, line: str) -> bool:
        """Reads one line. Returns whether it completes an exception."""
        if report := _SIGNAL_REPORT.match(line):
            self._reported_signal = int(report["signal"] or self._reported_signal)
            return False
        if line.strip():
            self.last_line = line.strip()
        return self._traceback.see(line)


class FailureWatch:
    """Reads the ranks' standard error, and explains a rank's failure in words."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankErrors] = {}
        self._exceptions = 0

    def see(self, rank: int, line: str) -> None:
        """Reads one line of the rank's standard error, without its line end."""
        errors = self._ranks.setdefault(rank, _RankErrors())
        if errors.see(line):
            self._exceptions += 1
            errors.raised_at = self._exceptions

    def is_consequence(self, rank: int) -> bool:
        """Whether the rank ended because another rank did."""
        errors = self._ranks.get(rank)
        return errors is not None and errors.is_consequence

    def first_cause(self, failures: list[Failure]) -> Failure:
        """The first of `failures` (in order of time) that is not a consequence of another."""
        failed = {failure.rank for failure in failures}
        own = [f for f in failures if not self._is_explained_by(failed - {f.rank}, f)]
        return (own or failures)[0]

    def _is_explained_by(self, failed: set[int], failure: Failure) -> bool:
        """Whether a rank ended because another did, one of those that have failed or one that is not known."""
        errors = self._ranks.get(failure.rank)
        if errors is None:
            return False
        return errors.is_consequence or (errors.may_end(failure) and errors.echoes in failed)

    def blamed_by(self, rank: int) -> int | None:
        """The rank whose loss has ended this one and which has printed why it ended itself; None if none has."""
        errors = self._ranks.get(rank)
        blame = None if errors is None else errors.blame
        blamed = None if blame is None else self._ranks.get(int(blame[1]))
        if blame is None or blamed is None or blamed.is_consequence:
            return None
        return int(blame[1]) if blamed.exception or blamed.told_status is not None else None

    def killed_on_its_own(self) -> int | None:
        """The lowest rank that has printed which signal kills it, if that is no consequence of another's end."""
        told = (r for r, e in self._ranks.items() if e.told_status is not None)
        return min((r for r in told if not self._ranks[r].is_consequence), default=None)

    def told_status(self, rank: int) -> int | None:
        """The status, as in subprocess, with which a rank ends by what it has printed. None: not known."""
        errors = self._ranks.get(rank)
        return None if errors is None else errors.told_status

    def raised_on_its_own(self) -> int | None:
        """The rank that first printed a traceback that is not a consequence of another rank's end."""
        return self._first_raised(consequences=False)

    def raised(self) -> int | None:
        """The rank that first printed a traceback, preferably one that is not a consequence."""
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
        if errors.exception and errors.may_end(failure):
            return f"{where} failed first: {errors.exception} ({status})"
        if failure.status > 0 and (reason := self._reason_told_by_others(failure.rank)):
            return f"{where} failed first: {reason} ({status})"
        if errors.last_line:
            return f"{where} failed first: {status}; last line of stderr: {errors.last_line}"
        return f"{where} failed first: {status}"

    def _reason_told_by_others(self, rank: int) -> str:
        """The reason that a rank gave to the others, as for `rueda.abort()`, which prints nothing itself. Or ""."""
        blames = (errors.blame for errors in self._ranks.values())
        told = (blame[3] for blame in blames if blame and int(blame[1]) == rank)
        reasons = (words.removeprefix("failed: ") for words in told if words.startswith("failed: "))
        # An exit code says no more than the status.
        return next((reason for reason in reasons if not reason.startswith("sys.exit(")), "")

    def _first_raised(self, consequences: bool) -> int | None:
        ranks = (r for r, e in self._ranks.items() if e.exception)
        wanted = (r for r in ranks if self._ranks[r].is_consequence == consequences)
        return min(wanted, key=lambda rank: self._ranks[rank].raised_at, default=None)
