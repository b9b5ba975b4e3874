"""The flags of `rueda run` for elastic jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import LaunchError
from ..hosts import Host
from ..losses import least_of
from .discovery import Elastic, hosts_at_start
from .growth import Limits

# Flags that have no effect without one of the first two.
_NEEDS = ("slots_per_host", "reset_limit", "blacklist_cooldown_range")


def is_elastic(values: Mapping[str, Any]) -> bool:
    """Whether ranks may join the job."""
    return values["max_np"] is not None or values["host_discovery_script"] is not None


def elastic_of(
    values: Mapping[str, Any], ranks: int, settings: Mapping[str, str]
) -> Elastic | None:
    """The settings of an elastic job, or None. Raises LaunchError for invalid flags."""
    if not is_elastic(values):
        for name in _NEEDS:
            if values[name] is not None:
                flag = "--" + name.replace("_", "-")
                raise LaunchError(f"{flag} is for elastic jobs: give --max-np, too")
        return None
    most = values["max_np"]
    if values["host_discovery_script"] is not None and (values["hosts"] or values["hostfile"]):
        raise LaunchError(
            "--host-discovery-script says which hosts there are: leave out -H and --hostfile"
        )
    if most is None:
        raise LaunchError(
            "--host-discovery-script needs --max-np, the most ranks that the job may have"
        )
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
    """The discovery script's hosts at the start, after a check of the other flags. Empty without a script.

    ``ranks``: those of the whole job, since there is no script if each node has a launcher.
    """
    if values["host_discovery_script"] is None or values["dry_run"]:
        return ()
    elastic = elastic_of(values, ranks, settings)
    assert elastic is not None
    return hosts_at_start(elastic, ranks)
