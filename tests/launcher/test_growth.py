"""When processes are started to join a job, and when processes are to leave it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.elastic.growth import Growth, Limits


class GrowthHere(Growth):
    """The growth of a job on one host."""

    def __init__(self, limits: Limits, ranks: int, slots: int) -> None:
        super().__init__(limits, ["here"] * ranks, {"here": slots})

    def start_one(self) -> int:
        return self.start("here")

    def count_missing(self, now: float) -> int:
        missing = self.missing(now)
        assert set(missing) <= {"here"}
        return len(missing)


def test_what_is_lost_is_replaced_after_a_while_that_doubles() -> None:
    growth = GrowthHere(Limits(1, 3, cooldown=(1.0, 3.0)), 3, 3)
    assert growth.count_missing(0.0) == 0
    for now, pause in ((10.0, 1.0), (20.0, 2.0), (30.0, 3.0), (40.0, 3.0)):
        growth.ended(growth.members[-1] if now == 10.0 else growth.start_one(), False, now)
        assert growth.count_missing(now + pause - 0.01) == 0
        assert growth.count_missing(now + pause) == 1


def test_a_process_that_has_joined_and_stays_shortens_the_pause_again() -> None:
    growth = GrowthHere(Limits(1, 2, cooldown=(1.0, 60.0)), 2, 2)
    growth.ended(1, False, 0.0)
    growth.ended(growth.start_one(), False, 10.0)
    joiner = growth.start_one()
    growth.formed([0, joiner])
    growth.formed([0, joiner])
    growth.ended(joiner, False, 20.0)
    assert growth.count_missing(21.0) == 1


def test_a_host_that_was_quiet_for_long_begins_with_the_shortest_pause() -> None:
    growth = GrowthHere(Limits(1, 2, cooldown=(1.0, 3.0)), 2, 2)
    growth.ended(1, False, 0.0)
    growth.ended(growth.start_one(), False, 10.0)
    growth.ended(growth.start_one(), False, 100.0)
    assert growth.count_missing(101.0) == 1


def test_newcomers_with_which_the_members_part_are_no_losses_and_come_less_and_less_often() -> None:
    growth = GrowthHere(Limits(2, 3, changes=0, cooldown=(1.0, 60.0)), 2, 3)
    now = 0.0
    for pause in (1.0, 2.0, 4.0, 8.0):
        misfit = growth.start_one()
        growth.formed([0, 1, misfit])
        growth.formed([0, 1])
        assert growth.bears_loss_of(misfit, now=now)
        assert not growth.bears_loss_of(1, now=now)  # the misfit does not count as left
        growth.ended(misfit, False, now)
        assert growth.count_missing(now + pause - 0.01) == 0
        assert growth.count_missing(now + pause) == 1
        now += 20.0


def test_a_newcomer_that_ends_well_after_the_others_have_parted_with_it_does_not_end_the_job() -> (
    None
):
    growth = GrowthHere(Limits(1, 3), 2, 3)
    misfit = growth.start_one()
    growth.formed([0, 1, misfit])
    growth.formed([0, 1])
    growth.ended(misfit, True, 0.0)
    assert growth.count_missing(1.0) == 1


def test_where_ranks_wait_in_vain_they_do_nine_tenths_of_the_time_something_else() -> None:
    growth = GrowthHere(Limits(1, 2, cooldown=(1.0, 60.0)), 1, 2)
    now = 0.0
    for pause in (150.0, 300.0, 600.0, 1200.0, 1200.0):
        joiner = growth.start_one()
        growth.is_ready(joiner)
        assert growth.admissible(now) == [joiner]
        now += 15.0
        assert growth.refuse([joiner]) == [joiner]
        assert growth.waited_in_vain([joiner], 15.0, now) == {"here": pause}
        growth.is_ready(joiner)  # it says so before it is ended
        assert growth.ready == [joiner]
        assert growth.admissible(now + pause - 0.1) == []
        assert growth.admissible(now + pause) == [joiner]
        growth.ended(joiner, False, now + 0.1)
        assert growth.count_missing(now + pause - 0.1) == 0
        now += pause
        assert growth.count_missing(now) == 1
    joiner = growth.start_one()
    growth.formed([0, joiner])
    growth.formed([0, joiner])  # it has joined and stays
    assert growth.waited_in_vain([joiner], 15.0, now) == {"here": 150.0}


def test_a_short_wait_in_vain_makes_no_pause_longer() -> None:
    growth = GrowthHere(Limits(1, 2, cooldown=(1.0, 60.0)), 1, 2)
    joiner = growth.start_one()
    assert growth.waited_in_vain([joiner], 0.05, 0.0) == {}
    growth.ended(joiner, False, 0.1)
    assert growth.count_missing(0.9) == 0
    assert growth.count_missing(1.0) == 1


def test_the_ranks_wait_no_longer_for_a_host_than_for_others() -> None:
    growth = Growth(Limits(1, 4), ["a"], {"a": 1, "b": 2, "c": 1})
    numbers = [growth.start(host) for host in ("b", "b", "c")]
    for number in numbers:
        growth.is_ready(number)
    assert growth.admissible(0.0) == numbers
    assert growth.waited_in_vain(growth.refuse(numbers[:1]), 15.0, 0.0) == {"b": 150.0}
    assert growth.admissible(1.0) == numbers[2:]
    assert growth.missing(1.0) == []


def test_who_is_ready_is_told_until_it_is_a_member() -> None:
    growth = GrowthHere(Limits(1, 3), 1, 3)
    first, second = growth.start_one(), growth.start_one()
    growth.is_ready(second)
    growth.is_ready(first)
    growth.is_ready(0)
    assert growth.ready == [first, second]
    growth.formed([0, second])
    assert growth.ready == [first]
    assert growth.refuse([first, second]) == [first]
    assert growth.ready == []


def test_fewer_slots_let_the_last_leave_but_not_the_least_number() -> None:
    growth = GrowthHere(Limits(2, 4), 4, 4)
    growth.set_slots({"here": 1})
    assert growth.leaving == [2, 3]
    growth.set_slots({"here": 4})  # they may have heard that they are to leave
    assert growth.leaving == [2, 3]
    growth.ended(3, True, 0.0)
    assert growth.leaving == [2]
    assert growth.count_missing(0.0) == 2


def test_a_rank_that_has_done_its_work_is_not_replaced() -> None:
    growth = GrowthHere(Limits(1, 3), 2, 3)
    joiner = growth.start_one()
    growth.ended(0, True, 0.0)
    assert growth.count_missing(100.0) == 0
    assert growth.unwanted == [joiner]


def test_the_job_ends_with_too_few_ranks_or_too_many_losses() -> None:
    growth = GrowthHere(Limits(2, 4, changes=1), 4, 4)
    joiner = growth.start_one()
    assert growth.bears_loss_of(joiner, now=0.0)
    assert growth.bears_loss_of(3, now=0.0)
    growth.ended(3, False, 0.0)
    assert not growth.bears_loss_of(2, now=0.0)
    assert "--reset-limit is 1" in growth.why_not(2, now=0.0)
    growth = GrowthHere(Limits(2, 2), 2, 2)
    assert not growth.bears_loss_of(0, now=0.0)
    assert "1 rank is left, fewer than --min-np 2" in growth.why_not(0, now=0.0)


def test_who_has_done_its_work_counts_when_a_rank_is_lost_at_the_end() -> None:
    growth = GrowthHere(Limits(2, 3), 3, 3)
    growth.have_met()
    growth.ended(0, True, 0.0)
    assert growth.bears_loss_of(2, now=0.0)
    growth.ended(1, True, 0.0)
    assert growth.bears_loss_of(2, now=0.0)
    growth = GrowthHere(Limits(2, 3), 3, 3)
    growth.have_met()
    growth.ended(0, True, 0.0)
    growth.ended(1, False, 0.0)
    assert not growth.bears_loss_of(2, now=0.0)
    assert "1 rank is left" in growth.why_not(2, now=0.0)


def test_who_ends_well_before_there_is_a_world_has_done_no_work() -> None:
    growth = GrowthHere(Limits(1, 2), 2, 2)
    growth.ended(0, True, 0.0)
    assert not growth.bears_loss_of(1, now=0.0)
    assert "0 ranks are left, fewer than --min-np 1" in growth.why_not(1, now=0.0)
    growth = GrowthHere(Limits(1, 2), 2, 2)
    growth.formed([0, 1])
    growth.ended(0, True, 0.0)
    assert growth.bears_loss_of(1, now=0.0)


def test_who_was_to_leave_does_not_count_as_left() -> None:
    growth = GrowthHere(Limits(2, 3), 3, 3)
    growth.set_slots({"here": 2})
    growth.ended(2, True, 0.0)
    assert not growth.bears_loss_of(1, now=0.0)


def test_who_is_to_leave_does_not_make_up_for_a_loss() -> None:
    growth = GrowthHere(Limits(2, 4), 4, 4)
    growth.set_slots({"here": 2})
    assert growth.leaving == [2, 3]
    assert not growth.bears_loss_of(1, now=0.0)  # 2 and 3 leave at any moment; then one is left
    assert (
        growth.why_not(1, now=0.0)
        == "1 rank is left without those that are to leave, fewer than --min-np 2"
    )
    assert growth.bears_loss_of(3, now=0.0)
    growth.ended(3, False, 0.0)
    assert growth.bears_loss_of(2, now=0.0)
    growth = GrowthHere(Limits(1, 4), 4, 4)
    growth.set_slots({"here": 2})
    assert growth.bears_loss_of(1, now=0.0)


def test_the_job_goes_on_where_the_others_do_without_one_that_has_ended_well() -> None:
    for is_heard_first in (False, True):
        growth = GrowthHere(Limits(1, 3, cooldown=(1.0, 60.0)), 3, 3)
        growth.formed([0, 1, 2])
        if is_heard_first:
            growth.formed([0, 2])
        growth.ended(1, True, 10.0)
        assert growth.is_ending is not is_heard_first
        growth.formed([0, 2])
        assert not growth.is_ending
        assert growth.count_missing(11.0) == 1
        joiner = growth.start_one()
        assert growth.unwanted == []
        growth.is_ready(joiner)
        growth.formed([0, 2, joiner])
        growth.ended(2, True, 20.0)
        assert growth.is_ending
        assert growth.count_missing(100.0) == 0


def test_what_ends_well_again_and_again_is_started_less_and_less_often() -> None:
    growth = GrowthHere(Limits(1, 2, cooldown=(1.0, 60.0)), 2, 2)
    number = 1
    for now, pause in ((10.0, 1.0), (20.0, 2.0), (30.0, 4.0)):
        growth.formed([0])
        growth.ended(number, True, now)
        assert not growth.is_ending
        assert growth.count_missing(now + pause - 0.01) == 0
        assert growth.count_missing(now + pause) == 1
        number = growth.start_one()
        growth.formed([0, number])


def test_the_loss_of_a_host_is_one_loss() -> None:
    growth = Growth(Limits(1, 6, changes=2), ["a", "b", "b", "b", "c"], {"a": 1, "b": 3, "c": 1})
    assert growth.bears_loss_of(1, 2, 3, now=0.0)
    growth.host_lost("b", 0.0)
    assert growth.alive_on("b") == []
    assert growth.bears_loss_of(4, now=0.0)
    growth.ended(4, False, 0.0)
    assert not growth.bears_loss_of(0, now=0.0)
    assert "it is loss number 3, and --reset-limit is 2" in growth.why_not(0, now=0.0)


def test_ranks_of_a_host_that_end_one_after_the_other_are_one_loss() -> None:
    hosts, slots = ["a", "b", "b", "b", "c"], {"a": 1, "b": 3, "c": 1}
    growth = Growth(Limits(1, 5, changes=1), hosts, slots)
    growth.ended(1, False, 10.0)
    growth.formed([0, 2, 3, 4])  # before the next one has ended
    assert growth.bears_loss_of(2, now=12.0)
    growth.ended(2, False, 12.0)
    assert not growth.bears_loss_of(4, now=12.0)  # on another host
    assert "it is loss number 2" in growth.why_not(4, now=12.0)
    assert not growth.bears_loss_of(3, now=15.0)  # too late to be part of the first loss
    growth.host_lost("b", 13.0)
    assert not growth.bears_loss_of(4, now=13.0)
    assert "it is loss number 2" in growth.why_not(4, now=13.0)


def test_who_has_come_after_a_loss_is_no_part_of_it() -> None:
    growth = Growth(Limits(1, 3, changes=1), ["a", "b"], {"a": 1, "b": 1})
    growth.ended(1, False, 10.0)
    again = growth.start("b")
    growth.formed([0, again])
    assert not growth.bears_loss_of(again, now=11.0)


def test_ranks_of_the_only_host_are_lost_one_by_one() -> None:
    growth = GrowthHere(Limits(1, 3, changes=1), 3, 3)
    growth.ended(2, False, 10.0)
    assert not growth.bears_loss_of(1, now=10.0)


def test_a_host_without_ranks_is_no_loss() -> None:
    growth = Growth(Limits(1, 3, changes=0), ["a"], {"a": 1, "b": 1})
    on_b = growth.start("b")
    growth.is_ready(on_b)
    assert growth.bears_loss_of(on_b, now=0.0)
    growth.host_lost("b", 10.0)
    assert (growth.ready, growth.gone) == ([], [on_b])
    assert growth.missing(10.9) == []  # the host cools down
    assert growth.missing(11.0) == ["b"]
    growth.host_lost("b", 11.0)  # nothing is left on it that could be lost
    assert growth.missing(13.0) == ["b"]


def test_a_host_is_lost_as_a_whole() -> None:
    growth = Growth(Limits(2, 4), ["a", "b", "b"], {"a": 1, "b": 2})
    assert growth.bears_loss_of(1, now=0.0)
    assert not growth.bears_loss_of(1, 2, now=0.0)
    assert growth.why_not(1, 2, now=0.0) == "1 rank is left, fewer than --min-np 2"


def test_what_is_lost_is_replaced_where_there_is_room() -> None:
    growth = Growth(Limits(1, 4, cooldown=(1.0, 60.0)), ["a", "a", "b"], {"a": 2, "b": 2, "c": 1})
    assert growth.missing(0.0) == ["b"]  # hosts are filled in order
    number = growth.start("b")
    assert growth.host_of(number) == "b"
    growth.formed([0, 1, 2, number])
    assert growth.missing(0.0) == []
    growth.ended(1, False, 10.0)
    assert growth.missing(10.0) == ["c"]  # another host fills in while this one cools down
    assert growth.missing(11.0) == ["a"]


def test_each_host_cools_down_by_itself() -> None:
    growth = Growth(Limits(1, 5, cooldown=(1.0, 60.0)), ["a"], {"a": 1, "b": 1, "c": 1})
    growth.host_failed("b", 0.0)
    growth.host_failed("b", 1.0)
    growth.ended(growth.start("c"), False, 1.5)
    assert growth.missing(1.5) == []
    assert growth.missing(2.5) == ["c"]
    assert growth.missing(3.0) == ["b", "c"]
    joined = growth.start("c")
    growth.formed([0, joined])
    growth.formed([0, joined])
    growth.ended(joined, False, 10.0)
    growth.host_failed("b", 10.0)
    assert growth.missing(11.0) == ["c"]  # c was forgiven, b was not
    assert growth.missing(14.0) == ["b", "c"]


def test_the_ranks_of_a_host_that_has_vanished_leave_but_not_the_least_number() -> None:
    growth = Growth(Limits(2, 4), ["a", "b", "b", "c"], {"a": 1, "b": 2, "c": 1})
    growth.set_slots({"a": 1, "c": 1})
    assert growth.leaving == [1, 2]
    assert growth.alive_on("b") == [1, 2]
    growth = Growth(Limits(3, 4), ["a", "b", "b", "c"], {"a": 1, "b": 2, "c": 1})
    growth.set_slots({"a": 1, "c": 1})
    assert growth.leaving == [2]
    growth.formed([0, 1, 3, growth.start("c")])
    growth.set_slots({"a": 1, "c": 2})  # now there are enough others
    assert growth.leaving == [1, 2]


def test_who_has_not_joined_is_not_wanted_on_a_host_that_has_vanished() -> None:
    growth = Growth(Limits(1, 4), ["a"], {"a": 1, "b": 1, "c": 1})
    on_b, on_c = growth.start("b"), growth.start("c")
    assert growth.unwanted == []
    growth.set_slots({"a": 1, "c": 1})
    assert growth.unwanted == [on_b]
    growth.ended(on_b, True, 0.0)
    growth.ended(on_c, True, 0.0)
    assert not growth.is_over
    growth.ended(0, True, 0.0)
    assert growth.is_over


def test_who_is_told_to_end_before_it_has_joined_does_not_end_the_job() -> None:
    growth = Growth(Limits(1, 3), ["a"], {"a": 1, "b": 1})
    on_b = growth.start("b")
    growth.set_slots({"a": 1})
    assert growth.unwanted == [on_b]
    growth.let_go(on_b)
    assert growth.unwanted == []
    growth.is_ready(on_b)  # said before it heard
    assert growth.ready == []
    growth.set_slots({"a": 1, "b": 1})
    growth.ended(on_b, True, 0.0)
    assert growth.missing(0.0) == ["b"]
    growth.ended(0, True, 0.0)
    assert growth.missing(0.0) == []


def test_who_is_told_to_end_and_joins_nevertheless_is_to_leave() -> None:
    growth = GrowthHere(Limits(1, 2), 1, 2)
    joiner = growth.start_one()
    growth.is_ready(joiner)
    growth.let_go(joiner)
    growth.formed([0, joiner])
    assert growth.leaving == [joiner]


def test_what_fails_at_once_is_one_failure() -> None:
    growth = Growth(Limits(1, 8, cooldown=(1.0, 60.0)), ["a", *["b"] * 4], {"a": 1, "b": 4})
    for number in growth.alive_on("b"):
        growth.ended(number, False, 10.0)
    assert growth.missing(10.9) == []
    assert growth.missing(11.0) == ["b"] * 4
    growth.ended(growth.start("b"), False, 11.0)  # the next failure
    assert growth.missing(12.9) == []
    assert growth.missing(13.0) == ["b"] * 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "ready", "form", "lose", "end", "slots", "refuse"]),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_there_are_never_more_processes_than_allowed(events: list[tuple[str, int]]) -> None:
    limits = Limits(1, 5, cooldown=(0.0, 0.0))
    growth = GrowthHere(limits, 3, 5)
    alive = {0, 1, 2}
    for now, (event, value) in enumerate(events):
        chosen = sorted(alive)[value % len(alive)] if alive else None
        if event == "start" and growth.count_missing(now) > 0:
            number = growth.start_one()
            assert number not in alive
            assert number > 2
            alive.add(number)
        elif event == "ready" and chosen is not None:
            growth.is_ready(chosen)
        elif event == "form":
            growth.formed(sorted({n for n in growth.members if n in alive} | set(growth.ready)))
        elif event in ("lose", "end") and chosen is not None:
            growth.ended(chosen, event == "end", now)
            alive.discard(chosen)
        elif event == "slots":
            growth.set_slots({"here": value})
        elif event == "refuse":
            for number in growth.refuse(growth.ready):
                growth.ended(number, False, now)
                alive.discard(number)
        assert len(alive - set(growth.leaving)) + growth.count_missing(now) <= max(
            limits.most, len(alive - set(growth.leaving))
        )
        assert set(growth.ready) <= alive
        assert set(growth.leaving) <= alive
        if {n for n in alive if growth.was_member(n)}:
            assert not set(growth.ready) & set(growth.unwanted)
