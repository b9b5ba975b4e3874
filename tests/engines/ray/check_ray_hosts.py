"""rueda.ray on two hosts with two workers each: python check_ray_hosts.py ADDRESS OWN, on the head's."""

from __future__ import annotations

import sys
import tempfile
import time
from ast import literal_eval
from pathlib import Path
from typing import Any

import ray
import ray.train
import rueda
import rueda.ray
from digits import learned, learned_alone, require_as_good
from search import require_search, searches
from two_hosts import (
    dies_on_the_second_host,
    fails_on_the_second_host,
    looks_around,
    require_two_hosts,
)


def check_ranks_of_a_host_are_neighbours(executor: rueda.ray.RayExecutor) -> None:
    require_two_hosts(executor.run(looks_around))


def check_digits_are_trained_as_by_one_process(executor: rueda.ray.RayExecutor) -> None:
    together = executor.run(learned)
    assert len(set(together)) == 1
    require_as_good(together[0], learned_alone())


def check_a_search_with_optuna(executor: rueda.ray.RayExecutor) -> None:
    journal = str(Path.cwd() / "study.log")
    require_search(journal, executor.run(searches, [journal]))


def check_an_error_of_the_other_host_is_told(executor: rueda.ray.RayExecutor) -> None:
    told: Any = None
    try:
        executor.run(fails_on_the_second_host)
    except ValueError as error:
        told = error
    assert "a bad row on h" in f"{told}"
    assert told.__notes__ == [f"raised on rank 3, node {addresses(executor)[3]}"]


def check_a_worker_of_the_other_host_that_is_killed_is_named(
    executor: rueda.ray.RayExecutor,
) -> None:
    node = addresses(executor)[3]
    told = None
    try:
        executor.run(dies_on_the_second_host)
    except rueda.PeerLostError as error:
        told = error
    assert f"workers were lost: rank 3 ({node});" in f"{told}"
    executor.shutdown()


def addresses(executor: rueda.ray.RayExecutor) -> list[str]:
    """Returns the addresses of the ranks' nodes: Ray chooses which of them is first."""
    found = executor.run(ray.util.get_node_ip_address)
    assert {*found} == {"10.213.1.1", "10.213.1.2"}
    return found


def looks_around_and_tells(config: dict[str, str]) -> None:
    told = rueda.allgather_object(looks_around())
    if rueda.rank() == 0:
        Path(config["file"]).write_text(repr(told))


def trainer(train: Any, **kwargs: Any) -> rueda.ray.RuedaTrainer:
    return rueda.ray.RuedaTrainer(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=4),
        run_config=ray.train.RunConfig(storage_path=tempfile.mkdtemp(dir=Path.cwd())),
        **kwargs,
    )


def check_workers_of_ray_train(_: rueda.ray.RayExecutor) -> None:
    file = Path.cwd() / "told"
    trainer(looks_around_and_tells, train_loop_config={"file": str(file)}).fit()
    require_two_hosts(literal_eval(file.read_text()))
    told = {}
    for train in (fails_on_the_second_host, dies_on_the_second_host):
        try:
            trainer(train).fit()
        except ray.train.WorkerGroupError as error:
            told[train] = str(error)
    assert "ValueError: a bad row on h" in told[fails_on_the_second_host]
    assert "[Rank 3 Error Snippet]" in told[fails_on_the_second_host]
    assert "Rank 3" in told[dies_on_the_second_host]


if __name__ == "__main__":
    ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2])
    deadline = time.monotonic() + 90
    while ray.cluster_resources().get("CPU") != 4:
        assert time.monotonic() < deadline, "the other host has not come"
        time.sleep(0.1)
    executor = rueda.ray.RayExecutor(num_workers=4)
    executor.start()
    for name, act in list(globals().items()):
        if name.startswith("check_"):
            act(executor)
            print("ok", name, flush=True)
    ray.shutdown()
