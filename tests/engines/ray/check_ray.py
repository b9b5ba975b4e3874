"""rueda.ray on a cluster of this host: python check_ray.py FOLDER [CHECK...]."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from ast import literal_eval
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
import rueda
import rueda.elastic
import rueda.horovod.ray
import rueda.ray
from digits import TRAINED, accuracy_of, gradient_of, learned_alone, require_as_good, samples
from ray.util import placement_group_table
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rueda.horovod import alias
from rueda.horovod.ray import ElasticRayExecutor, ray_logger
from rueda.horovod.ray import RayExecutor as HorovodExecutor
from signatures import require_signatures_of_horovod

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "parallel" / "python")]
from parallel import raises  # noqa: E402


def total(add: float, factor: float = 1.0) -> tuple[int, int, float]:
    value = np.array([(rueda.rank() + add) * factor])
    return rueda.rank(), os.getpid(), float(rueda.allreduce(value, "total", rueda.Sum)[0])


def fails() -> float:
    if rueda.rank() == 1:
        raise ValueError("a bad row in the data")
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


def own_gpu() -> str:
    """Returns the GPU that Ray gave this rank; it must be visible at the rank's local index."""
    (own,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    assert visible[rueda.local_rank()] == str(own), (visible, own, rueda.local_rank())
    return str(own)


def fails_with_a_gpu() -> float:
    own_gpu()
    return fails()


def dies() -> float:
    if rueda.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


def exits(code: object) -> int:
    """Rank 1 exits; its worker serves other ranks afterwards."""
    if rueda.rank() == 1:
        sys.exit(code)
    if code:
        rueda.allreduce(np.ones(1), "gradient")
    return os.getpid()


def differs() -> None:
    """Like an optimizer whose ranks have built different models."""
    rueda.allreduce(np.ones((4, 3 + rueda.rank())), "hidden.weight")


def sum_of(held: list[Any]) -> float:
    """Returns the sum of an array that a Ray reference points to."""
    return float(ray.get(held[0]).sum())


def is_busy(dies: bool = False) -> None:
    if rueda.rank() == 1 and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if rueda.rank() == 1:
        raise ValueError("nobody notices")
    time.sleep(60)


def uneven(rows: list[int]) -> tuple[float, int]:
    """Sums rows, of which some ranks have more; returns the sum and the last rank to join."""
    found = 0.0
    for row in range(rows[rueda.rank()]):
        found += float(rueda.allreduce(np.array([row + 1.0]), "row", rueda.Sum)[0])
    return found, rueda.join()


def is_interrupted() -> None:
    """Interrupts rank 1 as by Ctrl-C."""
    if rueda.rank() == 1:
        raise KeyboardInterrupt("in the loader")
    rueda.allreduce(np.ones(1), "gradient")


def is_told(marks: str) -> None:
    deadline = time.monotonic() + 60
    while not (Path(marks) / "told").exists():
        assert time.monotonic() < deadline, "not told"
        time.sleep(0.01)


def ends_its_world(begins_another: bool = False, marks: str = "") -> tuple[int, float]:
    """Like a script of Horovod's, from init() to shutdown()."""
    if marks:
        is_told(marks)
    rueda.init()
    found = rueda.size(), total(0.0)[2]
    rueda.shutdown()
    if begins_another:
        rueda.init()
    return found


def fails_late(marks: str) -> None:
    """Raises, on both ranks, once it is told to."""
    (Path(marks) / f"began {rueda.rank()}").touch()
    is_told(marks)
    raise ValueError(f"a bad row on rank {rueda.rank()}")


def has_two_sets() -> list[int | None]:
    """Calls init() with process sets, as each function of a Horovod user's does."""
    import horovod.common.basics as hvd
    from horovod.common.process_sets import ProcessSet

    sets = [ProcessSet([0]), ProcessSet([1])]
    hvd.init(process_sets=sets)
    own = rueda.allreduce(np.ones(1), "own", rueda.Sum, process_set=sets[rueda.rank()])
    assert own.tolist() == [1.0]
    return [each.process_set_id for each in sets]


class FailsOnOne:
    """An executable that cannot be created on rank 1, for which rank 0 waits."""

    def __init__(self, way: str) -> None:
        if rueda.rank() == 1 and way == "exit":
            sys.exit("no executable")
        if rueda.rank() == 1:
            raise ValueError("no executable")
        rueda.allreduce(np.ones(1), "created")


class Counter:
    """An executable whose ranks have a world when it is constructed."""

    def __init__(self, first: int) -> None:
        self.count = first + rueda.rank()

    def add(self) -> int:
        self.count += 1
        return int(rueda.allreduce(self.count, "count", rueda.Sum))


def check_the_executor_runs_functions(folder: Path) -> None:
    executor = rueda.ray.RayExecutor(num_workers=2)
    executor.start(Counter, executable_args=[10], extra_env_vars={"OF_THE_TEST": "1"})
    for add in (1.0, 2.0):
        results = executor.run(total, [add], {"factor": 2.0})
        assert [rank for rank, _, _ in results] == [0, 1]
        assert len({process for _, process, _ in results}) == 2
        assert {value for _, _, value in results} == {2 * (1 + 2 * add)}
    references = executor.run_remote(total, [0.0])
    assert [value for _, _, value in ray.get(references)] == [1.0, 1.0]
    assert executor.execute(Counter.add) == [23, 23]
    assert executor.execute_single(lambda counter: counter.count) == 11
    assert executor.run(lambda: os.environ["OF_THE_TEST"]) == ["1", "1"]
    assert executor.run(sum_of, [[ray.put(np.ones(1000))]]) == [1000.0, 1000.0]
    assert executor.run(uneven, [[4, 2]]) == [(2 * (1 + 2) + 3 + 4, 0), (6, 0)]

    with raises_of(rueda.MismatchError, "'hidden.weight'", "[4, 3] on rank 0, [4, 4] on rank 1"):
        executor.run(differs)
    with raises_of(ValueError, "a bad row in the data", "raised on rank 1, node "):
        executor.run(fails)
    assert len(executor.run(total, [0.0])) == 2  # in a new world
    begun = executor.run_remote(fails)
    ray.wait(begun, num_returns=2)
    assert len(executor.run(total, [0.0])) == 2
    with raises_of(rueda.RuedaError, "sys.exit('cannot go on')"):
        executor.run(exits, ["cannot go on"])
    with raises_of(rueda.RuedaError, "KeyboardInterrupt: in the loader", "raised on rank 1"):
        executor.run(is_interrupted)
    assert executor.run(exits, [0])[1] is None
    with raises(rueda.PeerLostError, "workers were lost: rank 1 ("):
        executor.run(dies)
    with raises(rueda.RuedaError, "is lost", "shutdown() and start()"):
        executor.run(total, [0.0])
    executor.shutdown()
    executor.start()
    assert len(executor.run(total, [0.0])) == 2
    executor.shutdown()


def check_a_function_may_end_its_world(folder: Path) -> None:
    """The next call must not train separate worlds of one rank."""
    executor = rueda.ray.RayExecutor(num_workers=2)
    executor.start()
    for _ in range(2):
        assert executor.run(ends_its_world) == [(2, 1.0)] * 2
    assert ray.get(executor.run_remote(ends_its_world)) == [(2, 1.0)] * 2
    with raises_of(rueda.InvalidArgumentError, "init() would form", "of this process alone"):
        executor.run(ends_its_world, [True])
    assert [value for _, _, value in executor.run(total, [0.0])] == [1.0, 1.0]
    begun = executor.run_remote(ends_its_world, [False, str(folder)])
    threading.Timer(1, (folder / "told").touch).start()
    with raises_of(rueda.RuedaError, "queued behind another", "rueda.shutdown()"):
        executor.run(total, [0.0])
    assert ray.get(begun) == [(2, 1.0)] * 2
    assert [value for _, _, value in executor.run(total, [0.0])] == [1.0, 1.0]
    executor.shutdown()


def check_a_call_behind_one_that_fails_tells_why(folder: Path) -> None:
    executor = rueda.ray.RayExecutor(num_workers=2)
    executor.start()
    begun = executor.run_remote(fails_late, [str(folder)])
    threading.Timer(1, (folder / "told").touch).start()
    with raises_of(rueda.RuedaError, "queued behind another", "ValueError: a bad row on rank"):
        executor.run(total, [0.0])
    with raises_of(ValueError, "a bad row on rank"):
        ray.get(begun)
    assert [value for _, _, value in executor.run(total, [0.0])] == [1.0, 1.0]
    executor.shutdown()


def check_a_call_after_one_that_was_interrupted(folder: Path) -> None:
    """Ctrl-C in the driver does not stop the ranks, which fail later."""

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("began *"))) < 2:
            assert time.monotonic() < deadline, "the ranks have not begun"
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    executor = rueda.ray.RayExecutor(num_workers=2)
    executor.start()
    threading.Thread(target=interrupt, daemon=True).start()
    with raises(KeyboardInterrupt, ""):
        executor.run(fails_late, [str(folder)])
    (folder / "told").touch()
    ray.wait(executor._unseen, num_returns=2, timeout=60)
    assert [value for _, _, value in executor.run(total, [0.0])] == [1.0, 1.0]
    executor.shutdown()


def check_an_executable_that_fails_on_one_rank(folder: Path) -> None:
    executor = rueda.ray.RayExecutor(num_workers=2)
    for way, kind in (("raise", ValueError), ("exit", rueda.RuedaError)):
        began = time.monotonic()
        with raises_of(kind, "no executable", "raised on rank 1"):
            executor.start(FailsOnOne, [way])
        assert time.monotonic() - began < 50, "the other rank did not notice"
    executor.start()
    assert executor.run(rueda.rank) == [0, 1]
    executor.shutdown()


def reserved() -> list[Any]:
    """Returns what placement groups that are not removed hold, once that stays the same."""
    deadline = time.monotonic() + 20
    while held := [
        each["bundles"] for each in placement_group_table().values() if each["state"] != "REMOVED"
    ]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return held


def check_an_executor_that_is_dropped_frees_its_resources(folder: Path) -> None:
    executor = rueda.ray.RayExecutor(num_workers=4, timeout=3)
    executor.start()
    with raises(rueda.TimeoutError, "others still use after 3 s", "1 of them in this process"):
        rueda.ray.RayExecutor(num_workers=2, timeout=3).start()
    del executor
    gc.collect()
    assert reserved() == []


def check_an_executor_whose_ray_was_shut_down(folder: Path) -> None:
    executor = rueda.ray.RayExecutor(num_workers=2)
    executor.start()
    ray.shutdown()
    with raises(rueda.RuedaError, "have ended with the Ray", "shutdown() and start()"):
        executor.run(rueda.rank)
    assert not ray.is_initialized()
    executor.shutdown()
    assert not ray.is_initialized()
    start_ray()
    executor.start()
    assert executor.run(rueda.rank) == [0, 1]
    ray.shutdown()
    start_ray()
    executor.shutdown()
    executor.start()
    assert executor.run(rueda.rank) == [0, 1]
    executor.shutdown()


def check_shares_of_processors(folder: Path) -> None:
    rueda.ray.RayExecutor(2, np.int64(1), use_gpu=True, gpus_per_worker=np.float32(0.5))
    for value in (float("inf"), float("nan"), 1e-5, np.int64(-1)):
        with raises(rueda.InvalidArgumentError, f"cpus_per_worker={value!r}: pass a number of"):
            rueda.ray.RayExecutor(2, value)
    with raises(rueda.InvalidArgumentError, "no resources to reserve", "cpus_per_worker= above 0"):
        rueda.ray.RayExecutor(2, 0).start()
    group = placement_group([{"CPU": 1}] * 2)
    executor = rueda.ray.RayExecutor(2, 0, placement_group=group)
    executor.start()
    assert executor.run(rueda.rank) == [0, 1]
    executor.shutdown()
    remove_placement_group(group)
    assert reserved() == []
    with raises(rueda.InvalidArgumentError, "placement group", "has been removed"):
        executor.start()


def check_a_lost_worker_that_is_not_noticed(folder: Path) -> None:
    executor = rueda.ray.RayExecutor(num_workers=2, timeout=3)
    executor.start()
    with raises(rueda.TimeoutError, "rank 1 was lost, and ranks [0] have not noticed"):
        executor.run(is_busy, [True])
    executor.shutdown()


def check_each_rank_finds_its_own_gpu(folder: Path) -> None:
    """Ray is told that there are two GPUs."""
    executor = rueda.ray.RayExecutor(num_workers=2, use_gpu=True)
    executor.start()
    assert sorted(executor.run(own_gpu)) == ["0", "1"]
    executor.shutdown()


class raises_of:  # noqa: N801 - used like a function
    """The block must raise a rank's error, of that type, with all parts in its text and notes."""

    def __init__(self, kind: type[BaseException], *parts: str) -> None:
        self.kind = kind
        self.parts = parts

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, self.kind), repr(error)
        told = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert all(part in told for part in self.parts), told
        return True


def check_two_executors_at_once(folder: Path) -> None:
    executors = [rueda.ray.RayExecutor(num_workers=2) for _ in range(2)]
    for executor in executors:
        executor.start()
    begun = [executor.run_remote(total, [add]) for add, executor in enumerate(executors)]
    for add, references in enumerate(begun):
        assert {value for _, _, value in ray.get(references)} == {1.0 + 2 * add}
    for executor in executors:
        executor.shutdown()


def check_what_cannot_work_is_told(folder: Path) -> None:
    for wrong in (0, -1, True, "all"):
        with raises(rueda.InvalidArgumentError, f"num_workers={wrong!r}"):
            rueda.ray.RayExecutor(wrong)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "use_gpu=True"):
        rueda.ray.RayExecutor(1, gpus_per_worker=1)
    of_executor: list[tuple[str, Any]] = [
        ("cpus_per_worker", "1"),
        ("cpus_per_worker", -1),
        ("gpus_per_worker", True),
        ("timeout", "x"),
    ]
    for name, value in of_executor:
        with raises(rueda.InvalidArgumentError, f"{name}={value!r}", "pass a number of"):
            rueda.ray.RayExecutor(2, use_gpu=True, **{name: value})
    of_start: list[tuple[str, Any]] = [
        ("executable_cls", "Counter"),
        ("executable_args", 10),
        ("executable_kwargs", [10]),
        ("extra_env_vars", {"A": 3}),
    ]
    for name, value in of_start:
        with raises(rueda.InvalidArgumentError, f"{name}={value!r}"):
            rueda.ray.RayExecutor(2).start(**{"executable_cls": Counter, name: value})
    with raises(rueda.InvalidArgumentError, "num_workers=50 needs 50 CPU", "the cluster has 5"):
        rueda.ray.RayExecutor(50).start()
    executor = rueda.ray.RayExecutor(2, timeout=3)
    with raises(rueda.InvalidArgumentError, "start() first"):
        executor.run(total, [0.0])
    executor.start()
    with raises(rueda.InvalidArgumentError, "runs already"):
        executor.start()
    for call in (executor.run, executor.run_remote, executor.execute, executor.execute_single):
        with raises(rueda.InvalidArgumentError, "fn=None cannot be called"):
            call(None)
    for name, value in (("args", 5), ("args", "text"), ("kwargs", [1])):
        for call in (executor.run, executor.run_remote):
            with raises(rueda.InvalidArgumentError, f"{name}={value!r}: "):
                call(total, **{name: value})
    assert executor.run(rueda.rank, None, None) == [0, 1]
    with raises(rueda.InvalidArgumentError, "train_loop_per_worker=None cannot be called"):
        trainer(None, folder)
    lock = threading.Lock()
    with raises(rueda.InvalidArgumentError, "cannot be pickled", "lock"):
        executor.run(lambda: lock)
    with raises(rueda.TimeoutError, "rank 1 has failed", "ranks [0]", "not noticed within 3 s"):
        executor.run(is_busy)
    executor.shutdown()
    with raises(rueda.InvalidArgumentError, "RuedaTrainer", "num_workers=50", "the cluster has 5"):
        trainer(total, folder, 50).fit()
    with raises(rueda.InvalidArgumentError, "the training function", "cannot be pickled", "lock"):
        trainer(lambda: lock, folder).fit()


def logs(steps: int) -> tuple[int, int, str, str | None]:
    """Like a Horovod user's function, but without torch, which the environment lacks."""
    import horovod.common.basics as hvd

    hvd.init()
    for step in range(steps):
        ray_logger.log({"rank": hvd.rank(), "step": step})
    given = os.environ.get("OF_THE_TEST")
    return hvd.rank(), hvd.size(), rueda.options()["join_average"], given


def in_a_group() -> list[int]:
    """Runs in a driver that is itself in a placement group."""
    executor = HorovodExecutor(HorovodExecutor.create_settings(), num_workers=2)
    executor.start()
    ranks = executor.run(rueda.rank)
    executor.shutdown()
    return ranks


def check_horovods_executor(folder: Path) -> None:
    require_signatures_of_horovod(rueda.horovod.ray, "ray")
    settings = HorovodExecutor.create_settings(timeout_s=60, placement_group_timeout_s=60)
    alias.install()  # here, and thereby on the workers
    executor = HorovodExecutor(settings, 2, num_workers_per_host=None)
    executor.start(Counter, [10], {}, extra_env_vars={"OF_THE_TEST": 7})
    heard: list[dict[str, int]] = []
    told = executor.run(logs, [3], callbacks=[heard.append])
    assert told == [(rank, 2, "all", "7") for rank in range(2)]
    assert heard == [{"rank": 0, "step": step} for step in range(3)]
    assert executor.run(logs, kwargs={"steps": 0}) == told
    for _ in range(2):
        assert executor.run(has_two_sets) == [[1, 2]] * 2
    assert executor.execute(Counter.add) == [23, 23]
    assert executor.execute(Counter.add, callbacks=[heard.append]) == [25, 25]
    assert executor.execute_single(lambda counter: counter.count) == 12
    assert ray.get(executor.run_remote(rueda.rank)) == [0, 1]

    def refuses(info: dict[str, int]) -> None:
        raise ValueError(f"step {info['step']} is enough")

    with raises(ValueError, "step 0 is enough"):
        executor.run(logs, [2], callbacks=[refuses])
    arrays: list[Any] = []
    executor.run(lambda: ray_logger.log(np.ones(2)), callbacks=[arrays.append])
    assert [array.tolist() for array in arrays] == [[1.0, 1.0]]
    with raises(SystemExit, "3"):
        executor.run(logs, [1], callbacks=[lambda info: sys.exit(3)])
    with raises_of(ValueError, "a bad row in the data", "raised on rank 1, node "):
        executor.run(fails, callbacks=[heard.append])
    executor.shutdown()
    executor = HorovodExecutor(settings, num_hosts=1, num_workers_per_host=2)
    executor.start()
    assert executor.run(logs, [0]) == [(rank, 2, "all", None) for rank in range(2)]
    executor.shutdown()


def check_parts_of_a_gpu(folder: Path) -> None:
    """Five times 0.2 fit on one GPU, and three times 0.1 fit in 0.3 despite rounding."""
    executor = rueda.ray.RayExecutor(
        5, 0.1, use_gpu=True, gpus_per_worker=0.2, num_workers_per_host=5
    )
    executor.start()
    assert executor.run(rueda.rank) == list(range(5))
    assert executor.run(lambda: rueda.options()["init_timeout"]) == ["60"] * 5
    executor.shutdown()
    group = placement_group([{"CPU": 0.3}], strategy="PACK")
    executor = rueda.ray.RayExecutor(3, 0.1, placement_group=group)
    executor.start()
    executor.shutdown()
    remove_placement_group(group)


def check_horovods_executor_in_a_placement_group(folder: Path) -> None:
    """It uses its driver's group and leaves it in place, or one of its own."""
    group = placement_group([{"CPU": 1}] * 3, strategy="PACK")
    ray.get(group.ready(), timeout=60)
    inside = ray.remote(in_a_group).options(
        num_cpus=1,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            group, placement_group_capture_child_tasks=True
        ),
    )
    for _ in range(2):
        assert ray.get(inside.remote(), timeout=120) == [0, 1]
    executor = rueda.ray.RayExecutor(2, placement_group=group)
    executor.start()
    assert executor.run(rueda.rank) == [0, 1]
    executor.shutdown()
    with raises(rueda.InvalidArgumentError, "num_workers=4", "has room for 3"):
        rueda.ray.RayExecutor(4, placement_group=group).start()
    with raises(rueda.InvalidArgumentError, "placement_group are given"):
        rueda.ray.RayExecutor(2, num_workers_per_host=1, placement_group=group)
    remove_placement_group(group)


def check_what_horovods_executor_cannot_do_is_told(folder: Path) -> None:
    settings = HorovodExecutor.create_settings()
    for name, value in (
        ("min_workers", 1),
        ("max_workers", 4),
        ("reset_limit", 0),
        ("cooldown_range", [1, 2]),
        ("elastic_timeout", 60),
        ("override_discovery", False),
    ):
        with raises(rueda.UnsupportedError, f"{name}: elastic executors are not supported"):
            HorovodExecutor(settings, **{name: value})
    for act in (ElasticRayExecutor, ElasticRayExecutor.create_settings):
        with raises(rueda.UnsupportedError, "RuedaConfig(elastic=True)"):
            act(min_num_proc=2)
    for given, parts in (
        ({}, ["pass num_workers, or num_hosts"]),
        ({"num_workers": 2, "num_hosts": 1}, ["num_workers and num_hosts are given"]),
        ({"num_hosts": 0}, ["num_hosts=0 is not a number of hosts"]),
        ({"num_workers": 2, "gpus_per_worker": 1}, ["use_gpu=True"]),
    ):
        with raises(rueda.InvalidArgumentError, *parts):
            HorovodExecutor(settings, **given)
    with raises(rueda.InvalidArgumentError, "settings=2: pass RayExecutor.create_settings()"):
        HorovodExecutor(2)
    with raises(rueda.InvalidArgumentError, "timeout_s='x' is not a time"):
        HorovodExecutor.create_settings("x")
    with raises(rueda.InvalidArgumentError, "needs 2 nodes", "the cluster has 1"):
        HorovodExecutor(settings, num_hosts=2).start()
    with raises(rueda.InvalidArgumentError, "num_workers=3 cannot be divided"):
        rueda.ray.RayExecutor(3, num_workers_per_host=2)
    key = folder / "key"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        HorovodExecutor.create_settings(ssh_identity_file=str(key), ssh_str="secret")
    assert ["Ray starts the workers, without ssh" in f"{each.message}" for each in caught] == [True]
    assert not key.exists()


def trainer(
    train: Any,
    folder: Path,
    num_workers: int = 2,
    max_failures: int = 0,
    use_gpu: bool = False,
    **kwargs: Any,
) -> rueda.ray.RuedaTrainer:
    return rueda.ray.RuedaTrainer(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
        ),
        **kwargs,
    )


def elastic(train: Any, folder: Path, **kwargs: Any) -> rueda.ray.RuedaTrainer:
    """Returns a trainer that replaces only the lost workers."""
    backend = rueda.ray.RuedaConfig(elastic=True)
    kwargs = {"max_failures": 1, "train_loop_config": {"folder": str(folder)}, **kwargs}
    return trainer(train, folder, backend_config=backend, **kwargs)


def trains_digits(config: dict[str, str]) -> None:
    """Trains; rank 1 of the first attempt is killed midway."""
    images, labels = samples()
    mine = slice(rueda.rank(), TRAINED, rueda.size())
    weights, first = np.zeros((65, 10)), 0
    if kept := ray.train.get_checkpoint():
        with kept.as_directory() as place:
            saved = np.load(Path(place) / "state.npz")
            weights, first = saved["weights"], int(saved["step"]) + 1
    for step in range(first, 60):
        if step == 35 and rueda.rank() == 1 and first == 0:
            ray.train.get_all_reported_checkpoints()  # returns once the reports are stored
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = gradient_of(weights, images[mine], labels[mine])
        weights -= 2.0 * rueda.allreduce(gradient, name="gradient")
        if step % 30 == 29:
            checkpoint = None
            if rueda.rank() == 0:
                place = Path(config["folder"]) / f"{step}"
                place.mkdir(exist_ok=True)
                np.savez(place / "state.npz", weights=weights, step=step)
                checkpoint = ray.train.Checkpoint.from_directory(str(place))
            metrics = {"accuracy": accuracy_of(weights), "first": first}
            ray.train.report(metrics, checkpoint=checkpoint)


def check_a_trainer_goes_on_from_its_checkpoint(folder: Path) -> None:
    config = {"folder": str(folder)}
    metrics = trainer(trains_digits, folder, max_failures=1, train_loop_config=config).fit().metrics
    assert metrics["first"] == 30
    require_as_good(metrics["accuracy"], learned_alone())


def check_a_trainer_that_cannot_begin_leaves_nothing_reserved(folder: Path) -> None:
    for is_elastic in (False, True):
        backend = rueda.ray.RuedaConfig(interface="nowhere0", elastic=is_elastic)
        told = ""
        try:
            trainer(total, folder / f"{is_elastic}", backend_config=backend).fit()
        except ray.train.WorkerGroupError as error:
            told = str(error)
        assert "InitializationError: interface (RUEDA_INTERFACE) 'nowhere0'" in told, told
        assert reserved() == []


def check_a_trainer_tells_the_error_and_its_rank(folder: Path) -> None:
    told = ""
    try:
        trainer(fails_with_a_gpu, folder, use_gpu=True).fit()
    except ray.train.WorkerGroupError as error:
        told = str(error)
    assert "ValueError: a bad row in the data" in told, told
    assert "[Rank 1 Error Snippet]" in told, told


def meets(config: dict[str, Any]) -> None:
    """Sums once the ranks of another trainer run too."""
    folder, own = Path(config["folder"]), config["own"]
    (folder / f"{own} {rueda.rank()}").touch()
    deadline = time.monotonic() + 120
    while len(list(folder.glob(f"{config['other']} ?"))) < 2:
        assert time.monotonic() < deadline, "the other has not come"
        time.sleep(0.01)
    summed = rueda.allreduce(np.array([config["add"]]), "total", rueda.Sum)
    (folder / f"total of {own} {rueda.rank()}").write_text(repr(summed.tolist()))


def check_two_trainers_at_once(folder: Path) -> None:
    def fit(own: str, other: str, add: float) -> None:
        config = {"folder": str(folder), "own": own, "other": other, "add": add}
        trainer(meets, folder / f"of {own}", train_loop_config=config).fit()

    jobs = [("a", "b", 1.0), ("b", "a", 10.0)]
    threads = [threading.Thread(target=fit, args=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
    totals = {path.name: literal_eval(path.read_text()) for path in folder.glob("total of *")}
    expected = {"a": [2.0], "b": [20.0]}
    assert totals == {f"total of {j} {r}": expected[j] for j in expected for r in range(2)}


class Weights:
    """The state shared by the ranks of an elastic training."""

    def __init__(self) -> None:
        self.value = np.zeros((65, 10))

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.value = np.array(state["value"])


def once(config: dict[str, str], name: str) -> bool:
    """Returns True for the first caller."""
    try:
        (Path(config["folder"]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def goes_on(config: dict[str, str]) -> None:
    """Trains; a worker is killed midway, and training goes on until another has replaced it."""
    began = rueda.rank(), rueda.size()
    images, labels = samples()
    weights, alone, whole = Weights(), 0, 0
    for step in rueda.elastic.steps(10_000, weights):
        with step:
            if step.number == 20 and rueda.rank() == int(config["lost"]) and once(config, "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if step.number < 60:
                mine = slice(rueda.rank(), TRAINED, rueda.size())
                counted = gradient_of(weights.value, images[mine], labels[mine]) * len(labels[mine])
                summed = rueda.allreduce(counted, "gradient", rueda.Sum)
                weights.value = weights.value - 2.0 * summed / TRAINED
            else:
                time.sleep(0.02)
            alone += rueda.size() == 2
            whole += step.number > 20 and rueda.size() == 3
            told = rueda.allgather_object((os.getpid(), whole), "told")
            done = min(count for _, count in told) >= 3
            if done:
                assert rueda.ray.report({"step": step.number})
            else:
                assert rueda.size() == 3 or not rueda.ray.report({"step": step.number})
        if done:
            break
    found = {"began": began, "alone": alone, "step": step.number}
    found["accuracy"] = accuracy_of(weights.value)
    (Path(config["folder"]) / f"rank{rueda.rank()}").write_text(repr(found))


def check_survivors_go_on_and_one_new_worker_joins_them(folder: Path) -> None:
    """Even if the first rank is lost."""
    for lost in (1, 0):
        place = folder / str(lost)
        place.mkdir()
        config = {"folder": str(place), "lost": str(lost)}
        elastic(goes_on, place, num_workers=3, train_loop_config=config).fit()
        ranks = [literal_eval((place / f"rank{rank}").read_text()) for rank in range(3)]
        survivors, newcomer = ranks[:2], ranks[2]
        assert [each["began"] for each in survivors] == [
            (rank, 3) for rank in range(3) if rank != lost
        ]
        assert newcomer["began"] == (2, 3)
        assert newcomer["alone"] == 0
        assert all(each["alone"] > 0 for each in survivors), ranks  # while Ray started another
        assert len({each["step"] for each in ranks}) == 1
        accuracies = {each["accuracy"] for each in ranks}
        assert len(accuracies) == 1
        require_as_good(accuracies.pop(), learned_alone())


def ends_early(config: dict[str, str]) -> None:
    """One worker is killed, and the others finish all work before it is replaced."""
    for step in rueda.elastic.steps(10):
        with step:
            if step.number == 5 and rueda.rank() == 1 and once(config, "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            rueda.allreduce(np.ones(1), "one")
    once(config, f"done {os.getpid()}")


def check_who_comes_when_the_work_is_done_does_not_fail(folder: Path) -> None:
    elastic(ends_early, folder).fit()
    assert len(list(folder.glob("done *"))) == 1


def begins_anew(config: dict[str, str]) -> None:
    """Does not handle losses: all of its workers fail, at different times."""
    if rueda.rank() == 1 and once(config, "killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    total = int(rueda.allreduce(np.ones(1, int), "one", rueda.Sum)[0])
    once(config, f"rank {rueda.rank()} of {total}")


def check_a_function_that_does_not_survive_begins_anew_on_all_workers(folder: Path) -> None:
    elastic(begins_anew, folder, num_workers=3, max_failures=-1).fit()
    assert sorted(path.name for path in folder.glob("rank *")) == [
        f"rank {r} of 3" for r in range(3)
    ]


def start_ray() -> None:
    ray.init(num_cpus=5, num_gpus=2, include_dashboard=False, object_store_memory=100 << 20)


if __name__ == "__main__":
    named = [(name, act) for name, act in list(globals().items()) if name.startswith("check_")]
    checks = [act for name, act in named if name in (sys.argv[2:] or dict(named))]
    start_ray()
    for act in checks:
        folder = Path(sys.argv[1]) / act.__name__
        folder.mkdir()
        began = time.monotonic()
        act(folder)
        print("ok", act.__name__, f"{time.monotonic() - began:.1f} s", flush=True)
    ray.shutdown()
