"""Ray Train workers as ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from rueda import lifecycle, rendezvous
from rueda.elastic.joining import JobHasEnded
from rueda.elastic.reception import Reception
from rueda.engines.given import function_of
from rueda.engines.network import options_at
from rueda.engines.pickling import pickled
from rueda.errors import UnsupportedError
from rueda.exchanges import barrier
from rueda.ray.resources import check_room

__all__ = ["RuedaConfig", "RuedaTrainer", "report"]

# In a worker: the address and options with which to enter a world, or why there is none. Ray runs the training function
# in its own thread, and offers no other place for data that the backend has sent to the process before.
_meeting: dict[str, Any] = {}


class RuedaConfig(BackendConfig):  # type: ignore[misc]
    """Makes Ray Train's workers a world while the training function runs, with Ray's rank numbers.

    ``interface``: the network interface for the rendezvous, as for :func:`rueda.rendezvous.open`. ``elastic``: if a
    worker is lost, Ray replaces only it, within ``FailureConfig(max_failures=)``, while the others continue; needs
    :class:`RuedaTrainer` and a training function that uses :func:`rueda.elastic.steps` or :func:`rueda.elastic.run`.
    ``options``: those of :func:`rueda.init`.

    Raises :class:`rueda.UnsupportedError` if Ray is too old for ``elastic``.

    Example::

        >>> trainer = DataParallelTrainer(train, backend_config=rueda.ray.RuedaConfig())  # doctest: +SKIP
    """

    def __init__(self, interface: str = "", *, elastic: bool = False, **options: Any) -> None:
        if elastic and not hasattr(Backend, "has_replica_groups"):
            raise UnsupportedError(
                f"RuedaConfig(elastic=True): Ray {ray.__version__} cannot replace single workers; Ray 2.60 can"
            )
        self.interface = interface
        self.elastic = elastic
        self.options = options

    @property
    def backend_cls(self) -> type[Backend]:
        return _ElasticBackend if self.elastic else _RuedaBackend

    @property
    def train_func_context(self) -> Callable[[], Any]:
        return _in_world


class _RuedaBackend(Backend):  # type: ignore[misc]
    """Tells all workers the address that the first one has opened, a new one for each worker group."""

    # So that a worker's GPU has index local_rank(), as elsewhere.
    share_cuda_visible_devices = True

    def on_training_start(self, worker_group: Any, backend_config: RuedaConfig) -> None:
        size = len(worker_group)
        with _raised_by(worker_group):
            address = worker_group.execute_single(0, _open, size, backend_config.interface)
            worker_group.execute(_remember, address, size, backend_config.options)


class _ElasticBackend(Backend):  # type: ignore[misc]
    """Tells all workers, replacements included, the address of a reception in this process, the controller."""

    has_replica_groups = True

    def __init__(self) -> None:
        self._reception: Reception | None = None
        self._size = 0

    def on_training_start(self, worker_group: Any, backend_config: RuedaConfig) -> None:
        with _raised_by(worker_group):
            if (
                hasattr(worker_group, "get_replica_groups") or self._reception is None
            ):  # all workers
                self._close()
                self._size = len(worker_group)
                self._reception = Reception(
                    self._size, backend_config.interface or _own_interface()
                )
            address = str(self._reception.address)
            worker_group.execute(_remember, address, self._size, backend_config.options)

    def on_shutdown(self, worker_group: Any, backend_config: RuedaConfig) -> None:
        if hasattr(worker_group, "get_replica_groups"):
            self._close()

    def _close(self) -> None:
        if self._reception is not None:
            self._reception.close()
            self._reception = None


def _open(size: int, interface: str) -> str:
    return str(rendezvous.open(size, interface or _own_interface()))


def _own_interface() -> str:
    """The interface on which Ray reaches this node."""
    return options_at(ray.util.get_node_ip_address()).get("interface", "")


@contextmanager
def _raised_by(worker_group: Any) -> Iterator[None]:
    """What the block raises is raised by the workers instead, when they begin to train.

    If a backend raises it, Ray's controller ends with the workers running and their resources reserved.
    """
    try:
        yield
    except ray.exceptions.RayActorError:  # there is a worker less to tell
        raise
    except Exception as error:
        worker_group.execute(_remember_failure, getattr(error, "cause", error))


def _remember(address: str, size: int, options: Mapping[str, Any]) -> None:
    _meeting.update(address=address, size=size, options=dict(options), has_ended=False)


def _remember_failure(error: Exception) -> None:
    _meeting["failure"] = error


@contextmanager
def _in_world() -> Iterator[None]:
    rank = ray.train.get_context().get_world_rank()
    meeting = _meeting
    if (failure := meeting.pop("failure", None)) is not None:
        raise failure
    try:
        options = {**options_at(ray.util.get_node_ip_address()), **meeting["options"]}
        world = lifecycle.world(rank, meeting["size"], meeting["address"], **options)
        world.__enter__()
    except JobHasEnded:
        _meeting["has_ended"] = True
        yield
        return
    with ExitStack() as stack:
        stack.push(world)
        yield


def has_ended() -> bool:
    """Whether this worker has started after the others finished all the work."""
    return bool(_meeting.get("has_ended"))


def _unless_ended(train: Callable[..., Any]) -> Callable[..., Any]:
    """Skips ``train`` on a worker that starts after the others have finished, so that it does not fail."""

    @functools.wraps(train)
    def run(*config: Any) -> Any:
        # Imported here, as Ray pickles this function with copies of the globals that it uses.
        from rueda.ray.train import has_ended

        return None if has_ended() else train(*config)

    return run


def report(metrics: Mapping[str, Any], checkpoint: Any = None, **kwargs: Any) -> bool:
    """``ray.train.report()`` for training that continues without lost workers; returns whether it has reported.

    Ray's function waits for all workers, including a replacement that has not entered the world yet, which in turn
    waits for the others: a deadlock. This one reports only if the world is as large as Ray's worker group. Collective
    over the world.

    Raises :class:`rueda.PeerLostError` if a rank is lost meanwhile; ``steps()`` and ``run`` recover from it.

    Example::

        >>> rueda.ray.report({"loss": 0.5})  # doctest: +SKIP
        True
    """
    barrier()  # after it, all ranks see the same world size
    if lifecycle.size() < ray.train.get_context().get_world_size():
        return False
    ray.train.report(dict(metrics), checkpoint=checkpoint, **kwargs)
    return True


class RuedaTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Ray Train's ``DataParallelTrainer`` with :class:`RuedaConfig`; takes the same arguments.

    ``check_resources``: whether to refuse, before the start and with :class:`rueda.InvalidArgumentError`, more workers
    than the cluster has room for, instead of waiting for a larger cluster; true by default.

    An exception on a rank reaches the driver in Ray's ``WorkerGroupError``, by rank; the other ranks raise
    :class:`rueda.PeerLostError` with its text. With ``FailureConfig(max_failures=)`` all workers restart in a new
    world, or, with ``RuedaConfig(elastic=True)``, only the lost ones.

    Example::

        >>> scaling = ray.train.ScalingConfig(num_workers=4)  # doctest: +SKIP
        >>> rueda.ray.RuedaTrainer(train, scaling_config=scaling).fit()  # doctest: +SKIP
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        backend_config: RuedaConfig | None = None,
        check_resources: bool = True,
        **kwargs: Any,
    ) -> None:
        self._check_resources = check_resources
        super().__init__(
            _unless_ended(function_of("train_loop_per_worker", train_loop_per_worker)),
            backend_config=backend_config or RuedaConfig(),
            **kwargs,
        )

    def fit(self) -> Any:
        """Like Ray Train's. Raises :class:`rueda.InvalidArgumentError` if the function cannot be pickled."""
        scaling = self.scaling_config
        if self._check_resources and isinstance(scaling.num_workers, int):
            if not ray.is_initialized():
                ray.init()
            each = scaling._resources_per_worker_not_none
            check_room("RuedaTrainer", scaling.num_workers, each)
        try:
            return super().fit()
        except Exception:
            # Not earlier: Ray never frees objects whose references are pickled outside its own calls.
            given = (self.train_loop_per_worker, self.train_loop_config)
            pickled(ray.cloudpickle.dumps, "the training function with its configuration", given)
            raise
