"""What `rueda report` makes of recordings: its pure functions, on synthetic recordings."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_times import MS, elastic_run, header, recording, row, two_ranks, world
from rueda.launcher.report.assembly import Asked, assemble
from rueda.report.clocks import Operations, offset_between
from rueda.report.intervals import inside, intervals, paint, union
from rueda.report.native_hooks import _Hooks
from rueda.report.prediction import (
    Links,
    Workload,
    expected_longest,
    fit_bandwidth,
    predict,
    telling,
    tensor_list,
    workload_of,
)
from rueda.report.recorder import Recorder, put_aside
from rueda.report.recording_format import (
    EVAL,
    MAIN,
    NO_ALLREDUCE,
    Kind,
    RecordingError,
    file_of,
    read_folder,
    read_recording,
)
from rueda.report.split import COLUMNS, split
from rueda.report.stragglers import find_stragglers, time_with_bound

COMPUTE, COMMUNICATION, STRAGGLER, INPUT, OTHER = range(5)


# --- Intervals

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def made(of):
    return intervals([a for a, _ in of], [b for _, b in of])


def points(of):
    return {t for a, b in of for t in range(a, b)}


@given(pairs)
def test_a_union_has_the_same_points_in_disjoint_intervals_in_order(of):
    whole = union(made(of))
    assert points(whole.tolist()) == points(of)
    assert (whole[1:, 0] > whole[:-1, 1]).all()
    asked = np.arange(61)
    assert set(asked[inside(whole, asked)].tolist()) == points(of)


@given(st.lists(pairs, max_size=4), st.lists(st.integers(0, 60), max_size=5).map(sorted))
def test_what_is_painted_is_what_is_seen_point_by_point(layers, cuts):
    begin, end = 10, 50
    painted = paint(begin, end, [made(layer) for layer in layers], cuts)
    assert painted.sum() == end - begin
    expected = np.zeros_like(painted)
    for t in range(begin, end):
        seen = next((n for n, layer in enumerate(layers) if t in points(layer)), len(layers))
        expected[sum(cut <= t for cut in cuts), seen] += 1
    assert (painted == expected).all()


# --- The split

kinds = st.sampled_from([k for k in Kind if k not in (Kind.BEGIN, Kind.END)])
anything = st.lists(
    st.tuples(
        kinds,
        st.integers(0, 100),
        st.integers(0, 30),
        st.integers(0, 2),
        st.integers(0, 64),
        st.sampled_from([0, MAIN, MAIN | EVAL]),
    ),
    max_size=25,
)


@given(st.lists(anything, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_whatever_was_recorded_the_parts_are_the_wall_time(tmp_path_factory, ranks):
    folder = tmp_path_factory.mktemp("recordings")
    made = []
    for number, rows in enumerate(ranks):
        ordered = sorted(rows, key=lambda each: each[1] + each[2])
        packed = [row(Kind.BEGIN, 0)]
        packed += [row(k, at, at + long, key, size, f) for k, at, long, key, size, f in ordered]
        packed.append(row(Kind.END, 140))
        made.append(recording(packed, folder, rank=number, size=len(ranks), clock=f"{number}"))
    for each in split(made):
        assert each.wall == pytest.approx(140e-9)
        assert each.whole.sum() == pytest.approx(each.wall)
        assert (each.whole >= 0).all()
        assert (each.training <= each.whole + 1e-15).all()
        assert each.steps.sum() == pytest.approx(each.training.sum()) or not len(each.steps)


@pytest.mark.parametrize("shift", [0, 3_600_000 * MS, -77 * MS])
def test_each_part_is_where_it_was_whatever_the_clocks(tmp_path, shift):
    first, second = split(two_ranks(tmp_path, shift))
    assert first.clock_uncertainty == second.clock_uncertainty == 0
    assert first.training[COMPUTE] == pytest.approx(12 * 0.05)
    assert second.training[COMPUTE] == pytest.approx(12 * 0.07)
    assert first.training[INPUT] == pytest.approx(12 * 0.01)
    assert first.training[STRAGGLER] == pytest.approx(12 * 0.02, abs=1e-9)
    assert second.training[STRAGGLER] == pytest.approx(0, abs=1e-9)
    blocked = first.training[[COMMUNICATION, STRAGGLER]].sum()
    assert blocked == pytest.approx(12 * 0.025)
    assert first.training[OTHER] == pytest.approx(11 * 0.005)
    assert first.waited_for[1] == pytest.approx(12 * 0.02, abs=1e-9)
    assert first.waited_for[0] == 0


def test_ranks_of_one_machine_are_beside_each_other_to_the_nanosecond(tmp_path):
    """Whatever the other machine's ranks report: one hears late of results, one is killed early."""
    shift = 3_600_000 * MS
    rows = {}
    for rank, (late, hears, steps) in enumerate([(0, 0, 12), (0, 0, 12), (20, 4, 12), (0, 30, 1)]):
        ahead = shift if rank else 0
        rows[rank] = [row(Kind.BEGIN, ahead)]
        for step in range(steps):
            ready = (100 * step + 10 + late) * MS + ahead
            done = (100 * step + 35 + hears) * MS + ahead
            rows[rank] += [row(Kind.SUBMIT, ready, ready, 7, 64), row(Kind.WAIT, ready, done, 7)]
            rows[rank].append(row(Kind.STEP, done))
    made = [
        recording(each, tmp_path, rank=rank, size=4, clock="there" if rank else "here")
        for rank, each in rows.items()
    ]
    found = split(made)
    assert found[0].training[STRAGGLER] == pytest.approx(11 * 0.02, abs=1e-9)
    assert found[1].training[STRAGGLER] == pytest.approx(11 * 0.02, abs=1e-9)


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
@settings(deadline=None)
def test_the_difference_of_two_clocks_is_within_its_bounds(shift, gaps):
    at = np.cumsum(np.array(gaps) + 10_000)
    lateness = np.where(np.arange(len(at)) % 2, 5_000, 0)
    done = at + 5_000 + 300
    # The ranks notice completion at different times, within the operation's duration.
    heard = done + np.arange(len(at)) % 3 * 50
    ours = Operations({1: at}, {1: done})
    theirs = Operations({1: at + lateness - shift}, {1: heard - shift})
    offset = offset_between(ours, theirs)
    assert offset is not None
    found = offset(theirs.submitted[1]) - theirs.submitted[1]
    assert (np.abs(found - shift) <= 100).all()


def test_of_what_torch_waits_for_in_cpp_the_wait_begins_with_the_last_gradients(tmp_path):
    rows = [row(Kind.BEGIN, 0), row(Kind.STEP, 10 * MS)]
    for key, at in ((1, 20), (2, 40)):
        rows.append(row(Kind.SUBMIT, at * MS, at * MS, key, 4096))
    rows += [row(Kind.DONE, 30 * MS, key=1, flags=0), row(Kind.DONE, 46 * MS, key=2, flags=0)]
    rows += [row(Kind.STEP, 50 * MS), row(Kind.END, 60 * MS)]
    (found,) = split([recording(rows, tmp_path, size=1)])
    assert found.training[COMMUNICATION] == pytest.approx(0.006)
    assert found.training[COMPUTE] == pytest.approx(0.034)


def test_evaluation_and_what_is_between_steps_is_no_compute(tmp_path):
    rows = [row(Kind.BEGIN, 0)]
    for at in (0, 100):
        rows += [row(Kind.INPUT, at * MS, (at + 5) * MS), row(Kind.STEP, (at + 50) * MS)]
        rows.append(row(Kind.INPUT, (at + 60) * MS, (at + 70) * MS, flags=MAIN | EVAL))
    rows.append(row(Kind.END, 200 * MS))
    (found,) = split([recording(rows, tmp_path, size=1)])
    assert dict(zip(COLUMNS, found.training.round(9).tolist(), strict=True)) == {
        "compute": 0.09,
        "communication": 0.0,
        "straggler": 0.0,
        "input": 0.01,
        "other": 0.05,
    }


def test_a_blocking_call_is_a_submission_and_a_wait(tmp_path):
    rows = [row(Kind.BEGIN, 0), row(Kind.CALL, 10, 30, 7, 64), row(Kind.CALL, 40, 50, 8, 32)]
    found = recording([*rows, row(Kind.END, 60)], tmp_path).rows
    assert [each.tolist()[0] for each in found] == [11, 1, 2, 1, 2, 10]
    assert found["begin"].tolist() == [0, 10, 10, 40, 40, 60]
    assert found["end"].tolist() == [0, 10, 30, 40, 50, 60]
    assert found["bytes"].tolist() == [0, 64, 0, 32, 0, 0]


def test_a_submission_that_its_caller_waits_for_is_recorded_as_a_call():
    rows = []
    recorder = SimpleNamespace(add=lambda kind, *_: rows.append(kind))
    submit = _Hooks(recorder).beginning("allgather", lambda *_, **__: print)
    arguments = (0, (4,), 7, "x", 0)
    submit(*arguments)
    submit(*arguments, begun=None)
    submit(*arguments, begun=[])
    assert rows == [Kind.SUBMIT, Kind.SUBMIT, Kind.CALL]


def test_only_allreduces_are_for_the_simulator(tmp_path):
    rows = [row(Kind.BEGIN, 0), row(Kind.STEP, 10)]
    rows += [row(Kind.SUBMIT, 20, 20, 7, 64), row(Kind.SUBMIT, 30, 30, 8, 32, MAIN | NO_ALLREDUCE)]
    (found,) = split([recording([*rows, row(Kind.STEP, 40), row(Kind.END, 60)], tmp_path, size=1)])
    assert [[one.bytes for one in step] for step in found.submissions] == [[64]]
    assert found.sends_otherwise


@pytest.mark.parametrize(("step", "otherwise"), [(0, False), (1, False), (2, True), (7, True)])
def test_what_is_sent_while_a_training_warms_up_is_not_in_what_is_predicted(
    tmp_path, step, otherwise
):
    """E.g. DistributedOptimizer's agreement on its tensors in the first step."""
    rows = [row(Kind.BEGIN, 0), row(Kind.STEP, MS)]
    for number in range(8):
        at = (number + 1) * 10 * MS
        flags = [MAIN | NO_ALLREDUCE] if number == step else []
        rows += [row(Kind.SUBMIT, at, at, 8, 317, each) for each in flags]
        rows += [row(Kind.SUBMIT, at, at, 7, 64), row(Kind.STEP, at + MS)]
    (found,) = split([recording([*rows, row(Kind.END, 100 * MS)], tmp_path, size=1)])
    assert len(found.steps) == 8
    assert found.sends_otherwise is otherwise


# --- Stragglers


def times(ranks=4, steps=200, seed=0):
    return 0.1 + 0.002 * np.random.default_rng(seed).random((ranks, steps))


def test_a_permanently_slow_rank_is_named_and_no_bound_helps():
    own = times()
    own[2] *= 1.5
    (found,) = find_stragglers(range(4), own, [0, 0, 9.0, 0])
    assert (found.rank, found.kind, found.waited_for) == (2, "permanent", 9.0)
    assert found.factor == pytest.approx(1.5, rel=0.02)
    at_once = time_with_bound(own, 0)
    assert time_with_bound(own, 4) == pytest.approx(at_once, rel=0.01)
    assert time_with_bound(own, float("inf")) == pytest.approx(at_once, rel=0.01)


def test_ranks_that_are_slow_now_and_then_are_named_and_a_bound_helps():
    own = times()
    own[np.random.default_rng(1).random(own.shape) < 0.1] *= 5
    found = find_stragglers(range(4), own, [0.0] * 4)
    assert {each.rank for each in found} == {0, 1, 2, 3}
    assert {each.kind for each in found} == {"transient"}
    assert time_with_bound(own, 4) < 0.8 * time_with_bound(own, 0)


@pytest.mark.parametrize("ahead", [0, 55 * MS])
def test_a_straggler_is_not_blamed_for_what_was_waited_before_the_steps(tmp_path, ahead):
    """Rank 1 loads for 4 s at first, is 300 ms late in the first step, and 40 ms in two of the later ones."""
    made = []
    for rank in (0, 1):
        shift = ahead * rank
        late = [4000 * MS, *(300 * MS * (n == 0) + 40 * MS * (n in (7, 15)) for n in range(24))]
        rows, at = [row(Kind.BEGIN, shift)], 100 * MS + shift
        for number, slowest in enumerate(late):
            at += 10 * MS
            own, done = slowest * rank, at + slowest + MS
            if number:
                rows.append(row(Kind.INPUT, at - 10 * MS, at - 9 * MS))
            rows += [row(Kind.SUBMIT, at + own, at + own, 7, 64), row(Kind.WAIT, at + own, done, 7)]
            if number:
                rows.append(row(Kind.STEP, done))
            at = done
        rows.append(row(Kind.END, at + MS))
        clock = "there" if ahead and rank else "here"
        made.append(recording(rows, tmp_path, rank=rank, clock=clock))
    first, _ = split(made)
    assert first.waited_for[1] == pytest.approx(4.38, abs=1e-6)
    assert first.waited_in_steps[1] == pytest.approx(0.08, abs=1e-6)
    assert first.waited_in_steps[0] == 0
    (found,) = assemble(tmp_path, Asked()).stragglers
    assert (found.rank, found.kind) == (1, "transient")
    assert found.waited_for == pytest.approx(0.08, abs=1e-6)


def test_equal_ranks_are_not_named():
    assert find_stragglers(range(4), times(), [0.0] * 4) == []


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 5), st.integers(0, 10))
@settings(deadline=None)
def test_a_wider_bound_takes_no_longer_and_none_is_quicker_than_the_slowest(r, n, bound, seed):
    own = np.random.default_rng(seed).random((r, n))
    took = time_with_bound(own, bound)
    assert time_with_bound(own, bound + 1) <= took + 1e-12
    assert took >= time_with_bound(own, float("inf")) - 1e-12
    assert time_with_bound(own, 0) == pytest.approx(own.max(0).sum())


# --- Prediction


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20), st.integers(1, 1000))
def test_the_longest_of_more_ranks_takes_no_less_and_at_most_the_longest(sample, ranks):
    own = np.array(sample)
    longest = expected_longest(own, ranks)
    assert expected_longest(own, 1) == pytest.approx(own.mean())
    assert longest <= expected_longest(own, ranks + 1) + 1e-12
    assert longest <= own.max() + 1e-12


def test_a_workload_is_what_a_typical_step_hands_in(tmp_path):
    workload = workload_of(split(two_ranks(tmp_path)))
    assert workload is not None
    assert workload.parts == ((4096,),)
    assert workload.backward == 0
    # After a step ends: 5 ms of logging, 10 ms of input, 50 or 70 ms of compute.
    assert workload.forward == pytest.approx(0.075, abs=1e-6)
    assert workload.own.mean() == pytest.approx(0.075)
    assert workload.step == pytest.approx(0.09)


def shortened(folder, rank, steps):
    """The recording of a rank killed after this many steps."""
    path = file_of(folder, rank)
    found = read_recording(path)
    last = np.flatnonzero(found.rows["kind"] == Kind.STEP)[steps - 1]
    path.write_bytes(found.header.line() + found.rows[: last + 1].tobytes())
    return read_recording(path)


@pytest.mark.parametrize(("steps", "told"), [(1, False), (3, False), (4, True), (12, True)])
def test_fewer_than_four_steps_predict_nothing(tmp_path, steps, told):
    two_ranks(tmp_path)
    workload = workload_of(split([shortened(tmp_path, rank, steps) for rank in (0, 1)]))
    assert (workload is not None) is told


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_rank_that_was_lost_early_does_not_hide_the_steps_of_the_others(tmp_path, steps):
    first, _ = two_ranks(tmp_path)
    lost = shortened(tmp_path, 1, steps) if steps else None
    if lost is None:
        lost = recording([row(Kind.BEGIN, 0), row(Kind.WORLD, MS, 2 * MS)], tmp_path, rank=1)
    splits = split([first, lost])
    assert [each.rank for each in telling(splits)] == [0]
    workload = workload_of(telling(splits))
    assert workload is not None
    assert len(workload.own) == 10  # all but the warm-up steps
    assert workload.step == pytest.approx(0.09)


def test_a_rank_with_half_of_the_steps_counts(tmp_path):
    first, _ = two_ranks(tmp_path)
    assert len(telling(split([first, shortened(tmp_path, 1, 6)]))) == 2


def test_steps_between_exchanges_are_one_round(tmp_path):
    made = []
    for rank in (0, 1):
        rows = [row(Kind.BEGIN, 0), row(Kind.STEP, MS)]
        at = MS
        for step in range(1, 23):
            at += 10 * MS
            if step % 4 == 2:  # after the two warm-up steps, a whole round
                rows += [row(Kind.SUBMIT, at, at, 7, 64), row(Kind.WAIT, at, at + 6 * MS, 7)]
                at += 6 * MS
            rows.append(row(Kind.STEP, at))
        made.append(recording([*rows, row(Kind.END, at)], tmp_path, rank=rank))
    workload = workload_of(split(made))
    assert workload is not None
    assert workload.parts == ((64,),)
    assert workload.period == 4
    assert workload.own.tolist() == pytest.approx([0.04] * 10)
    assert workload.alone == pytest.approx(0.01)
    assert workload.forward == pytest.approx(0.04)
    assert workload.exposed == pytest.approx(0.006)
    found = predict(workload, 8, 1, Links(1, 30, ""), pretended)
    assert found is not None
    assert found.step == pytest.approx((0.04 + found.exposed * 4) / 4)


def pretended(arguments):
    """8 ns per byte at 1 Gbit/s, all of it exposed."""
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    size = sum(map(int, told["--tensors"].split(",")))
    busy = 1e-3 * (float(told.get("--forward", 0)) + float(told.get("--backward", 0)))
    return busy + 8e-9 * size / float(told["--bandwidth"]) * 2 * (1 - 1 / int(told["--hosts"]))


def test_the_rate_of_links_is_that_which_explains_the_communication():
    workload = Workload(((10**6,), (10**6,)), 0.0, 0.0, np.full(10, 0.1), 0.016, 0.116)
    links = fit_bandwidth(workload, 2, 1, Links(10, 30, "measured"), pretended)
    assert links.gbit == pytest.approx(1.0, rel=0.01)
    found = predict(workload, 8, 1, links, pretended)
    assert found is not None
    assert found.exposed == pytest.approx(0.028, rel=0.01)
    assert found.speedup == pytest.approx(8 * 0.1 / 0.128, rel=0.01)
    assert predict(workload, 4, 4, links, pretended) is None  # one host


def test_tensors_are_told_as_the_simulator_takes_them():
    assert tensor_list([400, 400, 1, 6]) == "2x400,4,8"


# --- Ranks that come and go


def test_of_a_job_in_which_ranks_come_and_go_all_are_reported(tmp_path):
    elastic_run(tmp_path)
    found, notes = read_folder(tmp_path)
    assert notes == [
        "the recording of rank 1 is cut short: its process was killed, or could not write any further"
    ]
    splits = split(found)
    assert [each.name for each in splits] == ["0", "1", "1 (world 2)"]
    for each in splits:
        assert each.whole.sum() == pytest.approx(each.wall)
    times = [(each.presence.joined, each.presence.left) for each in splits]
    # 6 steps of 65 ms; 39 ms later the world begins to be formed anew. 2 more steps, and 40 ms until another joins.
    assert times[0] == (None, None)
    assert times[1] == (None, pytest.approx(0.429))
    assert times[2] == (pytest.approx(0.6), None)


def test_who_joined_is_waited_for_in_the_world_that_it_joined_alone(tmp_path):
    first, lost, joined = split(elastic_run(tmp_path))
    assert first.waited_for.tolist() == pytest.approx([0, 0, 12 * 0.02])
    assert first.training[STRAGGLER] == pytest.approx(12 * 0.02)
    assert lost.waited_for.tolist() == joined.waited_for.tolist() == [0, 0, 0]
    (straggler,) = assemble(tmp_path, Asked()).stragglers
    assert straggler.name == "1 (world 2)"
    assert straggler.factor == pytest.approx(80 / 60)


def test_who_joined_is_beside_the_others_whatever_its_clock(tmp_path):
    """Of the one that recorded first and was lost nobody knows by how much the clock differs."""
    first, lost, joined = elastic_run(tmp_path)
    shift = 3_600_000 * MS
    for each in (first, joined):
        rows = each.rows.copy()
        rows["begin"] += shift
        rows["end"] += shift
        host = replace(each.header, clock="there" if each is first else "elsewhere")
        file_of(tmp_path, host.rank, host.epoch).write_bytes(host.line() + rows.tobytes())
    found = split([lost, *read_folder(tmp_path)[0][::2]])
    assert found[1].waited_for.tolist() == pytest.approx([0, 0, 12 * 0.02], abs=1e-6)


def test_speed_up_is_of_the_ranks_that_there_were(tmp_path):
    """Those that the one has in common that joined: 11 of the 19 with a beginning."""
    elastic_run(tmp_path)
    splits = split(read_folder(tmp_path)[0])
    assert [each.name for each in telling(splits)] == ["0", "1 (world 2)"]
    assert [(each.first_step, len(each.steps)) for each in splits] == [(1, 19), (1, 5), (9, 11)]
    found = assemble(tmp_path, Asked())
    assert found.ranks == 2
    assert found.efficiency == pytest.approx(70 / 85)


def test_a_lost_rank_adds_nothing_to_the_speed_up(tmp_path):
    elastic_run(tmp_path, lost=3, joins=20)
    found = assemble(tmp_path, Asked())
    # Of 17 steps that count none was done by two.
    assert found.ranks == 1
    assert found.efficiency == pytest.approx(found.speedup)
    elastic_run(tmp_path, lost=11, joins=20)
    assert assemble(tmp_path, Asked()).ranks == 2, "of the steps that both did"
    file_of(tmp_path, 1).unlink()
    found = assemble(tmp_path, Asked())
    assert found.ranks == pytest.approx(1 + 8 / 17), "its recording was not gathered"


def test_a_rank_that_is_left_out_adds_nothing_and_one_not_gathered_does(tmp_path):
    two_ranks(tmp_path)
    shortened(tmp_path, 1, 2)
    assert assemble(tmp_path, Asked()).ranks == 1
    file_of(tmp_path, 1).unlink()
    assert assemble(tmp_path, Asked()).ranks == 2


def test_who_joins_later_does_not_hide_the_steps_of_the_others(tmp_path):
    elastic_run(tmp_path, joins=15)
    splits = split(read_folder(tmp_path)[0])
    assert [each.name for each in telling(splits)] == ["0"]
    workload = workload_of(telling(splits))
    assert workload is not None
    assert len(workload.own) == 17


def test_who_joined_after_the_lost_rank_is_not_beside_its_steps(tmp_path):
    """Also if the survivor's recording, which has both, was not gathered: at least, all steps of the lost one."""
    elastic_run(tmp_path, lost=20, joins=22, steps=42)
    file_of(tmp_path, 0).unlink()
    found = assemble(tmp_path, Asked())
    first_steps = [(each.name, each.first_step, len(each.steps)) for each in found.splits]
    assert first_steps == [("1", 1, 19), ("1 (world 2)", 21, 19)]
    assert found.stragglers == []


def test_who_joined_is_after_one_that_was_killed_before_it_recorded_that(tmp_path):
    _, _, joined = elastic_run(tmp_path)
    path = file_of(tmp_path, 0)
    one = read_recording(path)
    met = np.flatnonzero(one.rows["kind"] == Kind.WORLD)[-1]
    path.write_bytes(one.header.line() + one.rows[:met].tobytes())
    splits = split([read_recording(path), joined])
    assert [(each.first_step, len(each.steps)) for each in splits] == [(1, 7), (9, 11)]


def test_those_that_joined_at_the_same_time_did_their_steps_together(tmp_path):
    """Also if one of them is lost soon, and a later world was formed without it."""
    first, _, joined = elastic_run(tmp_path)
    other = replace(joined, header=replace(joined.header, rank=2, size=3))
    later = np.frombuffer(world(int(joined.rows["end"].max()) + 2 * MS, 2, 3), joined.rows.dtype)
    for rows in (joined.rows, np.concatenate([joined.rows, later])):
        splits = split([first, replace(joined, rows=rows), other])
        assert [each.first_step for each in splits] == [1, 9, 9]


def without_epochs(folder):
    """What is recorded if init() forms each world, and what was recorded before worlds had numbers."""
    for path in folder.iterdir():
        one = read_recording(path)
        rows = one.rows.copy()
        rows["bytes"][rows["kind"] == Kind.WORLD] &= 0xFFFFFFFF
        head = json.loads(one.header.line())
        del head["epoch"]
        path.write_bytes(json.dumps(head).encode() + b"\n" + rows.tobytes())


def test_a_rank_lost_before_another_first_world_is_subtracted_once(tmp_path):
    elastic_run(tmp_path, lost=5, joins=20)
    numbered = assemble(tmp_path, Asked())
    without_epochs(tmp_path)
    found = assemble(tmp_path, Asked())
    assert found.ranks == numbered.ranks == pytest.approx(1 + 2 / 17)
    assert [each.presence for each in found.splits] == [each.presence for each in numbered.splits]
    assert any("by rueda.init() or rueda.recover()" in note for note in found.notes)


MEETING = "RUEDA_RENDEZVOUS_STORE"


def test_ranks_that_are_started_to_join_are_of_the_same_run(tmp_path, monkeypatch):
    for name in ("MASTER_PORT", "SLURM_JOB_ID", "RUEDA_RENDEZVOUS", MEETING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MEETING, "tcp:a:1")
    joined = Recorder(tmp_path).run()
    monkeypatch.setenv("RUEDA_RENDEZVOUS", "tcp:a:1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # not on other hosts
    assert Recorder(tmp_path).run() == joined != ""
    monkeypatch.setenv(MEETING, "tcp:a:2")
    assert Recorder(tmp_path).run() != joined


def begin(folder, **named):
    recorder = Recorder(folder)
    recorder.enter_world(time.monotonic_ns(), header(**named))
    recorder.end()


def test_who_joins_leaves_the_recordings_of_its_run_where_they_are(tmp_path):
    for rank in (0, 1):
        begin(tmp_path, rank=rank)
    begin(tmp_path, rank=1, epoch=2)
    begin(tmp_path, rank=0, size=3, epoch=4)
    names = {"rank0.report", "rank0.epoch4.report", "rank1.report", "rank1.epoch2.report"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert len(read_folder(tmp_path)[0]) == 4
    begin(tmp_path, rank=0, size=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "rank0.report",
        *(name.replace("report", "previous") for name in names),
    }
    put_aside(tmp_path)
    assert not list(tmp_path.glob("*.report"))


def test_on_a_host_without_rank_0_a_rank_puts_aside_what_joined_as_it(tmp_path):
    begin(tmp_path, rank=1, epoch=2)
    begin(tmp_path, rank=2, size=3, epoch=2)
    begin(tmp_path, rank=1)
    names = {"rank1.report", "rank1.epoch2.previous", "rank2.epoch2.report"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_whose_first_world_was_formed_again_is_matched_by_its_number(tmp_path):
    """Both, by a second rueda.init(): what is handed in in the second is waited for there."""
    made = []
    for rank, late in ((0, 0), (1, 30)):
        rows = [row(Kind.BEGIN, 0), world(MS, 2), row(Kind.SUBMIT, 2 * MS, key=7)]
        rows += [row(Kind.WAIT, 2 * MS, 3 * MS, 7), world(10 * MS, 2)]
        ready = (20 + late) * MS
        rows += [row(Kind.SUBMIT, ready, key=7), row(Kind.WAIT, ready, 51 * MS, 7)]
        made.append(recording([*rows, row(Kind.END, 60 * MS)], tmp_path, rank=rank))
    first, _ = split(made)
    assert first.waited_for.tolist() == pytest.approx([0, 0.03])
    assert first.first_worlds == 2


# --- Bad input


def test_an_empty_folder_says_how_to_record(tmp_path):
    with pytest.raises(RecordingError, match="RUEDA_REPORT="):
        read_folder(tmp_path)
    with pytest.raises(RecordingError, match="No such file"):
        read_folder(tmp_path / "none")


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"size": 3}, "one of 3 ranks"),
        ({"run": "b"}, "different jobs"),
        ({"run": "b", "epoch": 1}, "different jobs"),
    ],
)
def test_recordings_of_different_runs_are_refused(tmp_path, second, says):
    recording([row(Kind.BEGIN, 0)], tmp_path)
    recording([row(Kind.BEGIN, 0)], tmp_path, **{"rank": 1, **second})
    with pytest.raises(RecordingError, match=says):
        read_folder(tmp_path)


DAMAGED = {
    "ends before it begins": lambda rows: rows["end"].__setitem__(5, rows["begin"][5] - 1),
    "before the recording": lambda rows: rows["begin"].__setitem__(5, -1),
    "years later": lambda rows: rows["end"].__setitem__(5, rows["end"][5] + (1 << 58)),
    "the first before there was a clock": lambda rows: rows["begin"].__setitem__(0, -(1 << 62)),
    "a beginning that takes time": lambda rows: rows["end"].__setitem__(0, 1),
    "no beginning": lambda rows: rows["kind"].__setitem__(0, Kind.END),
    "an end after all": lambda rows: rows["end"].__setitem__(-1, 1 << 62),
    "a beginning after all": lambda rows: rows["begin"].__setitem__(0, rows["end"][-1] + 1),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_times_that_cannot_be_are_told_and_the_rest_is_read(tmp_path, damage):
    _, second = two_ranks(tmp_path)
    rows = second.rows.copy()
    DAMAGED[damage](rows)
    file_of(tmp_path, 1).write_bytes(second.header.line() + rows.tobytes())
    found, notes = read_folder(tmp_path)
    assert [each.header.rank for each in found] == [0]
    assert "rank1.report' is damaged: it has rows of impossible times" in notes[0]


IMPOSSIBLE = {
    "rank": (None, "0", -1, 2, 10**15, 1e308, [], {}, True),
    "size": (None, "2", 0, 10**9, 1.5, []),
    "local_size": (None, "2", 0, 3, [], {}),
    "hosts": (None, "1", 0, 3, [], {}),
    "host": (None, 3),
    "pid": (None, -1, "1"),
    "clock": (None, [], {}),
    "run": (None, {}),
    "began": (None, "now", math.nan),
    "command": (None, "train.py", [1]),
    "links": (None, -1, "x", 1e308, [["tcp", 1.0]], [["tcp", 1.0, "1"]], [[1, 1.0, 1.0]]),
    "options": (None, -1, [], {"ring_chunk": 1}),
    "epoch": (None, -1, "1", 1 << 40),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values]
)
def test_a_head_that_cannot_be_is_told_and_the_rest_is_read(tmp_path, name, value):
    _, second = two_ranks(tmp_path)
    described = {**json.loads(second.header.line()), name: value}
    damaged = file_of(tmp_path, 1)
    damaged.write_bytes(json.dumps(described).encode() + b"\n" + second.rows.tobytes())
    found, notes = read_folder(tmp_path)
    assert [each.header.rank for each in found] == [0]
    assert f"rank1.report' is damaged: its head has an impossible '{name}'" in notes[0]


def test_of_two_files_of_the_same_rank_one_is_named_and_left_out(tmp_path):
    first, _ = two_ranks(tmp_path)
    file_of(tmp_path, 1).write_bytes(file_of(tmp_path, 0).read_bytes())
    found, notes = read_folder(tmp_path)
    assert [each.header for each in found] == [first.header]
    says = f"'{tmp_path}/rank1.report' is left out: it says that it is the recording of rank 0, as does rank0.report"
    assert notes == [says, "there is no recording of rank 1: the report is about the rest"]


def test_links_and_options_are_read_as_they_were_written(tmp_path):
    links, options = [["tcp", 12.5, 0], ["mpi", 0.0, 25.0]], {"ring_chunk": "262144"}
    _, second = two_ranks(tmp_path)
    header = replace(second.header, links=links, options=options)
    file_of(tmp_path, 1).write_bytes(header.line() + second.rows.tobytes())
    assert [each.header for each in read_folder(tmp_path)[0]][1] == header


def test_a_missing_rank_a_damaged_and_a_cut_file_are_told_and_the_rest_is_read(tmp_path):
    whole = [row(Kind.BEGIN, 0), row(Kind.STEP, 10), row(Kind.END, 20)]
    # Rows are written once a second is over, and with the last of them.
    recording([*whole, row(Kind.OWN, 20, 21)], tmp_path, size=4)
    recording([], tmp_path, rank=1, size=4)
    recording(whole[:2], tmp_path, rank=2, size=4)
    cut = file_of(tmp_path, 2)
    cut.write_bytes(cut.read_bytes()[:-7])
    file_of(tmp_path, 3).write_bytes(b"nothing of the kind")
    found, notes = read_folder(tmp_path)
    assert [each.header.rank for each in found] == [0, 2]
    assert len(found[1].rows) == 1
    assert "rank1.report' has nothing but its head" in notes[0]
    assert "rank3.report' is not a recording" in notes[1]
    assert "no recording of ranks 1 and 3" in notes[2]
    assert "rank 2 is cut short" in notes[3]
    assert len(notes) == 4
    assert len(split(found)) == 2
