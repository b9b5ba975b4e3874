"""Assembles a report from a folder of recordings."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rueda.report.prediction import (
    Links,
    Prediction,
    Workload,
    fit_bandwidth,
    mean_size,
    predict,
    steps_of_all,
    telling,
    workload_of,
)
from rueda.report.recording_format import Header, Kind, RecordingError, ranks_text, read_folder
from rueda.report.split import COLUMNS, WARM_UP, RankSplit, split
from rueda.report.stragglers import BOUNDS, Straggler, find_stragglers, time_with_bound

from ..cores import cores_within_quota
from ..errors import LaunchError
from .simulator import SLOW, Simulator, TooSlow, find_simulator

__all__ = ["Asked", "Baseline", "Report", "assemble", "read_baseline"]

# Rows that an operation of Rueda's leaves.
_OPERATIONS = (Kind.SUBMIT, Kind.WAIT, Kind.DONE, Kind.PULL)
# Links between hosts if only one host was recorded and no flags are given.
_ASSUMED = Links(10.0, 30.0, "assumed: no link was recorded, give --bandwidth and --latency")


@dataclass(frozen=True)
class Baseline:
    """A recording of one rank, and the time of a step in seconds."""

    folder: Path
    step: float


@dataclass(frozen=True)
class Asked:
    """The command line's settings for the prediction."""

    sizes: tuple[int, ...] = ()
    per_host: int | None = None
    bandwidth: float | None = None
    latency: float | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class Report:
    """The report.

    - ``ranks``: how many did the steps, in the mean, if steps are known; otherwise how many the run began with.
    - ``speedup``: over one rank, whose step takes ``one_rank`` seconds; ``one_rank_from`` says how this is known.
    - ``bounds``: by the bound s of stale synchronous parallel, the time of all steps relative to that with s = 0.
    """

    header: Header
    splits: list[RankSplit]
    workload: Workload | None
    links: Links | None
    per_host: int
    ranks: float
    speedup: float | None
    one_rank: float | None
    one_rank_from: str
    predictions: list[Prediction]
    stragglers: list[Straggler]
    bounds: dict[float, float]
    notes: list[str] = field(default_factory=list)

    @property
    def training(self) -> npt.NDArray[np.float64]:
        """The COLUMNS of the training, in seconds, summed over all ranks."""
        return np.asarray(sum(each.training for each in self.splits))

    @property
    def efficiency(self) -> float | None:
        """The speed-up by rank."""
        return None if self.speedup is None else self.speedup / self.ranks

    def share(self, column: str) -> float:
        """A column's share of all ranks' training, from 0 to 1; of the whole run if no training was found."""
        sums = self.training
        if not sums.sum():
            sums = np.asarray(sum(each.whole for each in self.splits))
        return float(sums[COLUMNS.index(column)] / max(sums.sum(), 1e-12))


def assemble(folder: Path, asked: Asked) -> Report:
    """Reads the recordings and predicts. Raises LaunchError if there is nothing to report on."""
    try:
        recordings, notes = read_folder(folder)
        splits = split(recordings)
    except RecordingError as error:
        raise LaunchError(str(error)) from error
    one_rank = None if asked.baseline is None else asked.baseline.step
    header = recordings[0].header
    has_operations = any(len(each.of(*_OPERATIONS)) for each in recordings)
    if header.size > 1 and not has_operations:
        notes.append(
            "no operation was recorded: the program called rueda.init(), and then its ranks exchanged nothing with "
            "Rueda, or did so in JAX or C++, which is not recorded"
        )
    notes += _notes(splits)
    usual = telling(splits)
    workload = workload_of(usual)
    per_host = asked.per_host or max(each.header.local_size for each in recordings)
    links: Links | None = None
    predictions: list[Prediction] = []
    alone = speedup = None
    ranks = float(header.size)
    why = "the mean of the ranks' own times in this run"
    if workload is None:
        notes.append(
            "fewer than four steps were recorded, so nothing is predicted: without a torch optimizer, call "
            "rueda.report.step() after each step"
        )
    else:
        if asked.baseline is not None:
            why = f"the recording in '{asked.baseline.folder}'"
        alone = workload.alone if one_rank is None else one_rank
        ranks = mean_size(splits, usual)
        speedup = ranks * alone / workload.step
        otherwise = bool(asked.sizes) and any(each.sends_otherwise for each in splits)
        if has_operations or header.size == 1:
            links, predictions = _predict(
                header, workload, ranks, per_host, one_rank, asked, otherwise, notes
            )
    own = _own_times(usual)
    waited = [float(sum(each.waited_in_steps[one.place] for each in splits)) for one in usual]
    stragglers = [
        replace(one, rank=usual[one.rank].rank, epoch=usual[one.rank].epoch)
        for one in find_stragglers(range(len(usual)), own, waited)
    ]
    bounds = {}
    if stragglers:
        base = time_with_bound(own, 0)
        bounds = {bound: time_with_bound(own, bound) / base for bound in BOUNDS}
    return Report(
        header,
        splits,
        workload,
        links,
        per_host,
        ranks,
        speedup,
        alone,
        why,
        predictions,
        stragglers,
        bounds,
        notes,
    )


def _own_times(splits: Sequence[RankSplit]) -> npt.NDArray[np.float64]:
    """An array (ranks, steps) of the steps that all have in common, without those that warm up."""
    chosen = zip(splits, steps_of_all(splits), strict=True)
    return np.stack([each.own[part][WARM_UP:] for each, part in chosen])


def read_baseline(folder: Path) -> Baseline:
    """Reads a recording of one rank. Raises LaunchError if the folder is not such a recording."""
    try:
        recordings, _ = read_folder(folder)
    except RecordingError as error:
        raise LaunchError(f"--baseline {folder}: {error}") from error
    ranks = max(each.header.size for each in recordings)
    if ranks != 1:
        raise LaunchError(
            f"--baseline {folder}: it is a recording of {ranks} ranks; give a recording of one rank"
        )
    workload = workload_of(split(recordings))
    if workload is None:
        raise LaunchError(f"--baseline {folder}: fewer than four steps were recorded")
    return Baseline(folder, workload.step)


def _notes(splits: Sequence[RankSplit]) -> list[str]:
    notes = []
    if any(each.uses_gpu for each in splits):
        notes.append(
            "tensors were on GPUs: the parts are those of the CPU thread, which does not wait for the work that it "
            "enqueues; what a GPU waits for is not included"
        )
    notes += _who_came_and_went(splits)
    if max(each.first_worlds for each in splits) > 1:
        notes.append(
            "another world was formed during the run, by rueda.init() or rueda.recover(): who was waited for "
            "afterwards is known only for ranks that stayed"
        )
    uncertainty = max(each.clock_uncertainty for each in splits)
    if uncertainty:
        notes.append(
            f"the ranks' machines have different clocks, which were aligned by means of the operations themselves: "
            f"straggler wait and communication can be separated to about {1e3 * uncertainty:.2f} ms"
        )
    usual = {each.place for each in telling(splits)}
    left_out = [each.name for each in splits if each.place not in usual]
    if left_out:
        most = max(len(each.steps) for each in splits)
        notes.append(
            f"{ranks_text(left_out)} recorded fewer than half of the {most} steps together with the others, and "
            f"{'is' if len(left_out) == 1 else 'are'} left out of the results that need steps: speed-up, "
            "predictions, stragglers"
        )
    if not any(len(each.steps) for each in splits):
        notes.append(
            "no step was found, so the training is what lies between the first operation and the last: without a torch "
            "optimizer, call rueda.report.step() after each step"
        )
    return notes


def _who_came_and_went(splits: Sequence[RankSplit]) -> list[str]:
    """At most one sentence on all, as they came and went, and one on their names."""
    came = [(each.presence.joined, "joined", each.name) for each in splits]
    went = [(each.presence.left, "left or was lost", each.name) for each in splits]
    known = sorted((at, what, name) for at, what, name in came + went if at is not None)
    if not known:
        return []
    told = ", ".join(f"rank {name} {what} after {at:.2f} s" for at, what, name in known)
    notes = [f"counted from when the first world was formed, {told}"]
    if any(each.epoch for each in splits):
        notes.append(
            "a rank that joined is called by the rank that it had first, and by the number of the world that it joined"
        )
    return notes


def _predict(
    header: Header,
    workload: Workload,
    ranks: float,
    per_host: int,
    one_rank: float | None,
    asked: Asked,
    sends_otherwise: bool,
    notes: list[str],
) -> tuple[Links | None, list[Prediction]]:
    if not workload.parts:
        notes.append(
            "steps have no allreduce, so nothing is predicted: the simulator does not model what ranks of asynchronous "
            "training wait for"
        )
        return None, []
    path = find_simulator()
    if path is None:
        notes.append(
            "nothing is predicted: the simulator is not installed, since this Rueda was built without its benchmarks "
            "(RUEDA_BENCHMARKS=ON)"
        )
        return None, []
    if sends_otherwise:
        notes.append(
            "steps use operations other than allreduce, which the simulator leaves out: predicted steps are too short "
            "by the time these take"
        )
    simulate = Simulator(path)
    more = _engine(header)
    links = _links(header, workload, ranks, asked, simulate, more)
    found = []
    skipped, slow = [], []

    def one_of(size: int) -> Prediction | TooSlow | None:
        try:
            return predict(workload, size, per_host, links, simulate, one_rank, more)
        except TooSlow as too_slow:
            return too_slow

    # Each thread waits for a process.
    with ThreadPoolExecutor(cores_within_quota()[0]) as pool:
        predictions = list(pool.map(one_of, asked.sizes))
    for size, one in zip(asked.sizes, predictions, strict=True):
        if isinstance(one, TooSlow):
            slow.append(f"{size:,}")
        elif one is None:
            skipped.append(str(size))
        else:
            found.append(one)
    if slow:
        notes.append(
            f"{' and '.join(slow)} ranks were not simulated: it took longer than {SLOW:g} s"
        )
    if skipped:
        notes.append(
            f"{' and '.join(skipped)} ranks would be on one host, which is not simulated; --ranks-per-host 1 "
            "spreads them"
        )
    return links, found


def _links(
    header: Header,
    workload: Workload,
    ranks: float,
    asked: Asked,
    simulate: Simulator,
    more: Sequence[str],
) -> Links:
    """Fitted only if the steps were done by all ``ranks`` of the header, as it does not tell where others were."""
    links = _ASSUMED
    if header.links:
        kind, latency, gbit = header.links[0]
        links = Links(gbit or 100.0, latency, f"measured at init(), {kind}")
    if asked.latency is not None:
        links = replace(links, latency_us=asked.latency)
    if asked.bandwidth is not None:
        return replace(links, gbit=asked.bandwidth, source="given")
    if header.hosts < 2 or ranks != header.size:
        return links
    try:
        return fit_bandwidth(workload, header.hosts, header.local_size, links, simulate, more)
    except TooSlow:
        return links


def _engine(header: Header) -> list[str]:
    """The options of the recorded run that the simulator supports."""
    names = {
        "fusion_threshold": "--fusion-threshold",
        "ring_chunk": "--chunk",
        "batches_in_flight": "--batches-in-flight",
        "cache_capacity": "--cache",
    }
    return [
        word
        for name, flag in names.items()
        if name in header.options
        for word in (flag, header.options[name])
    ]
