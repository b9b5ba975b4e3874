"""Sentences that explain the numbers of a report."""

from __future__ import annotations

from collections.abc import Iterator

from rueda.report.stragglers import Straggler

from .assembly import Report

__all__ = ["TOLERATED_INPUT", "lines_of"]

# The share of the training that input waits may take without a remark.
TOLERATED_INPUT = 0.05
# Smaller gains do not count.
_GAIN = 0.05


def lines_of(report: Report) -> Iterator[str]:
    """The worst first."""
    yield from _speed(report)
    for one in report.stragglers:
        yield _straggler(one)
    if report.stragglers:
        yield from _tolerance(report)
    yield from _input(report)
    yield from (f"Note: {note}." for note in report.notes)


def _speed(report: Report) -> Iterator[str]:
    if report.speedup is None or report.workload is None or report.one_rank is None:
        return
    ranks = report.ranks
    who = f"On average, {ranks:.2f} ranks"
    if ranks == round(ranks):
        who = f"{ranks:.0f} {'rank' if ranks == 1 else 'ranks'}"
    yield (
        f"A step took {_ms(report.workload.step)}; one rank alone takes {_ms(report.one_rank)} "
        f"({report.one_rank_from}). "
        f"{who} did {report.speedup:.2f} times the work of one: efficiency {report.efficiency:.0%}."
    )
    if report.links is not None and report.predictions:
        links = report.links
        yield (
            f"Predicted with {report.per_host} {'rank' if report.per_host == 1 else 'ranks'} on each host and links of "
            f"{links.gbit:.3g} Gbit/s and {links.latency_us:.3g} µs ({links.source})."
        )


def _straggler(one: Straggler) -> str:
    waited = f"The others waited {one.waited_for:.2f} s for it." if one.waited_for >= 0.005 else ""
    if one.kind == "permanent":
        return (
            f"Rank {one.name} is permanently slow: its steps take {one.factor:.2f} times the others', and "
            f"{one.share:.0%} of them are slower than theirs. {waited}"
        ).rstrip()
    return (
        f"Rank {one.name} is slow now and then: in {one.share:.0%} of its steps, {one.factor:.1f} times as long as "
        f"usual. {waited}"
    ).rstrip()


def _tolerance(report: Report) -> Iterator[str]:
    permanent = [one for one in report.stragglers if one.kind == "permanent"]
    told = ", ".join(f"s={bound:g} {ratio:.2f}" for bound, ratio in report.bounds.items() if bound)
    gain = 1 - min(ratio for bound, ratio in report.bounds.items() if bound != float("inf"))
    if permanent:
        ranks = " and ".join(one.name for one in permanent)
        yield (
            f"SSP gains nothing from a permanently slow rank: whatever the bound, the others end up waiting for rank "
            f"{ranks}. Give it less data, or another machine. (Times of all steps over those of BSP: {told}"
            + ("; the gain comes from steps that are slow now and then)" if gain >= _GAIN else ")")
        )
    elif gain < _GAIN:
        yield f"SSP would gain little (times of all steps over those of BSP: {told})."
    else:
        yield (
            f"Tolerating delays would help, apart from the cost in accuracy (times of all steps of SSP over those of "
            f"BSP: {told})."
        )


def _input(report: Report) -> Iterator[str]:
    share = report.share("input")
    if share <= TOLERATED_INPUT:
        return
    yield (
        f"Input wait is {share:.0%} of the training. Load batches in the background: "
        "rueda.torch.PrefetchLoader(loader), or more num_workers of the DataLoader; if the source cannot keep up, "
        "PrefetchLoader says so."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
