"""Starts groups of ranks, and ends all of them however the run ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType, TracebackType

from rueda.launcher.processes import adopt_orphans
from rueda.launcher.temporary import require_temporary_files

from .contenders import Contender, Setting
from .group import Group, Listener, end_all


class Interrupted(BaseException):
    """A signal ends the run. Not an `Exception`, so that no handler catches it by accident."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


_TIMEOUT, _SHORT_TIMEOUT = 10.0, 2.0  # seconds
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number))


class Arena:
    """A context manager that owns all groups of a run."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._groups: list[Group] = []
        self.processors = tuple(sorted(os.sched_getaffinity(0)))

    def __enter__(self) -> Arena:
        require_temporary_files()
        adopt_orphans()
        self._before = {number: signal.signal(number, _interrupt) for number in _ENDING}
        self._folder = Path(tempfile.mkdtemp(prefix="rueda-bench-"))
        self._listener = Listener()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        for number in _ENDING:  # a second Ctrl-C must not leave processes behind
            signal.signal(number, signal.SIG_IGN)
        self._listener.close()
        # MPI ranks get a moment to remove their files even when the run is interrupted.
        end_all(self._groups, _TIMEOUT if kind is None else _SHORT_TIMEOUT)
        shutil.rmtree(self._folder, ignore_errors=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, contender: Contender, room: int = 0) -> Group:
        """Starts a contender's ranks and waits until they have joined. Raises GroupFailed.

        `room`: bytes per rank in the area that the group shares.
        """
        number = len(self._groups)
        folder = self._folder / str(number)
        folder.mkdir()
        token = f"{contender.name}.{number}".replace(" ", "-")
        group = Group(contender.name, token, folder / "log")
        self._groups.append(group)
        setting = Setting(
            self._ranks,
            self._listener.address,
            token,
            folder,
            self._ranks > len(self.processors),
        )
        group.start(contender.commands(setting))
        group.join(self._listener, self._ranks, self.processors, room, contender.joins_within)
        return group
