"""Who begins the world of a job whose processes another program starts."""

from __future__ import annotations

from rueda.launcher.elastic.waiting_room import WaitingRoom


def waiting(room: WaitingRoom, rank: int) -> int:
    """Admits one more waiting process."""
    number = room.admit(rank)
    room.is_ready(number)
    return number


def open_door(room: WaitingRoom, beginners: list[int], address: str) -> None:
    """The first of them opens a door, and the others are told."""
    room.meet_at(beginners[0], address)
    room.show(beginners[1:], address)


def test_a_world_begins_with_the_ranks_that_were_asked_for() -> None:
    room = WaitingRoom(3)
    numbers = {rank: waiting(room, rank) for rank in (2, 0)}
    assert room.begin() == []
    numbers[1] = waiting(room, 1)
    assert room.begin() == [numbers[0], numbers[1], numbers[2]]
    assert room.begin() == []  # which is in progress
    room.formed([numbers[0], numbers[1], numbers[2]])
    waiting(room, 1)
    assert room.begin() == []  # the ranks let it in


def test_others_begin_where_one_is_lost_before_the_world_is_formed() -> None:
    room = WaitingRoom(2)
    first, second = waiting(room, 0), waiting(room, 1)
    assert room.begin() == [first, second]
    room.ended(first, False, 0.0)
    assert room.begin() == []
    third = waiting(room, 0)
    assert room.begin() == [third, second]


def test_those_who_have_not_come_through_the_newest_door_begin_again() -> None:
    room = WaitingRoom(2)
    both = [waiting(room, 0), waiting(room, 1)]
    assert room.begin() == both
    open_door(room, both, "a")
    room.is_outside(both[1], "another")
    assert room.begin() == []
    room.is_outside(both[1], "a")
    assert room.begin() == []  # the first may have entered
    room.is_outside(both[0], "a")
    assert room.begin() == both
    open_door(room, both, "b")
    room.is_outside(both[1], "a")  # said before it heard of the other door
    assert room.begin() == []


def test_who_meets_nobody_any_more_is_told_so_once() -> None:
    room = WaitingRoom(2)
    both = [waiting(room, 0), waiting(room, 1)]
    room.begin()
    open_door(room, both, "a")
    assert (room.begin(), room.recall()) == ([], [])
    room.ended(both[0], False, 0.0)
    assert (room.begin(), room.recall(), room.recall()) == ([], both[1:], [])
    third = waiting(room, 0)
    assert room.begin() == []
    room.is_outside(both[1], "a")
    assert room.begin() == [third, both[1]]
    assert room.recall() == []
    room.meet_at(third, "b")
    room.show(both[1:], "b")
    room.ended(third, False, 0.0)
    assert (room.begin(), room.recall()) == ([], both[1:])


def test_nobody_begins_beside_who_may_have_been_let_in() -> None:
    room = WaitingRoom(2)
    old = [waiting(room, 0), waiting(room, 1)]
    room.begin()
    room.formed(old)
    late = waiting(room, 0)
    room.show([late], "a")
    room.is_outside(late, None)  # said before it was shown the door
    for number in old:
        room.ended(number, False, 0.0)
    new = waiting(room, 1)
    assert room.begin() == []
    # The connection broke over which it would have heard of that door.
    room.ended(late, False, 0.0)
    room.come_back(late)
    assert room.begin() == []
    room.is_outside(late, None)
    room.is_ready(late)
    assert room.begin() == [late, new]


def test_where_all_ranks_have_failed_those_that_wait_begin_anew() -> None:
    room = WaitingRoom(2)
    old = [waiting(room, 0), waiting(room, 1)]
    room.begin()
    room.formed(old)
    new = [waiting(room, 0)]
    for number in old:
        assert room.begin() == []
        room.ended(number, False, 0.0)
    assert room.begin() == []
    new.append(waiting(room, 1))
    assert room.begin() == new
    assert room.waiting_for_nothing == []


def test_who_comes_back_was_never_gone() -> None:
    room = WaitingRoom(2)
    ranks = [waiting(room, 0), waiting(room, 1)]
    assert room.begin() == ranks
    room.ended(ranks[1], False, 0.0)  # before it is reported that the world was formed
    assert room.gone == [ranks[1]]
    assert room.knows(ranks[1])
    room.come_back(ranks[1])
    assert room.gone == []
    room.formed(ranks)
    for number in ranks:
        room.ended(number, False, 0.0)
    assert not room.has_ranks
    assert room.knows(ranks[0])
    room.come_back(ranks[0])
    assert room.has_ranks
    assert room.begin() == []


def test_who_has_no_number_or_is_of_a_world_before_is_not_known() -> None:
    room = WaitingRoom(2)
    ranks = [waiting(room, 0), waiting(room, 1)]
    room.formed(ranks)
    room.formed(ranks[:1])
    assert room.knows(ranks[0])
    for number in (ranks[1], 7, "0", None, [0], 1.5):
        assert not room.knows(number)


def test_where_the_work_is_done_who_waits_is_sent_away() -> None:
    room = WaitingRoom(2)
    ranks = [waiting(room, 0), waiting(room, 1)]
    room.begin()
    room.formed(ranks)
    late = [waiting(room, 0), waiting(room, 1)]
    room.ended(ranks[0], True, 0.0)
    assert room.waiting_for_nothing == []  # the other may still let them in
    room.ended(ranks[1], True, 0.0)
    assert room.waiting_for_nothing == late
    assert room.begin() == []
