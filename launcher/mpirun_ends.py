"""How ranks under mpirun have ended: mpirun ends with 0 where ranks may be lost, whatever became of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .failure import Failure
from .job import Job
from .losses import Losses

# Signals that mpirun sends to the process group of a rank. The rank decides what they do.
_PASSED_ON = "HUP INT QUIT ABRT ALRM USR1 USR2 TERM"
# Of this run alone: ranks may print what another run has printed.
STATUS = f"rueda-rank-status-{secrets.token_hex(4)} ".encode()
_STATUS_LINE = re.compile(re.escape(STATUS) + rb"(\d+)\r?\n")
# What stops a process or lets it go on. The shell ends with such a code only if the program has.
_STOPPING = range(147, 151)
# Runs a rank's command, prints its exit status as the shell knows it, and ends in the same way. Nothing else sees the
# shell's own messages, such as "Killed". Exit codes 147 to 150 would be signals that stop a process; and the kernel
# must not write the shell's memory over the program's.
_REPORTER = (
    "exec 9>&2 2>/dev/null; "
    f"trap : {_PASSED_ON}; "
    '(exec "$@") 2>&9 9>&-; s=$?; '
    f'printf "{STATUS.decode()}%d\\n" $s >&9; '
    "case $s in 14[789]|150) ;; 129|1[3-9]?) "
    f"ulimit -c 0; trap - {_PASSED_ON}; kill -$((s-128)) $$;; esac; exit $s"
)


def reporting(command: Sequence[str]) -> list[str]:
    """The command that runs `command` and then prints a line with its exit status, for StatusLines."""
    return [*_shell(), "-c", _REPORTER, "sh", *command]


def _shell() -> list[str]:
    """A shell that passes on variables whose names are none of its own, such as exported functions, if there is one."""
    if Path("/bin/bash").exists():
        return ["/bin/bash", "--posix"]  # otherwise it would first run the script of BASH_ENV
    return ["/bin/sh"]


def status_of(code: int) -> int:
    """A process's status as in subprocess, negative for a signal, from the shell's exit code for it."""
    return 128 - code if 128 < code <= 192 and code not in _STOPPING else code


class StatusLines:
    """Takes the lines about exit statuses out of what the ranks print to standard error."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}  # by rank: the beginning of such a line, perhaps

    def take(self, rank: int, text: bytes) -> tuple[bytes, int | None]:
        """Takes a piece. Returns the program's own part of it, and the rank's status if it has ended."""
        text = self._held.pop(rank, b"") + text
        line = _STATUS_LINE.search(text)
        if line is not None:
            return text[: line.start()] + text[line.end() :], status_of(int(line[1]))
        begin = _begin_of_status(text)
        if begin < len(text):
            self._held[rank] = text[begin:]
        return text[:begin], None

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """Yields what was held back, by rank."""
        yield from self._held.items()
        self._held = {}


def _begin_of_status(text: bytes) -> int:
    """Where an unfinished line about a status may begin; the text's end if nowhere."""
    last = text.rfind(STATUS)
    if last >= 0 and text[last + len(STATUS) :].isdigit():
        return last
    for size in range(min(len(STATUS), len(text)), 0, -1):
        if text.endswith(STATUS[:size]):
            return len(text) - size
    return len(text)


class RankEnds:
    """The ranks that have ended, of a job that mpirun does not end when one of them is lost.

    The job has failed if fewer ranks than RUEDA_MIN_NP, or none, are left or have ended well. Without recovery, mpirun
    decides which ranks go on, so that this is known only at the end.
    """

    def __init__(self, job: Job, variables: Mapping[str, str], sees_arrivals: bool) -> None:
        """`variables`: those of the ranks. `sees_arrivals`: the ranks tell the launcher that they have met.

        Raises LaunchError for an impossible RUEDA_MIN_NP.
        """
        self._recovers = job.recovers
        own = variables if job.recovers else {"RUEDA_RECOVERY": "on"}
        self._losses = Losses(job.ranks, own)
        self._unreported = set(range(job.ranks))
        self._lost_early: list[Failure] = []  # borne, before all ranks had met
        self._failed: list[Failure] = []  # also those that are borne
        self.failures: list[Failure] = []  # those without which the job cannot go on
        self._have_met = False
        if not (self._recovers and sees_arrivals):
            self.have_met()

    def have_met(self) -> None:
        """All ranks have formed a world: those that end well from now on have done their work."""
        self._have_met = True
        self._losses.have_met()

    def note(self, how: Failure, is_certain: bool = True) -> str:
        """A rank has ended. Returns the sentence to print, or "". `is_certain`: as for Losses.describe()."""
        if how.rank not in self._unreported:
            return ""
        self._unreported.discard(how.rank)
        if how.status == 0:
            self._losses.ended_well()
            return ""
        self._failed.append(how)
        if self.failures or not self._losses.bears(how):
            self.failures.append(how)
            return ""
        if not self._have_met:
            self._lost_early.append(how)
        return self._losses.describe(how, is_certain) if self._recovers else ""

    def ended_with(self, exit_code: int) -> list[Failure]:
        """The failures with this exit code, which mpirun has reported without naming a rank."""
        return [failure for failure in self._failed if failure.exit_code == exit_code]

    def note_silent_ends(self, host: str) -> None:
        """All ranks have ended: those that have not reported how cannot have ended well."""
        for rank in sorted(self._unreported):
            self.note(Failure(rank, 1, host, "ended without an exit code, as if killed"))

    def note_waiting(self) -> None:
        """Some ranks wait for the first world, which cannot form without those that have been lost."""
        if not self._have_met and not self.failures:
            self.failures += self._lost_early
