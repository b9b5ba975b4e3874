"""rueda.ray on a cluster of this host: python check_ray.py FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import ray
import ray.train
import rueda
import rueda.ray

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "parallel" / "python")]
from parallel import raises  # noqa: E402


def total(add: float, factor: float = 1.0) -> tuple[int, int, float]:
    value = np.array([(rueda.rank() + add) * factor])
    return rueda.rank(), os.getpid(), float(rueda.allreduce(value, "total", rueda.Sum)[0])


def fails() -> float:
    if rueda.rank() == 1:
        raise ValueError("a bad row in the data")
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


def dies() -> float:
    if rueda.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


def is_busy() -> None:
    if rueda.rank() == 1:
        raise ValueError("nobody notices")
    time.sleep(60)


class Counter:
    """An executable, whose ranks have a world when it is made."""

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

    with raises_of("a bad row in the data", "raised on rank 1"):
        executor.run(fails)
    assert len(executor.run(total, [0.0])) == 2  # in a new world
    with raises(rueda.PeerLostError, "workers of ranks [1] were lost"):
        executor.run(dies)
    with raises(rueda.RuedaError, "is lost", "shutdown() and start()"):
        executor.run(total, [0.0])
    executor.shutdown()
    executor.start()
    assert len(executor.run(total, [0.0])) == 2
    executor.shutdown()


class raises_of:  # noqa: N801 - used like a function
    """The block must raise the ValueError that a rank has raised, with all parts in its text and its notes."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, ValueError), repr(error)
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
    with raises(rueda.InvalidArgumentError, "num_workers=50 needs 50 CPU", "the cluster has 5"):
        rueda.ray.RayExecutor(50).start()
    executor = rueda.ray.RayExecutor(2, timeout=3)
    with raises(rueda.InvalidArgumentError, "start() first"):
        executor.run(total, [0.0])
    executor.start()
    with raises(rueda.InvalidArgumentError, "runs already"):
        executor.start()
    lock = threading.Lock()
    with raises(rueda.InvalidArgumentError, "cannot be pickled", "lock"):
        executor.run(lambda: lock)
    with raises(rueda.TimeoutError, "rank 1 has failed", "ranks [0]", "not noticed within 3 s"):
        executor.run(is_busy)
    executor.shutdown()
    with raises(rueda.InvalidArgumentError, "RuedaTrainer", "num_workers=50", "the cluster has 5"):
        trainer(total, folder, 50).fit()


def trainer(train, folder: Path, num_workers: int = 2, max_failures: int = 0, **kwargs):
    return rueda.ray.RuedaTrainer(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
        run_config=ray.train.RunConfig(
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
        ),
        **kwargs,
    )


def samples() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.hstack([images / 16, np.ones((len(images), 1))]), labels


def gradient_of(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of a linear classifier's cross entropy."""
    raised = np.exp(images @ weights)
    share = raised / raised.sum(1, keepdims=True)
    gradient: np.ndarray = images.T @ (share - np.eye(10)[labels]) / len(images)
    return gradient


def accuracy_of(weights: np.ndarray) -> float:
    images, labels = samples()
    return float(((images[1408:] @ weights).argmax(1) == labels[1408:]).mean() * 100)


def digits(config: dict[str, str]) -> None:
    """Trains; rank 1 of the first attempt is killed in the middle of it."""
    images, labels = samples()
    mine = slice(rueda.rank(), 1408, rueda.size())
    weights, first = np.zeros((65, 10)), 0
    if kept := ray.train.get_checkpoint():
        with kept.as_directory() as place:
            saved = np.load(Path(place) / "state.npz")
            weights, first = saved["weights"], int(saved["step"]) + 1
    for step in range(first, 60):
        if step == 35 and rueda.rank() == 1 and first == 0:
            ray.train.get_all_reported_checkpoints()  # returns when what was reported is kept
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
    metrics = trainer(digits, folder, max_failures=1, train_loop_config=config).fit().metrics
    assert metrics["first"] == 30
    images, labels = samples()
    weights = np.zeros((65, 10))
    for _ in range(60):
        weights -= 2.0 * gradient_of(weights, images[:1408], labels[:1408])
    print("accuracy", metrics["accuracy"], accuracy_of(weights))
    assert metrics["accuracy"] > 85
    assert abs(metrics["accuracy"] - accuracy_of(weights)) <= 0.5


def check_a_trainer_tells_the_error_and_its_rank(folder: Path) -> None:
    told = ""
    try:
        trainer(fails, folder).fit()
    except ray.train.WorkerGroupError as error:
        told = str(error)
    assert "ValueError: a bad row in the data" in told, told
    assert "[Rank 1 Error Snippet]" in told, told


if __name__ == "__main__":
    checks = [act for name, act in list(globals().items()) if name.startswith("check_")]
    ray.init(num_cpus=5, include_dashboard=False, object_store_memory=100 << 20)
    for act in checks:
        folder = Path(sys.argv[1]) / act.__name__
        folder.mkdir()
        began = time.monotonic()
        act(folder)
        print("ok", act.__name__, f"{time.monotonic() - began:.1f} s", flush=True)
    ray.shutdown()
