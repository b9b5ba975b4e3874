"""How the ranks agree on which gradients share a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet
from rueda.torch.buckets import Bucket, Description, describe, plan_buckets

__all__ = ["Agreement", "agree"]

# A model that keeps changing is better off without buckets.
MAX_LAYOUTS = 8


@dataclass(frozen=True)
class _Proposal:
    """What each rank knows."""

    layouts: int  # how many layouts it has had
    bucket_bytes: int | None
    descriptions: list[Description]
    order: list[int]  # in which gradients became ready, as indices into ``descriptions``


@dataclass
class Agreement:
    """The same on every rank, except for the memory."""

    buckets: list[Bucket] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # parameter: why
    why_not: str = ""  # why there are no buckets
    layouts: int = 0


def agree(
    name: str,
    parameters: Sequence[tuple[str, torch.Tensor]],
    left_out: Mapping[str, str],
    order: Sequence[int],
    groups: Sequence[Sequence[int]],
    bucket_bytes: int | None,
    layouts: int,
    process_set: ProcessSet,
    bytes_limit: int | None = None,
    spare: Sequence[Bucket] = (),
) -> Agreement | None:
    """Collective over the ranks of the set; ``None``, on all of them, if some have joined and could not be asked.

    ``parameters``: with their names, the same on every rank. ``left_out``: parameters that must not be in a bucket,
    with the reason. The order of rank 0 of the set is used. ``groups``: see plan_buckets(); the same on every rank.
    ``layouts``: how many bucket layouts there have been. ``bytes_limit``: see describe(); a gradient that some rank
    wants to leave out is left out on all. ``spare``: this rank's buckets of before, whose memory is used again where
    it fits.
    """
    mine = _Proposal(
        layouts,
        bucket_bytes,
        [
            describe(parameter, label, bytes_limit, left_out.get(label, ""))
            for label, parameter in parameters
        ],
        list(order),
    )
    proposals: list[_Proposal] = allgather_object(mine, f"{name}/layout", process_set)
    if len(proposals) < process_set.size():
        return None
    agreement = Agreement(layouts=1 + max(proposal.layouts for proposal in proposals))
    if agreement.layouts > MAX_LAYOUTS:
        agreement.why_not = f"the model has changed {MAX_LAYOUTS} times"
        return agreement
    if len({len(proposal.descriptions) for proposal in proposals}) > 1:
        agreement.why_not = "the ranks have different numbers of parameters"
        return agreement
    descriptions = [
        _merged(ranks) for ranks in zip(*(p.descriptions for p in proposals), strict=True)
    ]
    agreement.left_out = {d.name: d.why_not for d in descriptions if d.why_not}
    plan = plan_buckets(descriptions, proposals[0].order, proposals[0].bucket_bytes, groups)
    if not plan:
        agreement.why_not = "no parameter has a gradient that fits"
        return agreement
    problem = ""
    try:
        for number, members in enumerate(plan):
            agreement.buckets.append(
                _bucket(
                    f"{name}{agreement.layouts}", number, members, parameters, descriptions, spare
                )
            )
    except MemoryError:
        size = sum(descriptions[index].bytes() for members in plan for index in members)
        problem = f"rank {process_set.rank()} of the set has no memory for buckets of {size} bytes"
    problems = [p for p in allgather_object(problem, f"{name}/memory", process_set) if p]
    if problems:
        agreement.buckets = []
        agreement.why_not = "; ".join(problems)
    return agreement


def _merged(ranks: Sequence[Description]) -> Description:
    """One parameter, as all ranks can have it in a bucket."""
    first = ranks[0]
    for number, other in enumerate(ranks):
        if other.why_not:
            return first._replace(why_not=other.why_not)
        if (other.name, other.shape, other.kind()) != (first.name, first.shape, first.kind()):
            return first._replace(why_not=f"ranks 0 and {number} of the set differ")
    if any(other.stride != first.stride for other in ranks):
        # A bucket is reduced in memory order, so the order of elements must be the same everywhere, and the optimizer
        # needs gradients with the strides of this rank's parameter.
        return first._replace(why_not="ranks lay it out differently in memory")
    return first


def _bucket(
    name: str,
    number: int,
    members: Sequence[int],
    parameters: Sequence[tuple[str, torch.Tensor]],
    descriptions: Sequence[Description],
    spare: Sequence[Bucket],
) -> Bucket:
    first, last = descriptions[members[0]].name, descriptions[members[-1]].name
    label = f"{name}.{number}/{first}" + (f"..{last}" if len(members) > 1 else "")
    return Bucket(
        label,
        [parameters[index][1] for index in members],
        [descriptions[index] for index in members],
        spare,
    )
