"""rueda.dask on two hosts with two workers each: python check_dask_hosts.py SCHEDULER."""

from __future__ import annotations

import sys
from pathlib import Path

import distributed
import rueda
import rueda.dask
from digits import learned, learned_alone, require_as_good
from search import require_search, searches
from two_hosts import (
    dies_on_the_second_host,
    fails_on_the_second_host,
    looks_around,
    require_two_hosts,
)


def check_ranks_of_a_host_are_neighbours(client: distributed.Client) -> None:
    require_two_hosts(rueda.dask.run(client, looks_around))


def check_digits_are_trained_as_by_one_process(client: distributed.Client) -> None:
    together = rueda.dask.run(client, learned)
    assert len(set(together)) == 1
    require_as_good(together[0], learned_alone())


def check_a_search_with_optuna(client: distributed.Client) -> None:
    journal = str(Path.cwd() / "study.log")
    require_search(journal, rueda.dask.run(client, searches, [journal]))


def check_an_error_of_the_other_host_is_told(client: distributed.Client) -> None:
    told = None
    try:
        rueda.dask.run(client, fails_on_the_second_host)
    except ValueError as error:
        told = error
    assert f"{told}" == "a bad row on h1"
    assert "raised on rank 3, worker tcp://10.213.1.2:" in f"{told.__notes__}"


def check_a_worker_of_the_other_host_that_is_killed_is_named(client: distributed.Client) -> None:
    told = None
    try:
        rueda.dask.run(client, dies_on_the_second_host, retries=0)
    except rueda.PeerLostError as error:
        told = error
    assert "rank 3 (tcp://10.213.1.2:" in f"{told}"


if __name__ == "__main__":
    with distributed.Client(sys.argv[1]) as client:
        client.wait_for_workers(4, timeout=90)
        for name, act in list(globals().items()):
            if name.startswith("check_"):
                act(client)
                print("ok", name, flush=True)
