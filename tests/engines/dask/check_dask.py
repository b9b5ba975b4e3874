"""rueda.dask on workers of this host."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import distributed
import numpy as np
import rueda
import rueda.dask

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "parallel" / "python")]
from parallel import raises  # noqa: E402


def total(add: int, factor: int = 1) -> tuple[int, int, float]:
    value = np.array([float((rueda.rank() + add) * factor)])
    return rueda.rank(), os.getpid(), float(rueda.allreduce(value, "total", rueda.Sum)[0])


def fails(marks: str) -> float:
    (Path(marks) / f"began-{rueda.rank()}").touch(exist_ok=False)
    if rueda.rank() == 1:
        raise ValueError("a bad row in the data")
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


def loses(marks: str, times: int) -> int:
    """Rank 2 dies as often as is asked; the number of the attempt is agreed on by all."""
    if rueda.rank() == 0:
        attempt = len(list(Path(marks).iterdir()))
        (Path(marks) / str(attempt)).touch()
        rueda.broadcast_object(attempt)
    else:
        attempt = rueda.broadcast_object()
    if rueda.rank() == 2 and attempt < times:
        os.kill(os.getpid(), signal.SIGKILL)
    rueda.allreduce(np.ones(1), "step")
    return int(attempt)


def is_busy(marks: str) -> None:
    """Rank 1 fails; rank 0 computes until it is told to end, so that it cannot notice."""
    if rueda.rank() == 1:
        raise ValueError("nobody notices")
    deadline = time.monotonic() + 60
    while rueda.rank() == 0 and not (Path(marks) / "end").exists():
        assert time.monotonic() < deadline, "not told to end"
        time.sleep(0.01)


def check_results_are_by_rank(client: distributed.Client, folder: Path) -> None:
    for add in (1, 2):
        results = rueda.dask.run(client, total, [add], 3, kwargs={"factor": 2})
        assert [rank for rank, _, _ in results] == [0, 1, 2]
        assert len({process for _, process, _ in results}) == 3
        assert {value for _, _, value in results} == {2.0 * (3 + 3 * add)}
    assert len(rueda.dask.run(client, total, [0])) == 3
    assert len(rueda.dask.run(client, total, [0], 1)) == 1


def check_an_error_is_told_and_not_tried_again(client: distributed.Client, folder: Path) -> None:
    with raises(ValueError, "a bad row in the data"):
        rueda.dask.run(client, fails, [str(folder)])
    # Nor has a second try failed at the files of the first, which would be another error.
    assert len(list(folder.iterdir())) == 3
    assert len(rueda.dask.run(client, total, [0])) == 3


def check_a_rank_that_does_not_notice_is_named(client: distributed.Client, folder: Path) -> None:
    with raises(rueda.TimeoutError, "tcp://", "not noticed within 0.2 s"):
        rueda.dask.run(client, is_busy, [str(folder)], timeout=0.2)
    (folder / "end").touch()
    assert len(rueda.dask.run(client, total, [0])) == 3


def check_a_lost_worker_makes_all_begin_anew(client: distributed.Client, folder: Path) -> None:
    assert rueda.dask.run(client, loses, [str(folder), 2], 3) == [2, 2, 2]
    assert len(list(folder.iterdir())) == 3


def check_workers_that_are_lost_too_often(client: distributed.Client, folder: Path) -> None:
    with raises(rueda.PeerLostError, "rank 2 (tcp://"):
        rueda.dask.run(client, loses, [str(folder), 9], 3, retries=1)
    assert len(list(folder.iterdir())) == 2
    client.wait_for_workers(3, timeout=60)
    assert len(rueda.dask.run(client, total, [0])) == 3


def check_what_cannot_work_is_told(client: distributed.Client, folder: Path) -> None:
    for wrong in (0, -1, True, "all"):
        with raises(rueda.InvalidArgumentError, f"num_proc={wrong!r}"):
            rueda.dask.run(client, total, [0], wrong)
    with raises(rueda.InvalidArgumentError, "retries=-1"):
        rueda.dask.run(client, total, [0], retries=-1)
    with raises(rueda.TimeoutError, "4 workers", "only 3"):
        rueda.dask.run(client, total, [0], 4, timeout=0.1)
    with (
        distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as threads,
        distributed.Client(threads) as other,
        raises(rueda.InvalidArgumentError, "processes=True"),
    ):
        rueda.dask.run(other, total, [0])


if __name__ == "__main__":
    checks = [act for name, act in list(globals().items()) if name.startswith("check_")]
    with (
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for act in checks:
            folder = Path(sys.argv[1]) / act.__name__
            folder.mkdir()
            act(client, folder)
            print("ok", act.__name__, flush=True)
