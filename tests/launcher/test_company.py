"""What the launcher says about lost processes and tells others, tested without processes."""

from __future__ import annotations

from typing import Any

import pytest
from rueda.launcher.elastic.company import Company
from rueda.launcher.elastic.growth import Growth, Limits
from rueda.launcher.failure import Failure


class Said:
    """A process that talks to the launcher."""

    def __init__(self) -> None:
        self.number = -1
        self.is_closed = False
        self.messages: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        self.messages.append(message)

    def close(self) -> None:
        self.is_closed = True


def of_hosts(limits: Limits, lines: list[str] | None = None) -> Company:
    """Rank 0 on a, ranks 1 and 2 on b, rank 3 on c. `lines` receives the launcher's messages."""
    growth = Growth(limits, ["a", "b", "b", "c"], {"a": 1, "b": 2, "c": 1})
    return Company(growth, lambda number: None, say=[].append if lines is None else lines.append)


def gone(*numbers: int) -> list[Failure]:
    return [Failure(number, 1, "b", "its host is gone: silent") for number in numbers]


def test_a_host_whose_loss_ends_the_job_is_not_said_to_be_borne() -> None:
    lines: list[str] = []
    assert not of_hosts(Limits(3, 4), lines).bears(False, *gone(1, 2))
    assert lines == ["the job ends because 2 ranks are left, fewer than --min-np 3"]


def test_a_host_whose_loss_is_borne_is_one_loss() -> None:
    lines: list[str] = []
    of_job = of_hosts(Limits(1, 4, changes=1), lines)
    assert of_job.bears(False, *gone(1, 2))
    assert lines == [
        f"process {number} on b is lost, its host is gone: silent; the job goes on"
        for number in (1, 2)
    ]
    of_job.host_lost("b")
    assert not of_job.bears(False, Failure(3, -9, "c"))
    assert lines[2:] == ["the job ends because it is loss number 2, and --reset-limit is 1"]


def test_the_ranks_of_a_host_that_end_one_after_the_other_are_one_loss() -> None:
    lines: list[str] = []
    of_job = of_hosts(Limits(1, 4, changes=1), lines)
    for number in (1, 2):
        assert of_job.bears(False, Failure(number, -15, "b"))
        of_job.ended(number, False)
    assert not of_job.bears(False, Failure(3, -9, "c"))
    assert lines[2:] == ["the job ends because it is loss number 2, and --reset-limit is 1"]


def test_what_may_yet_end_the_job_is_not_said_to_be_borne() -> None:
    lines: list[str] = []
    assert of_hosts(Limits(1, 4), lines).bears(False, *gone(2), is_certain=False)
    assert lines == ["process 2 on b is lost, its host is gone: silent"]


@pytest.mark.parametrize(
    "message",
    [
        {"hello": float("inf")},
        {"ready": float("-inf")},
        {"waits": float("inf")},
        {"ready": float("nan")},
        {"hello": None},
        {"formed": {"members": [1e999]}},
        {"formed": []},
        {"refused": {"joiners": 7}},
        {"door": {"address": "x", "joiners": {"a": 1}}},
        {"follow": "me"},
    ],
    ids=str,
)
def test_nonsense_ends_a_session_and_nothing_else(message: dict[str, Any]) -> None:
    of_job, talk = of_hosts(Limits(1, 4)), Said()
    of_job.hear(talk, message)
    assert talk.is_closed


def test_a_waiting_process_that_does_not_answer_is_not_waited_for() -> None:
    of_job, member, joiner = of_hosts(Limits(1, 5)), Said(), Said()
    growth = of_job._growth
    number = growth.start("a")
    of_job.hear(member, {"hello": 0})
    of_job.hear(joiner, {"hello": number, "ready": number})

    def told() -> tuple[list[int], list[int]]:
        return member.messages[-1]["joiners"], member.messages[-1]["silent"]

    def look(times: int) -> None:
        for _ in range(times):
            of_job.look()

    for _ in range(3):
        look(14)
        assert told() == ([number], [])
        look(1)
        assert told() == ([], [number])
        of_job.hear(joiner, {"waits": number})
    growth.formed([0, 1, 2, 3, number])
    look(100)
    assert told() == ([], [])
