"""What the flags of `rueda run` say of jobs whose ranks come and go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import LaunchError
from ..hosts import Host
from ..losses import least_of
from .discovery import Elastic, hosts_at_start
from .growth import Limits

# What means nothing without one of the first two.
_NEEDS = ("slots_per_host", "reset_limit", "blacklist_cooldown_range")


def is_elastic(values: Mapping[str, Any]) -> bool:
    """Whether ranks may join."""
    return values["max_np"] is not None or values["host_discovery_script"] is not None


def elastic_of(
    values: Mapping[str, Any], ranks: int, settings: Mapping[str, str]
) -> Elastic | None:
    """What is asked for, or nothing; raises LaunchError for what makes no sense."""
    if not is_elastic(values):
        for name in _NEEDS:
            if values[name]:
                flag = "--" + name.replace("_", "-")
                raise LaunchError(f"{flag} is for jobs whose ranks come and go: give --max-np, too")
        return None
    most = values["max_np"]
    if values["host_discovery_script"] is not None and (values["hosts"] or values["hostfile"]):
        raise LaunchError(
            "--host-discovery-script says which hosts there are: leave out -H and --hostfile"
        )
    if most is None:
        raise LaunchError("--host-discovery-script: say with --max-np how many ranks there may be")
    if most < ranks:
        raise LaunchError(f"--max-np {most} is less than the {ranks} ranks of -np")
    first, longest = values["blacklist_cooldown_range"] or (1.0, 60.0)
    if not 0 <= first <= longest:
        raise LaunchError(
            f"--blacklist-cooldown-range {first:g} {longest:g}: give two numbers of seconds, the smaller first"
        )
    least = least_of(ranks, {**os.environ, **settings}.get("RUEDA_MIN_NP") or "1")
    return Elastic(
        Limits(least, most, values["reset_limit"], (first, longest)),
        values["host_discovery_script"],
        values["slots_per_host"],
        values["elastic_timeout"],
    )


def find_hosts(
    values: Mapping[str, Any], ranks: int, settings: Mapping[str, str]
) -> tuple[Host, ...]:
    """What the discovery script says at the start, once the flags beside it are checked; nothing without one.

    ``ranks``: of the whole job, as there is no script where each node has a launcher.
    """
    if values["host_discovery_script"] is None or values["dry_run"]:
        return ()
    elastic = elastic_of(values, ranks, settings)
    assert elastic is not None
    return hosts_at_start(elastic, ranks)
