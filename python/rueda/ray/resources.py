"""Checks that a cluster has resources for all ranks before any is started."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup

from rueda.arguments import shown
from rueda.errors import InvalidArgumentError

__all__ = ["check_room", "check_room_in_group", "share_of"]

_UNITS = 10_000  # Ray counts CPUs and GPUs in units of 1/10,000


def share_of(name: str, value: Any) -> float:
    """A number of CPUs or GPUs per worker, possibly fractional, also one of NumPy's."""
    share = float(value) if isinstance(value, Real) and not isinstance(value, bool) else -1.0
    if not 0 <= share < math.inf:  # which no comparison with NaN is
        raise InvalidArgumentError(
            f"{name}={shown(value)}: pass a number of 0 or more, for each worker"
        )
    if share > 0 and share * _UNITS < 1:
        raise InvalidArgumentError(
            f"{name}={shown(value)}: pass a number of {1 / _UNITS} or more, Ray's smallest part, for each worker"
        )
    return share


def check_room(
    who: str, num_workers: int, each: Mapping[str, float], per_host: int | None = None
) -> None:
    """Raises :class:`rueda.InvalidArgumentError` if even the idle cluster is too small for all ranks.

    ``per_host``: the number of ranks on each node that has any.
    """
    if not any(each.values()):
        raise InvalidArgumentError(
            f"{who} has no resources to reserve with {dict(each)} for each worker: pass cpus_per_worker= above 0, or a "
            "placement_group= that tells Ray where to start workers without any"
        )
    total = ray.cluster_resources()
    for name, amount in each.items():
        if _in_units(amount) * num_workers > _in_units(total.get(name, 0)):
            raise InvalidArgumentError(
                f"{who} with num_workers={num_workers} needs {amount * num_workers:g} {name}, and the cluster has "
                f"{total.get(name, 0):g}: choose a smaller num_workers, less {name} for each, or a larger cluster"
            )
    if per_host is None:
        return
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    there = sum(room >= per_host for room in _rooms(nodes, each))
    if there < num_workers // per_host:
        raise InvalidArgumentError(
            f"{who} with num_workers={num_workers} and num_workers_per_host={per_host} needs {num_workers // per_host} "
            f"nodes with room for {per_host} times {dict(each)} on each, and the cluster has {there}: choose fewer "
            "nodes, or fewer workers on each"
        )


def check_room_in_group(
    who: str, num_workers: int, each: Mapping[str, float], group: PlacementGroup
) -> None:
    """Like :func:`check_room` for a placement group, each of whose bundles holds whole workers."""
    # Of a group that is not known, such as one of an earlier Ray, the table is empty.
    if placement_group_table(group).get("state", "REMOVED") == "REMOVED":
        raise InvalidArgumentError(
            f"the placement group {group.bundle_specs} of {who} has been removed: pass one that exists"
        )
    room = sum(_rooms(group.bundle_specs, each))
    if room < num_workers:
        raise InvalidArgumentError(
            f"{who} with num_workers={num_workers} needs {num_workers} times {dict(each)}, and its placement group "
            f"{group.bundle_specs} has room for {room:g}: choose a smaller num_workers, or a larger group"
        )


def _rooms(places: Iterable[Mapping[str, float]], each: Mapping[str, float]) -> list[float]:
    """How many workers each place can hold."""
    needs = {name: max(1, _in_units(amount)) for name, amount in each.items() if amount > 0}
    return [
        min(
            (_in_units(place.get(name, 0)) // amount for name, amount in needs.items()),
            default=float("inf"),
        )
        for place in places
    ]


def _in_units(amount: float) -> int:
    """The amount in Ray's integer units, which avoids floating-point errors: 1.0 // 0.2 is 4."""
    return round(amount * _UNITS)
