"""``horovod.ray.RayExecutor``: :class:`rueda.ray.RayExecutor` with Horovod's arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import ray
from ray.util.placement_group import get_current_placement_group

import rueda.ray
from rueda.engines.given import count_of, function_of
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.horovod.alias import is_installed
from rueda.horovod.engine_ranks import as_horovod
from rueda.horovod.ray.callbacks import Logged, calling
from rueda.horovod.ray.settings import MiniSettings, checked

__all__ = ["ElasticRayExecutor", "RayExecutor"]

_ELASTIC = (
    "elastic executors are not supported: rueda.ray.RuedaTrainer goes on without workers that are lost, with "
    "RuedaConfig(elastic=True), see docs/ray.md"
)


class RayExecutor(rueda.ray.RayExecutor):
    """:class:`rueda.ray.RayExecutor` with Horovod's arguments.

    ``settings``: from :meth:`create_settings`. Give either ``num_workers``, which Ray places on as few nodes as it can,
    or ``num_hosts`` with ``num_workers_per_host`` on each. ``use_current_placement_group``: if this code runs in a
    placement group, place the workers in it; the group then determines their nodes. ``min_workers``, ``max_workers``,
    ``reset_limit``, ``cooldown_range`` and non-default values of ``elastic_timeout`` and ``override_discovery`` are
    refused.

    An average after ``join()`` divides by all ranks, and ``import horovod`` on the workers means Rueda if it does so in
    this process. The world exists before a function runs, so ``hvd.init()`` forms none there.

    Raises :class:`rueda.InvalidArgumentError` for invalid numbers, :class:`rueda.UnsupportedError` for refused
    arguments.

    Example::

        >>> settings = RayExecutor.create_settings(timeout_s=30)  # doctest: +SKIP
        >>> executor = RayExecutor(settings, num_workers=4, use_gpu=True)  # doctest: +SKIP
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | None = None,
    ) -> MiniSettings:
        """Returns settings for the constructor.

        ``timeout_s``: how many seconds ranks may take to meet, and to detect another rank's failure.
        ``placement_group_timeout_s``: how many seconds to wait for resources that others hold. ``nics``: the ranks'
        network interfaces; only the first is used. ``ssh_identity_file`` and ``ssh_str`` only cause a warning, since
        Ray starts the workers; no key is written.

        Example::

            >>> RayExecutor.create_settings(timeout_s=60).timeout_s
            60.0
        """
        if ssh_identity_file is not None or ssh_str is not None:
            warnings.warn(
                "ssh_identity_file and ssh_str have no effect: Ray starts the workers, without ssh",
                stacklevel=2,
            )
        given = MiniSettings(nics, 1, timeout_s, placement_group_timeout_s)
        return checked(given)

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        refused = {
            "min_workers": min_workers is not None,
            "max_workers": max_workers is not None,
            "reset_limit": reset_limit is not None,
            "cooldown_range": cooldown_range is not None,
            "elastic_timeout": elastic_timeout != 600,
            "override_discovery": override_discovery is not True,
        }
        if wrong := [name for name, is_given in refused.items() if is_given]:
            raise UnsupportedError(f"{', '.join(wrong)}: {_ELASTIC}")
        self._settings = checked(settings)
        size, per_host = _size_of(num_workers, num_hosts, num_workers_per_host)
        self._uses_current = use_current_placement_group
        super().__init__(
            size,
            cpus_per_worker,
            use_gpu,
            gpus_per_worker,
            num_workers_per_host=per_host,
            timeout=self._settings.timeout_s,
        )
        self._room_timeout = self._settings.placement_group_timeout_s

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Like :meth:`rueda.ray.RayExecutor.start`; values of ``extra_env_vars`` may also be numbers."""
        variables = {name: str(value) for name, value in dict(extra_env_vars or {}).items()}
        if self._settings.nics and "RUEDA_INTERFACE" not in variables:
            variables["RUEDA_INTERFACE"] = next(iter(self._settings.nics))
        if self._uses_current and ray.is_initialized():
            self._given_group = get_current_placement_group()
        self._forming = partial(as_horovod, is_installed())
        super().start(executable_cls, executable_args, executable_kwargs, variables)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Like :meth:`rueda.ray.RayExecutor.run`, with callbacks.

        ``callbacks`` are called in a thread of this process with each value that rank 0 passes to ``ray_logger.log()``
        while ``fn`` runs; an exception in one is raised here once all ranks have ended.
        """
        if not callbacks:
            return super().run(fn, args, kwargs)
        with calling(callbacks) as queue:
            return super().run(Logged(function_of("fn", fn), queue), args, kwargs)

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None
    ) -> list[Any]:
        """Calls ``fn`` with each rank's executable; otherwise like :meth:`run`."""
        if not callbacks:
            return super().execute(fn)
        with calling(callbacks) as queue:
            return super().execute(Logged(function_of("fn", fn), queue))


def _size_of(num_workers: Any, num_hosts: Any, num_workers_per_host: Any) -> tuple[int, int | None]:
    """Returns the number of workers, and the number per host or ``None``."""
    if num_hosts is None:
        if num_workers is None:
            raise InvalidArgumentError("pass num_workers, or num_hosts and num_workers_per_host")
        return count_of("num_workers", num_workers, "workers"), None
    if num_workers is not None:
        raise InvalidArgumentError("num_workers and num_hosts are given: pass one of them")
    each = 1 if num_workers_per_host is None else num_workers_per_host
    per_host = count_of("num_workers_per_host", each, "workers")
    return count_of("num_hosts", num_hosts, "hosts") * per_host, per_host


class ElasticRayExecutor:
    """Raises :class:`rueda.UnsupportedError`, which says what to use instead."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UnsupportedError(_ELASTIC)

    @staticmethod
    def create_settings(*_: Any, **__: Any) -> NoReturn:
        """Raises :class:`rueda.UnsupportedError`."""
        raise UnsupportedError(_ELASTIC)
