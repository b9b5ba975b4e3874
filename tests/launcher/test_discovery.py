"""How the launcher handles the answers of a host discovery script."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from rueda.launcher.elastic import discovery
from rueda.launcher.elastic.discovery import Discovery
from rueda.launcher.errors import LaunchError
from rueda.launcher.hosts import Host


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the script again without a pause."""
    monkeypatch.setattr(discovery, "_PAUSE", 0.001)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages reported."""
    said: list[str] = []
    monkeypatch.setattr(discovery, "say_at_once", said.append)
    return said


def answers(folder: Path, *bodies: str, here_only: bool = False) -> list[tuple[Host, ...] | None]:
    """Runs a script that executes a body per run, the last one repeatedly; returns each result."""
    script = folder / "hosts.sh"
    cases = "".join(f"{number}) {body} ;;\n" for number, body in enumerate(bodies, 1))
    script.write_text(
        f"#!/bin/sh\necho >>runs\ncase $(wc -l <runs) in\n{cases}*) {bodies[-1]} ;;\nesac\n"
    )
    script.chmod(0o755)
    found: list[tuple[Host, ...] | None] = []

    class Watched(Discovery):
        async def _run(self) -> str:
            if (folder / "runs").exists():  # the result of the previous run
                found.append(self.hosts)
            return await super()._run()

    async def ask() -> None:
        async with Watched("./hosts.sh", None, here_only) as asked:
            deadline = asyncio.get_running_loop().time() + 60
            while len(found) < len(bodies):
                assert asyncio.get_running_loop().time() < deadline, found
                assert asked._task is not None
                assert not asked._task.done(), asked._task
                await asyncio.sleep(0.01)

    asyncio.run(ask())
    return found[: len(bodies)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TWO = (Host("a", 1), Host("b", 2))


def test_an_empty_answer_is_none(folder: Path, lines: list[str]) -> None:
    said = answers(folder, "echo a:1; echo b:2", "true", "echo; echo '  '", "echo b:1")
    assert said == [TWO, TWO, TWO, (Host("b", 1),)]
    assert lines == ["--host-discovery-script: './hosts.sh' printed no host"]


def test_no_slots_are_an_answer(folder: Path, lines: list[str]) -> None:
    assert answers(folder, "echo a:1", "echo a:0") == [(Host("a", 1),), (Host("a", 0),)]
    assert lines == []


def test_what_goes_to_standard_error_is_no_answer(folder: Path, lines: list[str]) -> None:
    warns = "echo a:1; echo 'Warning: b:2' >&2"
    assert answers(folder, warns, f"{warns}; exit 3") == [(Host("a", 1),)] * 2
    (line,) = lines
    assert "exited with code 3: a:1\nWarning: b:2" in line


def test_an_answer_of_other_hosts_alone_is_none_where_they_cannot_come(
    folder: Path, lines: list[str]
) -> None:
    here = Host("localhost", 2)
    said = answers(folder, "echo localhost:2", "echo elsewhere:2", here_only=True)
    assert said == [(here,), (here,)]
    (line,) = lines
    assert "names host 'elsewhere', but ranks of other hosts cannot join" in line


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("yes a:1", "has printed more than 1048576 bytes"),
        ("yes >&2", "has printed more than 1048576 bytes"),
        (f"echo a:{'9' * 5000}", "which is not a host"),
        ("echo 'a:1 b'", "which is not a host"),
        ("printf '\\377\\000:1'", "which is not a host"),
    ],
    ids=["endless", "endless errors", "many digits", "two", "binary"],
)
def test_nonsense_leaves_what_there_was(
    folder: Path, lines: list[str], body: str, why: str
) -> None:
    assert answers(folder, "echo a:1", body) == [(Host("a", 1),)] * 2
    (line,) = lines
    assert why in line


def test_trouble_in_other_words_is_reported_once_until_a_valid_answer(
    folder: Path, lines: list[str]
) -> None:
    garbage, failure = "echo warning $(wc -l <runs)", "wc -l <runs; exit 3"
    answers(folder, "echo a:1", garbage, failure, garbage, failure, "echo a:1", garbage, garbage)
    assert [re.sub(r"\d+\b", "N", line) for line in lines] == [
        "--host-discovery-script: './hosts.sh' has printed 'warning N', which is not a host; print 'name:slots'",
        "--host-discovery-script: './hosts.sh' exited with code N: N",
        "--host-discovery-script: './hosts.sh' has printed 'warning N', which is not a host; print 'name:slots'",
    ]


def test_an_answer_that_can_be_used_in_part_is_a_valid_one(folder: Path, lines: list[str]) -> None:
    in_part = "echo localhost:2; echo elsewhere$(wc -l <runs):2"
    answers(folder, in_part, "exit 3", "exit 3", in_part, "exit 3", "exit 3", here_only=True)
    assert ["exited with code 3" in line for line in lines] == [False, True, True]
    assert "names host 'elsewhere1'" in lines[0]


@pytest.mark.parametrize("end", ["", ":2", " :2"])
def test_a_report_is_short_even_if_the_words_are_not(
    folder: Path, lines: list[str], end: str
) -> None:
    long = f"head -c 900000 /dev/zero | tr '\\0' x; echo '{end}'"
    assert answers(folder, "echo a:1", long) == [(Host("a", 1),)] * 2
    (line,) = lines
    assert line == (
        f"--host-discovery-script: './hosts.sh' has printed '{'x' * 300}...', which is not a host; print 'name:slots'"
    )


def test_asking_ends_also_where_a_cancellation_is_lost() -> None:
    class Deaf(Discovery):
        times = 0

        async def _run(self) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.times += 1
                if self.times > 1:
                    raise
            return "localhost:1"

    async def ask() -> None:
        async with Deaf("./hosts.sh", None):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), 30))


@pytest.mark.parametrize(
    "script",
    [
        "./hosts.sh 2",
        "./hosts.sh 1 | tr 1 2",
        "echo a:2",
        "N=2; echo a:$N",
        "./with space.sh",
        "./two",
    ],
)
def test_a_script_is_a_file_or_a_command_for_the_shell(
    folder: Path, lines: list[str], script: str
) -> None:
    (folder / "hosts.sh").write_text('#!/bin/sh\necho "a:$1"\n')
    (folder / "with space.sh").write_text("#!/bin/sh\necho a:2\n")
    (folder / "two").write_text("echo a:2\n")  # that only a shell can run
    for file in folder.iterdir():
        file.chmod(0o755)

    async def ask() -> tuple[Host, ...] | None:
        async with Discovery(script, None) as asked:
            deadline = asyncio.get_running_loop().time() + 60
            while asked.hosts is None and not lines:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            return asked.hosts

    assert asyncio.run(ask()) == (Host("a", 2),)
    assert lines == []


LEAVES_ONE = "sleep 600 & echo $! >left; echo a:2"


def test_what_holds_the_output_of_a_script_at_the_start_is_told() -> None:
    async def ask() -> None:
        async with Discovery(LEAVES_ONE, None) as asked:
            deadline = asyncio.get_running_loop().time() + 60
            while "has ended, but" not in asked.awaited():
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            told = "has ended, but something that it started still holds its output .* yet$"
            with pytest.raises(LaunchError, match=told):
                await discovery._enough(asked, 2, 0.0)

    asyncio.run(ask())


def test_what_a_script_has_started_is_ended_with_it(
    folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_SCRIPT_TIMEOUT", 1.0)

    async def ask() -> str:
        async with Discovery(LEAVES_ONE, None):
            deadline = asyncio.get_running_loop().time() + 60
            while True:
                assert asyncio.get_running_loop().time() < deadline
                for line in lines:
                    if "has ended, but something that it started still holds its output" in line:
                        return line
                await asyncio.sleep(0.01)

    assert asyncio.run(ask()).endswith("has not ended within 1 s")
    left = Path("/proc", (folder / "left").read_text().strip(), "cmdline")
    deadline = time.monotonic() + 60
    while is_there(left):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_there(left: Path) -> bool:
    try:
        return b"sleep" in left.read_bytes()
    except OSError:
        return False
