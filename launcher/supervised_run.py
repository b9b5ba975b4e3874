"""One run of a job, whichever way its ranks are started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from .arrivals import LocalArrivals, OnSession
from .output import RankOutput
from .supervisor import Supervisor


class SupervisedRun(ABC):
    """Runs a job under a supervisor, and reports at the end how it went."""

    def __init__(self, output: RankOutput, grace: float, relay: int) -> None:
        """`relay`: the result of guardian.guard()."""
        self._output = output
        self._grace = grace
        self._relay = relay
        self._absence = ""  # a sentence about a rank that can never arrive

    async def run(self) -> int:
        """Runs the job to its end. Returns the exit code; after a failure, prints the cause."""
        async with Supervisor(self._grace, self._output.writer, self._relay) as supervisor:
            await self._run_ranks(supervisor)
            self._output.finish()
            await supervisor.written()
            code, words = self._verdict(supervisor)
            if words:
                await supervisor.say(words)
            return code

    @abstractmethod
    async def _run_ranks(self, supervisor: Supervisor) -> None:
        """Starts the ranks. Returns when they are gone and all of their output has been read."""

    @abstractmethod
    def _verdict(self, supervisor: Supervisor) -> tuple[int, str]:
        """The exit code and the last line to print, or ""."""

    @abstractmethod
    def _has_failed(self) -> bool:
        """Whether a rank is known to have failed."""

    def _notice_absence(self, supervisor: Supervisor, sentence: str) -> None:
        """Ends all ranks because one can never call `rueda.init()`."""
        if not supervisor.ending and not self._has_failed():
            self._absence = sentence
            supervisor.end_after(0)

    def _arrivals(
        self,
        ranks: int,
        supervisor: Supervisor,
        on_session: OnSession | None = None,
        on_silent: Callable[[str, int], None] | None = None,
    ) -> LocalArrivals:
        """Listens for arrivals of this host's ranks. `on_session`: as for ArrivalSocket; `on_silent`: for Arrivals."""
        return LocalArrivals(
            ranks,
            lambda sentence: self._notice_absence(supervisor, sentence),
            supervisor.until_ending(self._output.say),
            on_session,
            on_silent,
        )
