"""How much time the launcher's children get before they are ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rueda.launcher import supervisor as module
from rueda.launcher.errors import LaunchError
from rueda.launcher.processes import waited_for_processor
from rueda.launcher.supervisor import Supervisor
from rueda.launcher.writer import Writer


@pytest.fixture
def relay() -> Iterator[int]:
    """A pipe that carries nothing."""
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


class Clock:
    """A loop whose clock jumps to each delayed call, which runs at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, act: Callable[..., None], *rest: object) -> asyncio.Handle:
        def be_late() -> None:
            self.now += delay
            act(*rest)

        return self._loop.call_soon(be_late)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def moment_of(relay: int, waited: Callable[[float], float]) -> float:
    """Returns when a child with a moment of 1 s is told to end; `waited`: its CPU wait by time."""
    told: list[float] = []

    async def run() -> None:
        async with Supervisor(60, Writer(), relay) as supervisor:
            clock = Clock()
            supervisor._loop = cast(Any, clock)
            module.waited_for_processor = lambda _: 5 + waited(clock.now)
            supervisor.end = lambda number: told.append(clock.now)  # type: ignore[method-assign]
            supervisor.spawn(["sleep", "600"], dict(os.environ), lambda *_: None, lambda _: None)
            supervisor.end_after_moment(1)
            while not told:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
    return told[0]


@pytest.mark.parametrize(
    ("waited", "expected"),
    [
        (lambda now: 0, 1),
        (lambda now: min(now, 3), 4),
        (lambda now: now / 2, 2),
        (lambda now: 0.5, 1),  # before the moment began
        (lambda now: now, 1 + 10),  # a moment does not last for ever
    ],
    ids=["sleeps", "at first", "by turns", "before", "always"],
)
def test_a_moment_is_one_in_which_children_have_the_processors(
    relay: int,
    monkeypatch: pytest.MonkeyPatch,
    waited: Callable[[float], float],
    expected: float,
) -> None:
    monkeypatch.setattr(module, "waited_for_processor", None)  # set for each child
    assert moment_of(relay, waited) == pytest.approx(expected, abs=2 * module._LOOK)


def test_what_waits_for_a_processor_is_told_from_what_sleeps(tmp_path: Path) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the kernel does not tell")
    one = sorted(os.sched_getaffinity(0))[0]
    busy = f"import os; os.sched_setaffinity(0, [{one}]); print(flush=True)\nwhile True: pass"
    with (
        subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as second,
    ):
        try:
            for each in (first, second):
                assert each.stdout is not None
                each.stdout.readline()
            before = waited_for_processor(second.pid)
            while waited_for_processor(second.pid) < before + 0.01:  # sooner or later
                assert second.poll() is None
        finally:
            first.kill()
            second.kill()
    assert waited_for_processor(second.pid) == 0, "it is gone"


def test_what_is_only_said_until_the_children_are_ended(relay: int) -> None:
    said: list[str] = []

    async def run() -> None:
        async with Supervisor(60, Writer(), relay) as supervisor:
            say = supervisor.until_ending(said.append)
            say("a stranger has come")
            supervisor.end(signal.SIGTERM)
            say("a connection has ended")

    asyncio.run(run())
    assert said == ["a stranger has come"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_runs_beside_the_children_ends_its_own_processes(
    relay: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would otherwise be ended and reaped as processes that a child has left behind."""
    statuses: list[int] = []
    ended_before: list[list[int]] = []

    async def end_descendants(
        _: Supervisor,
    ) -> None:  # of pytest's process, other tests' among them
        ended_before.append(statuses.copy())

    monkeypatch.setattr(Supervisor, "_end_descendants", end_descendants)

    async def run() -> None:
        async with Supervisor(60, Writer(), relay) as supervisor:
            supervisor._zombies = cast(Any, SimpleNamespace(look=lambda: None))
            process = await asyncio.create_subprocess_exec("sleep", "600")

            async def end() -> None:
                process.send_signal(signal.SIGUSR1)
                statuses.append(await process.wait())

            supervisor.beside.push_async_callback(end)
            supervisor.spawn(["true"], dict(os.environ), lambda *_: None, lambda _: None)
            if fails:
                raise LaunchError("the job cannot be started")
            await supervisor.wait()

    with pytest.raises(LaunchError) if fails else contextlib.nullcontext():
        asyncio.run(asyncio.wait_for(run(), 60))
    assert statuses == [-signal.SIGUSR1]
    assert ended_before == ([] if fails else [statuses])
