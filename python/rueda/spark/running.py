"""``horovod.spark.run`` on a barrier stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa

from rueda.engines.forming import Forming, plainly
from rueda.engines.given import (
    function_of,
    interface_of,
    keywords_of,
    positionals_of,
    seconds_of,
    variables_of,
)
from rueda.errors import UnsupportedError
from rueda.spark.refusals import active_session, checked_size
from rueda.spark.stage import Stage, run_stage

__all__ = ["refuse", "run", "run_formed"]

_START_TIMEOUT = 60.0


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` in ``num_proc`` Spark tasks at once, which form a world; returns results by rank.

    In ``fn`` the world exists already: ``rueda.rank()`` and the collectives work, ``rueda.init()`` does nothing. Ranks
    on one host have consecutive numbers. The signature is that of ``horovod.spark.run``:

    - ``num_proc`` is by default ``spark.default.parallelism``, usually the number of all executors' cores;
    - ``start_timeout``: how many seconds to wait for free task slots, 60 by default;
    - ``env``: environment variables for ``fn``; ``nics``: the network interface on which rank 0 listens;
    - ``use_gloo``, ``verbose`` and ``prefix_output_with_timestamp`` have no effect: the ranks' output is in Spark's
      executor logs. ``use_mpi``, ``extra_mpi_args``, ``stdout``, ``stderr`` and ``executable`` are refused.

    An exception of ``fn`` is raised here, with the rank and its traceback as cause, and not retried. If a worker is
    lost, Spark restarts all ranks in a new world, up to ``spark.stage.maxConsecutiveAttempts`` (4) attempts in total.

    Before the job starts, raises :class:`rueda.InvalidArgumentError` for arguments that cannot work, such as a function
    that cannot be pickled, :class:`rueda.UnsupportedError` for refused arguments and with dynamic allocation, and
    :class:`rueda.TimeoutError` if there are too few slots.
    """
    refuse(
        use_mpi=use_mpi,
        extra_mpi_args=extra_mpi_args,
        stdout=stdout,
        stderr=stderr,
        executable=executable,
    )
    return run_formed(plainly, fn, args, kwargs, num_proc, start_timeout, env, nics)


def refuse(**given: Any) -> None:
    """Raises :class:`rueda.UnsupportedError` for arguments of ``horovod.spark.run`` that have no meaning here."""
    for name, value in given.items():
        if value:
            raise UnsupportedError(
                f"{name}= has no meaning here: ranks are Spark tasks, without MPI, and write to Spark's logs"
            )


def run_formed(
    forming: Forming,
    fn: Any,
    args: Any,
    kwargs: Any,
    num_proc: Any,
    start_timeout: Any,
    env: Any,
    nics: Any,
) -> list[Any]:
    """:func:`run`, with ranks that form their world within ``forming``."""
    act = partial(
        _call, function_of("fn", fn), positionals_of("args", args), keywords_of("kwargs", kwargs)
    )
    timeout = seconds_of(
        "start_timeout", _START_TIMEOUT if start_timeout is None else start_timeout
    )
    interface, variables = interface_of("nics", nics), variables_of("env", env)
    session = active_session()
    size = checked_size(session.sparkContext, num_proc)
    stage = Stage(size, timeout, interface, variables, forming)
    return run_stage(session.range(0, size, 1, size), act, stage)


def _call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batches: Iterator[pa.RecordBatch],
    at_end: ExitStack,
) -> Any:
    for _ in batches:  # consumes the partition number, which is not needed
        pass
    return fn(*args, **kwargs)
