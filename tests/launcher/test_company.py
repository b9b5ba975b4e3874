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
        {"refused": {"joiners": [], "waited": float("nan")}},
        {"refused": {"joiners": [], "waited": -1}},
        {"probe_at": "here"},
        {"unreached": [1]},
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
    of_job.hear(member, {"probe_at": {"address": "", "probing": [number]}})

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


def test_the_host_for_which_ranks_have_waited_in_vain_is_named_with_the_pause() -> None:
    lines: list[str] = []
    ended: list[int] = []
    growth = Growth(Limits(1, 5), ["a", "a"], {"a": 2, "b": 2, "c": 1})
    of_job, member = Company(growth, ended.append, say=lines.append), Said()
    numbers = [growth.start(host) for host in ("b", "b", "c")]
    of_job.hear(member, {"hello": 0})
    for number in numbers:
        of_job.hear(Said(), {"hello": number, "ready": number})
    of_job.hear(member, {"probe_at": {"address": "", "probing": numbers}})
    of_job.hear(member, {"refused": {"joiners": numbers[:2], "waited": 15.7, "why": "deadline"}})
    assert lines == [
        "the ranks have waited 15.7 s in vain for processes 2, 3 on b to join; the next attempt there follows after "
        "157 s at the earliest"
    ]
    assert ended == numbers[:2]
    assert member.messages[-1]["joiners"] == numbers[2:]
    assert of_job.bears(False, Failure(numbers[0], -15, "b"))
    assert lines[1:] == [
        "process 2 on b has not joined, ended because the ranks could not let it in; the job goes on"
    ]


def test_ranks_that_have_refused_one_hear_again_of_the_others() -> None:
    growth = Growth(Limits(1, 5), ["a", "a"], {"a": 2, "b": 2, "c": 1})
    of_job, member = Company(growth, lambda number: None, say=[].append), Said()
    numbers = [growth.start(host) for host in ("b", "c")]
    of_job.hear(member, {"hello": 0})
    for number in numbers:
        of_job.hear(Said(), {"hello": number, "ready": number})
    of_job.hear(member, {"probe_at": {"address": "", "probing": numbers}})
    of_job.ended(numbers[0], False)
    count = len(member.messages)
    of_job.hear(member, {"refused": {"joiners": numbers[:1], "waited": 15.7, "why": "deadline"}})
    assert member.messages[count:] == [member.messages[count - 1]]
    assert member.messages[-1]["joiners"] == numbers[1:]


class Newcomer:
    """A job of ranks 0 on a and 1 on b, and process 2, which waits on c. Both ranks have told where they are."""

    def __init__(self, *ranks: int) -> None:
        """`ranks`: those of which something has been heard."""
        self.lines: list[str] = []
        self.growth = Growth(Limits(1, 3), ["a", "b"], {"a": 1, "b": 1, "c": 1})
        self.of_job = Company(self.growth, lambda number: None, say=self.lines.append)
        self.members = {rank: Said() for rank in ranks}
        for rank, talk in self.members.items():
            self.of_job.hear(talk, {"hello": rank})
        self.number = self.growth.start("c")
        self.talk = Said()
        self.of_job.look()

    def wait(self) -> None:
        self.of_job.hear(self.talk, {"hello": self.number, "ready": self.number})

    def answer(self, rank: int, address: str, number: int = 2) -> None:
        told = {"address": address, "probing": [number]}
        self.of_job.hear(self.members[rank], {"probe_at": told})

    @property
    def asked(self) -> list[Any]:
        return [message["probe"] for message in self.talk.messages if "probe" in message]

    @property
    def news(self) -> tuple[list[int], list[int]]:
        told = next(iter(self.members.values())).messages[-1]
        return told["probing"], told["joiners"]


def test_ranks_hear_of_one_that_waits_once_it_has_reached_all_of_them() -> None:
    newcomer = Newcomer(0, 1)
    assert newcomer.news == ([2], [])  # before it waits
    newcomer.answer(0, "tcp:a:1")
    newcomer.wait()
    assert newcomer.asked == []
    newcomer.answer(1, "tcp:b:1")
    assert newcomer.asked == [[[0, "a", "tcp:a:1"], [1, "b", "tcp:b:1"]]]
    newcomer.of_job.look()
    assert len(newcomer.asked) == 1
    assert newcomer.news == ([2], [])
    newcomer.of_job.hear(newcomer.talk, {"probed": True})
    assert newcomer.news == ([], [2])
    assert newcomer.lines == []


def test_one_that_cannot_reach_a_rank_is_sent_away() -> None:
    newcomer = Newcomer(0, 1)
    newcomer.wait()
    newcomer.answer(0, "tcp:a:1")
    newcomer.answer(1, "tcp:b:1")
    newcomer.of_job.hear(newcomer.talk, {"unreached": {"1": "c cannot reach b"}})
    assert newcomer.talk.messages[-1] == {
        "over": {"done": False, "why": "this process cannot join: c cannot reach b"}
    }
    assert newcomer.talk.is_closed
    assert newcomer.lines == ["process 2 on c cannot join: c cannot reach b"]
    assert newcomer.news == ([2], [])
    newcomer.of_job.ended(2, False)
    assert newcomer.news == ([], [])


@pytest.mark.parametrize("have_formed", [True, False])
def test_one_that_could_not_reach_a_rank_that_is_lost_is_asked_again(have_formed: bool) -> None:
    """Whether the others have formed another world by then or not."""
    newcomer = Newcomer(0, 1)
    newcomer.wait()
    newcomer.answer(0, "tcp:a:1")
    newcomer.answer(1, "tcp:b:1")
    newcomer.of_job.forget(newcomer.members[1])
    newcomer.of_job.ended(1, False)
    if have_formed:
        newcomer.growth.formed([0])
    newcomer.of_job.hear(newcomer.talk, {"unreached": {"1": "c cannot reach b"}})
    assert newcomer.asked[-1] == [[0, "a", "tcp:a:1"]]
    assert newcomer.lines == []
    newcomer.of_job.hear(newcomer.talk, {"probed": True})
    assert newcomer.news == ([], [2])


def test_one_that_waits_before_any_rank_has_been_heard_is_asked_later() -> None:
    newcomer = Newcomer()
    newcomer.wait()
    newcomer.members = {0: Said()}
    newcomer.of_job.hear(newcomer.members[0], {"hello": 0})
    newcomer.of_job.look()
    assert newcomer.news == ([2], [])
    newcomer.answer(0, "tcp:a:1")
    assert newcomer.asked == [[[0, "a", "tcp:a:1"]]]


def test_an_address_that_a_rank_has_closed_again_is_not_used() -> None:
    newcomer = Newcomer(0)
    newcomer.answer(0, "tcp:a:1")
    newcomer.of_job.ended(2, False)
    number = newcomer.growth.start("c")
    newcomer.of_job.look()
    newcomer.answer(0, "tcp:a:1")  # said before it heard of the other process
    newcomer.of_job.hear(newcomer.talk, {"hello": number, "ready": number})
    assert newcomer.asked == []
    newcomer.answer(0, "tcp:a:2", number)
    assert newcomer.asked == [[[0, "a", "tcp:a:2"]]]


def test_nobody_has_to_reach_ranks_without_an_address_or_without_a_session() -> None:
    newcomer = Newcomer(0)  # rank 1 has no session
    newcomer.wait()
    assert newcomer.news == ([2], [])
    newcomer.answer(0, "")
    assert newcomer.news == ([], [2])
    assert newcomer.asked == []


def test_within_a_host_nothing_has_to_be_proved() -> None:
    growth = Growth(Limits(1, 3), ["a", "a"], {"a": 3})
    of_job, member = Company(growth, lambda number: None, say=[].append), Said()
    of_job.hear(member, {"hello": 0})
    of_job.hear(Said(), {"hello": growth.start("a"), "ready": 2})
    assert member.messages[-1]["joiners"] == [2]
    assert member.messages[-1]["probing"] == []
