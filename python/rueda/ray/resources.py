"""Whether a cluster has room for all ranks, before any is started."""

from __future__ import annotations

from collections.abc import Mapping

import ray

from rueda.errors import InvalidArgumentError

__all__ = ["check_room"]


def check_room(who: str, num_workers: int, each: Mapping[str, float]) -> None:
    """Raises :class:`rueda.InvalidArgumentError` where the cluster, empty, has less than all ranks need together."""
    total = ray.cluster_resources()
    for name, amount in each.items():
        if amount * num_workers > total.get(name, 0):
            raise InvalidArgumentError(
                f"{who} with num_workers={num_workers} needs {amount * num_workers:g} {name}, and the cluster has "
                f"{total.get(name, 0):g}: choose a smaller num_workers, less {name} for each, or a larger cluster"
            )
