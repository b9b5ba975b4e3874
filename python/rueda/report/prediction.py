"""What a step would take on other numbers of ranks. Pure, but for the simulator that it is given.

A step takes what the slowest rank's own time is, and then the communication that is exposed. The own time on P ranks is
the mean of the greatest of P draws from the own times that were recorded; the exposed communication is what the
simulator (docs/scaling.md), which runs the engine's own plans, says of the tensors and of when they were handed in.
Every rank keeps its share of the data: the work grows with the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rueda.report.membership import Presence
from rueda.report.split import RankSplit, Submission, skipped_of

__all__ = [
    "FEWEST",
    "Links",
    "Prediction",
    "Simulate",
    "Workload",
    "expected_longest",
    "fit_bandwidth",
    "mean_size",
    "predict",
    "steps_of_all",
    "telling",
    "tensor_list",
    "workload_of",
]

# Steps from which something can be predicted.
FEWEST = 4
# Below this share of a step, exposed communication says nothing of links.
_TELLING = 0.01
_EVER = 1 << 62  # steps
Seconds = npt.NDArray[np.float64]
# Arguments of the simulator, to the seconds that a step takes.
Simulate = Callable[[Sequence[str]], float]


@dataclass(frozen=True)
class Links:
    """Between hosts, and where the numbers come from."""

    gbit: float
    latency_us: float
    source: str


@dataclass(frozen=True)
class Workload:
    """A typical step. Times in seconds.

    - ``parts``: bytes of the tensors in the order in which they are handed in; those of a part are waited for before
      the next part is handed in.
    - ``forward``, ``backward``: until the first tensor begins to be made, and from there to the last one.
    - ``own``: of all ranks and rounds, the time in which a rank waits for no other. A round ends with a step in which
      tensors are exchanged: each step, or each H-th of local SGD.
    - ``exposed``: communication that was exposed in a round.
    - ``step``: what a step took; ``period``: how many a round has.
    """

    parts: tuple[tuple[int, ...], ...]
    forward: float
    backward: float
    own: Seconds
    exposed: float
    step: float
    period: float = 1.0

    @property
    def alone(self) -> float:
        """Seconds of a step in which a rank waits for no other."""
        return float(self.own.mean()) / self.period

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(map(sum, self.parts))


@dataclass(frozen=True)
class Prediction:
    """On so many ranks, each with the data that it had. ``step``: seconds; ``speedup``: over one rank, of samples."""

    ranks: int
    hosts: int
    step: float
    exposed: float
    waits: float
    speedup: float
    efficiency: float


def telling(splits: Sequence[RankSplit]) -> list[RankSplit]:
    """Those that have in common at least half as many steps as the one that has most.

    Others would hide nearly all of theirs, such as a rank that was lost early or joined late.
    """
    most = max(len(each.steps) for each in splits)
    begin, end = -_EVER, _EVER
    chosen = set()
    for each in sorted(splits, key=lambda each: -len(each.steps)):
        first = max(begin, each.first_step)
        last = min(end, each.first_step + len(each.steps))
        if 2 * (last - first) >= most:
            begin, end = first, last
            chosen.add(each.place)
    return [each for each in splits if each.place in chosen]


def steps_of_all(splits: Sequence[RankSplit]) -> list[slice]:
    """Of each of those chosen: which of its steps all have in common."""
    begin = max(each.first_step for each in splits)
    end = min(each.first_step + len(each.steps) for each in splits)
    return [slice(begin - each.first_step, max(begin, end) - each.first_step) for each in splits]


def mean_size(splits: Sequence[RankSplit], counted: Sequence[RankSplit]) -> float:
    """How many ranks the world had in the steps that the workload of ``counted`` is of, in the mean.

    Others in ``splits`` are subtracted if they were there all the time: they did few of these steps. When one joined or
    left, the world had more or fewer ranks from then on; and one whose recording is missing counts.
    """
    common = steps_of_all(counted)
    skipped = skipped_of(common[0].stop - common[0].start)
    sizes = [each.sizes[part][skipped:] for each, part in zip(counted, common, strict=True)]
    places = {each.place for each in counted}
    stayed = [each for each in splits if each.presence == Presence() and each.place not in places]
    return max(1.0, float(np.mean(np.concatenate(sizes))) - len(stayed))


def workload_of(splits: Sequence[RankSplit]) -> Workload | None:
    """By the steps that all of them have; None where these are too few."""
    common = steps_of_all(splits)
    count = common[0].stop - common[0].start
    if count < FEWEST:
        return None
    skipped = skipped_of(count)
    chosen = list(zip(splits, common, strict=True))
    own = np.stack([each.own[part][skipped:] for each, part in chosen])
    steps = np.stack([each.steps[part][skipped:] for each, part in chosen])
    handed_in = [each.submissions[part][skipped:] for each, part in chosen]
    ends = _ends_of_rounds(handed_in[0])
    begins = np.concatenate([[0], ends[:-1] + 1])
    used = int(ends[-1]) + 1
    before = np.cumsum(own, 1)[:, ends] - own[:, ends]
    before[:, 1:] -= np.cumsum(own, 1)[:, ends[:-1]]
    typical = _typical(
        [
            tuple(replace(one, after=one.after + float(before[rank, number])) for one in told[end])
            for rank, told in enumerate(handed_in)
            for number, end in enumerate(ends)
        ]
    )
    firsts = [each[0].after for each in typical if each]
    lasts = [each[-1].after for each in typical if each]
    sizes = [one.bytes for one in typical[0]] if typical else []
    forward = backward = 0.0
    if sizes:
        first, last = float(np.mean(firsts)), float(np.mean(lasts))
        share = sizes[0] / sum(sizes)
        # Tensors become ready in proportion to their bytes.
        backward = (last - first) / (1 - share) if share < 1 else 0.0
        backward = min(max(0.0, backward), last)
        forward = last - backward
    parts = _parts(typical) if typical else ()
    return Workload(
        parts,
        forward,
        backward,
        np.add.reduceat(own[:, :used], begins, 1).reshape(-1),
        float(np.mean(np.add.reduceat(steps[:, :used, 1], begins, 1))),
        float(np.mean(steps.sum(2))),
        used / len(ends),
    )


def _ends_of_rounds(steps: Sequence[tuple[Submission, ...]]) -> npt.NDArray[np.int64]:
    """Those that exchange tensors, where some do not; of all that do, or none does, each."""
    exchange = np.flatnonzero([bool(step) for step in steps])
    return exchange if 0 < len(exchange) < len(steps) else np.arange(len(steps))


def _typical(steps: Sequence[tuple[Submission, ...]]) -> list[tuple[Submission, ...]]:
    """The steps that have handed in what most have."""
    shapes = Counter(tuple(one.bytes for one in step) for step in steps)
    shape, _ = max(shapes.items(), key=lambda item: (item[1], len(item[0])))
    return [step for step in steps if tuple(one.bytes for one in step) == shape] if shape else []


def _parts(typical: Sequence[tuple[Submission, ...]]) -> tuple[tuple[int, ...], ...]:
    alone = np.mean([[one.alone for one in step] for step in typical], 0) > 0.5
    parts: list[list[int]] = []
    for one, begins in zip(typical[0], alone, strict=True):
        if begins or not parts:
            parts.append([])
        parts[-1].append(one.bytes)
    return tuple(map(tuple, parts))


def expected_longest(times: Seconds, ranks: int) -> float:
    """The mean of the greatest of so many independent draws from ``times``."""
    ordered = np.sort(times)
    ends = np.arange(len(ordered) + 1) / len(ordered)
    return float((ordered * np.diff(ends**ranks)).sum())


def tensor_list(sizes: Sequence[int]) -> str:
    """As the simulator takes it, of float32."""
    words: list[tuple[int, int]] = []
    for size in sizes:
        rounded = max(4, (size + 3) // 4 * 4)
        if words and words[-1][1] == rounded:
            words[-1] = (words[-1][0] + 1, rounded)
        else:
            words.append((1, rounded))
    return ",".join(f"{count}x{size}" if count > 1 else f"{size}" for count, size in words)


def exposed_on(
    workload: Workload,
    hosts: int,
    per_host: int,
    links: Links,
    simulate: Simulate,
    more: Sequence[str] = (),
) -> float:
    """Seconds of a step in which communication is exposed, by the simulator."""
    world = ["--hosts", str(hosts), "--ranks-per-host", str(per_host)]
    world += ["--bandwidth", f"{links.gbit:.9g}", "--latency", f"{links.latency_us:.9g}", *more]
    if len(workload.parts) == 1:
        busy = workload.forward + workload.backward
        times = ["--forward", f"{1e3 * workload.forward:.9g}"]
        times += ["--backward", f"{1e3 * workload.backward:.9g}"]
        whole = simulate([*world, *times, "--tensors", tensor_list(workload.parts[0])])
        return max(0.0, whole - busy)
    alike = Counter(workload.parts)
    return sum(
        count * simulate([*world, "--tensors", tensor_list(part)]) for part, count in alike.items()
    )


def fit_bandwidth(
    workload: Workload,
    hosts: int,
    per_host: int,
    links: Links,
    simulate: Simulate,
    more: Sequence[str] = (),
) -> Links:
    """The rate with which the simulator has as much exposed communication as was recorded.

    ``links`` as they are where there was too little of it.
    """
    if not workload.parts or workload.exposed < _TELLING * workload.step * workload.period:
        return links
    low, high = 1e-4, 1e5
    for _ in range(40):
        middle = (low * high) ** 0.5
        tried = Links(middle, links.latency_us, "")
        if exposed_on(workload, hosts, per_host, tried, simulate, more) > workload.exposed:
            low = middle
        else:
            high = middle
        if high < low * 1.002:
            break
    if low < 1.01e-4 or high > 0.99e5:
        return links
    return Links((low * high) ** 0.5, links.latency_us, "fitted to the communication of this run")


def predict(
    workload: Workload,
    ranks: int,
    per_host: int,
    links: Links,
    simulate: Simulate,
    one_rank: float | None = None,
    more: Sequence[str] = (),
) -> Prediction | None:
    """On so many ranks, as many of them on each host as ``per_host`` and the number allow; None on a single host.

    ``one_rank``: seconds of a step of one rank, by default the mean of the own times.
    """
    while ranks % per_host:
        per_host -= 1
    hosts = ranks // per_host
    if hosts < 2:
        return None
    alone = workload.alone if one_rank is None else one_rank
    longest = expected_longest(workload.own, ranks)
    exposed = 0.0
    if workload.parts:
        exposed = exposed_on(workload, hosts, per_host, links, simulate, more)
    step = (longest + exposed) / workload.period
    speedup = ranks * alone / step
    waits = longest / workload.period - workload.alone
    return Prediction(
        ranks, hosts, step, exposed / workload.period, waits, speedup, speedup / ranks
    )
