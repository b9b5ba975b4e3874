"""Where the time of each rank went: compute, exposed communication, straggler wait, input wait, other. Pure.

Of the time in which the training thread is blocked in Rueda, what lies before the last rank has handed the operation in
is straggler wait, the rest is exposed communication. What it waits for batches is input wait. Compute is the rest from
a step's first batch (where there are no batches, from the end of the step before) to the step's end. All else is other:
before the first step and after the last one, and between a step's end and the next batch, where scripts log, evaluate
and write checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rueda.report.clocks import SAME, Offset, Operations, matched, offset_between
from rueda.report.intervals import NONE, Intervals, intervals, paint, union
from rueda.report.membership import (
    Presence,
    first_steps,
    presences,
    sizes_at,
    world_numbers,
    worlds_of,
)
from rueda.report.recording_format import (
    EVAL,
    MAIN,
    NO_ALLREDUCE,
    ON_GPU,
    Kind,
    Recording,
    Rows,
    rank_name,
)

__all__ = ["COLUMNS", "WARM_UP", "RankSplit", "Submission", "skipped_of", "split"]

COLUMNS = ("compute", "communication", "straggler", "input", "other")
# Of the first steps, whose tensors are agreed on and memory is new.
WARM_UP = 2
# As the layers are painted, from the top: what is explicitly other stands in the fourth, the rest in the last.
_STRAGGLER, _COMMUNICATION, _INPUT, _OWN, _COMPUTE, _REST = range(6)
_NEVER = np.iinfo(np.int64).max
Times = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Submission:
    """Of a step: bytes, and after how much of the step's own time, in seconds, it was handed in.

    ``alone``: the training thread had waited for all before it.
    """

    bytes: int
    after: float
    alone: bool


@dataclass(frozen=True)
class RankSplit:
    """Of one rank, in seconds. ``whole`` and ``training``, from the first step to the last, have the COLUMNS.

    - ``steps``: (S, 5), the COLUMNS of each step that has a beginning.
    - ``rank``: that with which it began, in the world with the number ``epoch``: 0, or that which it joined.
    - ``place``: its own in what was waited for: its rank, or one after all ranks of the first world.
    - ``waited_for``: for each place, how long it was waited for; ``waited_in_steps``: in steps alone, after those that
      warm up.
    - ``first_step``: how many steps of the job there were before its own; ``sizes``: (S,), the ranks of its world in
      each step.
    - ``events``: rows of the recording; ``recording``: seconds that writing them took.
    """

    rank: int
    epoch: int
    place: int
    presence: Presence
    host: str
    wall: float
    whole: Seconds
    training: Seconds
    steps: Seconds
    submissions: tuple[tuple[Submission, ...], ...]
    waited_for: Seconds
    waited_in_steps: Seconds
    clock_uncertainty: float
    events: int
    recording: float
    uses_gpu: bool
    first_worlds: int  # how many rueda.init() has formed
    sends_otherwise: bool  # in a step after those that warm up, than by allreduce
    first_step: int
    sizes: Times

    @property
    def name(self) -> str:
        """Of the rank, which no other has."""
        return rank_name(self.rank, self.epoch)

    @property
    def own(self) -> Seconds:
        """Of each step: the time that no other rank has a part in."""
        return np.asarray(self.steps[:, [0, 3, 4]].sum(1))


@dataclass(frozen=True)
class _Waits:
    """Times of one rank in which it was blocked: for what, and which of that key."""

    key: Times
    number: Times
    begin: Times
    end: Times


@dataclass(frozen=True)
class _Places:
    """``of``: of each recording, its place in what was waited for; ``size``: how many there are."""

    of: Times
    size: int


@dataclass(frozen=True)
class _Member:
    """What a recording is among those of the same run; ``steps``: when its own ended."""

    steps: Times
    place: int
    presence: Presence
    first_step: int


def split(recordings: Sequence[Recording]) -> list[RankSplit]:
    """Of all ranks, in the order of the recordings: first those of the first world, then as others joined."""
    ends = [_steps(recording) for recording in recordings]
    numbered = [
        _numbered(*each) for each in zip(recordings, world_numbers(recordings), ends, strict=True)
    ]
    operations = [each[0] for each in numbered]
    offsets = _offsets(recordings, operations)
    last = matched(operations, offsets)
    pulls = [r.of(Kind.PULL) for r in recordings]
    durations = np.concatenate([rows["end"] - rows["begin"] for rows in pulls])
    # What a table takes to answer when nobody is waited for.
    answer = int(np.percentile(durations, 10)) if len(durations) else 0
    places = _places(recordings)
    firsts = first_steps(recordings, ends)
    present = presences(recordings)
    found = []
    for number, recording in enumerate(recordings):
        waits = numbered[number][1]
        lost: list[Intervals] = []
        waited_for = np.zeros(places.size)
        waited_in_steps = np.zeros_like(waited_for)
        first, last_end = _after_warm_up(recording, ends[number])
        for key in np.unique(waits.key):
            if key not in last:
                continue
            chosen = waits.key == key
            moment, who = last[int(key)]
            index = np.clip(waits.number[chosen], 0, len(moment) - 1)
            # Back on this rank's own clock.
            ours = offsets[number].back(moment[index])
            begin, end = waits.begin[chosen], waits.end[chosen]
            until = np.where(who[index] == number, begin, np.clip(ours, begin, end))
            lost.append(intervals(begin, until))
            blamed = places.of[who[index]]
            within = np.clip(until, first, last_end) - np.clip(begin, first, last_end)
            np.add.at(waited_for, blamed, (until - begin) * 1e-9)
            np.add.at(waited_in_steps, blamed, within * 1e-9)
        pulled = pulls[number]
        lost.append(intervals(pulled["begin"], pulled["end"] - answer))
        waited = (waited_for, waited_in_steps)
        place = int(places.of[number])
        member = _Member(ends[number], place, present[number], firsts[number])
        uncertainty = offsets[number].uncertainty
        found.append(_split(recording, member, waits, np.concatenate(lost), waited, uncertainty))
    return found


def _places(recordings: Sequence[Recording]) -> _Places:
    """Ranks of the first world have theirs there, recorded or not, and those that joined come after them."""
    headers = [recording.header for recording in recordings]
    size = max((each.size for each in headers if not each.epoch), default=0)
    joined = np.cumsum([each.epoch > 0 for each in headers])
    of = [
        size + n - 1 if each.epoch else each.rank for each, n in zip(headers, joined, strict=True)
    ]
    return _Places(np.array(of), size + int(joined[-1]))


def _offsets(recordings: Sequence[Recording], operations: Sequence[Operations]) -> list[Offset]:
    """To the clock of the one with most operations: of each clock one, by that of its ranks that tell it best.

    Ranks with few operations tell little, however well these agree: such as one that was killed early.
    """
    clocks = [recording.header.clock for recording in recordings]
    counts = [sum(map(len, each.submitted.values())) for each in operations]
    base = counts.index(max(counts))
    told: dict[str, list[Offset]] = {clocks[base]: [SAME]}
    for clock, own in zip(clocks, operations, strict=True):
        offset = None if clock == clocks[base] else offset_between(operations[base], own)
        if offset:
            told.setdefault(clock, []).append(offset)
    found = {}
    for clock, offsets in told.items():
        most = max(offset.operations for offset in offsets)
        enough = [offset for offset in offsets if 2 * offset.operations >= most]
        found[clock] = min(enough, key=lambda offset: offset.uncertainty)
    return [found.get(clock, SAME) for clock in clocks]


def _steps(recording: Recording) -> Times:
    """When steps ended."""
    marks = recording.of(Kind.MARK)
    rows = marks if len(marks) else recording.of(Kind.STEP)
    return np.sort(rows["end"])


def _numbered(recording: Recording, worlds: Times, steps: Times) -> tuple[Operations, _Waits]:
    """Submissions of a world by key, and the waits for them.

    ``worlds``: the number of each row's; ``steps``: when they ended.
    """
    rows = recording.rows
    keys = rows["key"].astype(np.int64) + (worlds << 32) * (rows["key"] > 0)
    is_submission = (rows["kind"] == Kind.SUBMIT) & (rows["key"] > 0)
    is_wait = (rows["kind"] == Kind.WAIT) & (rows["flags"] & MAIN > 0)
    is_done = rows["kind"] == Kind.DONE
    submitted: dict[int, Times] = {}
    done: dict[int, Times] = {}
    waits: list[Times] = []
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    heard: list[Times] = []  # submission's end, number, key, when
    for group in np.split(order, bounds):
        key = int(keys[group[0]]) if len(group) else 0
        chosen = rows[group]
        made = chosen[is_submission[group]]
        if key and len(made):
            submitted[key] = made["begin"]
            done[key] = np.full(len(made), _NEVER)
        for kind, which in ((Kind.WAIT, is_wait[group]), (Kind.DONE, is_done[group])):
            ends = chosen[which]
            if not len(ends):
                continue
            if key not in submitted:
                number = np.full(len(ends), -1)
            else:
                limit = ends["begin"] if kind == Kind.WAIT else ends["end"]
                number = np.searchsorted(submitted[key], limit, "right") - 1
                known = number >= 0
                np.minimum.at(done[key], number[known], ends["end"][known])
            if kind == Kind.WAIT:
                waits.append(
                    np.column_stack([np.full(len(ends), key), number, ends["begin"], ends["end"]])
                )
            elif key in submitted:
                known = number >= 0
                made_end = made["end"][number[known]]
                heard.append(
                    np.column_stack(
                        [made_end, number[known], np.full(known.sum(), key), ends["end"][known]]
                    )
                )
    if heard and len(steps):
        waits.append(_waits_in_cpp(np.concatenate(heard), steps))
    all_waits = np.concatenate(waits) if waits else np.empty((0, 4), np.int64)
    return Operations(submitted, done), _Waits(*all_waits.T)


def _waits_in_cpp(heard: Times, steps: Times) -> Times:
    """Of what torch's C++ waits for, as at the end of DistributedDataParallel's backward pass.

    Nobody sees it wait. It begins once the last gradients of the step have been handed in, and ends when all are done.
    """
    step = np.searchsorted(steps, heard[:, 0])
    latest = np.zeros(len(steps) + 1, np.int64)
    np.maximum.at(latest, step, heard[:, 0])
    begin = latest[step]
    return np.column_stack([heard[:, 2], heard[:, 1], begin, np.maximum(begin, heard[:, 3])])


def _split(
    recording: Recording,
    member: _Member,
    waits: _Waits,
    lost: Intervals,
    waited: tuple[Seconds, Seconds],
    uncertainty: float,
) -> RankSplit:
    rows = recording.rows
    main = rows[rows["flags"] & MAIN > 0]

    def of(*kinds: Kind) -> Rows:
        return main[np.isin(main["kind"], kinds)]

    begin, end = int(rows["begin"].min()), int(rows["end"].max())
    blocked = [intervals(rows["begin"], rows["end"]) for rows in (of(Kind.SUBMIT), of(Kind.PULL))]
    communication = union(np.concatenate([intervals(waits.begin, waits.end), *blocked]))
    batches = of(Kind.INPUT)
    is_training = batches["flags"] & EVAL == 0
    training_batches = batches[is_training]
    own = of(Kind.OWN, Kind.WORLD)
    evaluation = batches[~is_training]
    steps = member.steps
    starts = _starts(steps, training_batches["begin"])
    has_start = starts < steps if len(steps) else np.zeros(0, bool)
    zones = intervals(starts[has_start], steps[has_start]) if len(steps) else NONE
    if not len(steps):
        zones = _without_steps(of(Kind.SUBMIT, Kind.WAIT), training_batches)
    layers = [
        lost,
        communication,
        intervals(training_batches["begin"], training_batches["end"]),
        np.concatenate([intervals(each["begin"], each["end"]) for each in (own, evaluation)]),
        zones,
    ]
    edges = _edges(steps, starts, zones)
    pieces = _columns(paint(begin, end, layers, edges))
    inner = pieces[1:-1] if len(edges) > 1 else np.zeros((0, len(COLUMNS)))
    submissions = _submissions(rows, communication, edges, waits)
    count = len(inner) if len(steps) else 0
    return RankSplit(
        recording.header.rank,
        recording.header.epoch,
        member.place,
        member.presence,
        recording.header.host,
        (end - begin) * 1e-9,
        pieces.sum(0),
        inner.sum(0),
        inner if len(steps) else np.zeros((0, len(COLUMNS))),
        submissions if len(steps) else (),
        *waited,
        uncertainty * 1e-9,
        len(rows),
        float((own["end"] - own["begin"])[own["kind"] == Kind.OWN].sum()) * 1e-9,
        bool((rows["flags"][rows["kind"] == Kind.SUBMIT] & ON_GPU).any()),
        max((formed for formed, _ in worlds_of(recording)), default=1),
        _sends_otherwise(rows, edges),
        member.first_step + len(steps) - count,
        sizes_at(recording, steps[len(steps) - count :]),
    )


def skipped_of(steps: int) -> int:
    """How many steps warm up, of so many; three are left where there are as many."""
    return min(WARM_UP, max(0, steps - 3))


def _sends_otherwise(rows: Rows, edges: Times) -> bool:
    if len(edges) < 2:
        return False
    others = rows[(rows["kind"] == Kind.SUBMIT) & (rows["flags"] & NO_ALLREDUCE > 0)]
    first = edges[skipped_of(len(edges) - 1)]
    return bool(((others["begin"] >= first) & (others["begin"] < edges[-1])).any())


def _columns(painted: Times) -> Seconds:
    """From layers to COLUMNS, in seconds."""
    return (
        np.column_stack(
            [
                painted[:, _COMPUTE],
                painted[:, _COMMUNICATION],
                painted[:, _STRAGGLER],
                painted[:, _INPUT],
                painted[:, _OWN] + painted[:, _REST],
            ]
        )
        * 1e-9
    )


def _starts(steps: Times, batches: Times) -> Times:
    """When each step's compute begins: with its first batch, or else with the end of the step before.

    Of a first step without a batch nobody knows: it has none, and begins where it ends.
    """
    if not len(steps):
        return steps
    before = np.concatenate([[np.iinfo(np.int64).min], steps[:-1]])
    # The first batch that was asked for after the step before; where there is none, what comes after all steps.
    asked = np.append(batches, _NEVER)[np.searchsorted(batches, before)]
    otherwise = np.concatenate([steps[:1], steps[:-1]])
    return np.where(asked < steps, asked, otherwise)


def _without_steps(operations: Rows, batches: Rows) -> Intervals:
    """From the first thing that was done to the last one."""
    if not len(operations):
        return NONE
    begin = min([operations["begin"].min(), *batches["begin"][:1]])
    return intervals([begin], [operations["end"].max()])


def _edges(steps: Times, starts: Times, zones: Intervals) -> Times:
    """Where steps meet: from the beginning of the first to the end of the last."""
    if not len(steps):
        return zones.reshape(-1)
    if starts[0] < steps[0]:
        return np.concatenate([starts[:1], steps])
    return steps


def _after_warm_up(recording: Recording, steps: Times) -> tuple[int, int]:
    """From where to where the steps are in which stragglers are looked for."""
    rows = recording.of(Kind.INPUT)
    batches = rows[(rows["flags"] & MAIN > 0) & (rows["flags"] & EVAL == 0)]
    edges = _edges(steps, _starts(steps, batches["begin"]), NONE)[WARM_UP:]
    return (int(edges[0]), int(edges[-1])) if len(edges) else (0, 0)


def _submissions(
    rows: Rows, blocked: Intervals, edges: Times, waits: _Waits
) -> tuple[tuple[Submission, ...], ...]:
    """Of each step, the allreduces with bytes, in their order."""
    if len(edges) < 2:
        return ()
    is_allreduce = rows["flags"] & NO_ALLREDUCE == 0
    every = rows[(rows["kind"] == Kind.SUBMIT) & (rows["bytes"] > 0) & is_allreduce]
    every = every[np.argsort(every["begin"], kind="stable")]
    lengths = np.concatenate([[0], np.cumsum(blocked[:, 1] - blocked[:, 0])])

    def blocked_before(times: Times) -> Times:
        if not len(blocked):
            return np.zeros(len(times), np.int64)
        at = np.searchsorted(blocked[:, 0], times, "right")
        over = np.where(at > 0, np.maximum(0, blocked[np.maximum(at - 1, 0), 1] - times), 0)
        return lengths[at] - over

    step = np.searchsorted(edges, every["begin"], "right") - 1
    inner = (step >= 0) & (step < len(edges) - 1)
    every, step = every[inner], step[inner]
    own = every["begin"] - blocked_before(every["begin"])
    base = edges[:-1] - blocked_before(edges[:-1])
    after = (own - base[step]) * 1e-9
    ends = np.sort(waits.end)
    # Whether as many waits have ended before it as there were submissions.
    previous = np.concatenate([every["begin"][:1], every["begin"][:-1]])
    alone = np.searchsorted(ends, every["begin"], "right") > np.searchsorted(ends, previous, "left")
    first = np.concatenate([[True], np.diff(step) > 0]) if len(step) else np.zeros(0, bool)
    alone = alone | first
    found: list[list[Submission]] = [[] for _ in range(len(edges) - 1)]
    for number, size, moment, is_alone in zip(
        step.tolist(), every["bytes"].tolist(), after.tolist(), alone.tolist(), strict=True
    ):
        found[number].append(Submission(size, moment, is_alone))
    return tuple(map(tuple, found))
