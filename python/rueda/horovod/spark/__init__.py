"""``horovod.spark`` on :mod:`rueda.spark`: ``run()``, without estimators and stores, see docs/spark.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.horovod.alias import is_installed
from rueda.horovod.engine_ranks import as_horovod
from rueda.spark.running import refuse, run_formed

__all__ = ["run", "run_elastic"]

_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = {},
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
    """:func:`rueda.spark.run` with Horovod's arguments and defaults.

    ``start_timeout``: how many seconds to wait for task slots, by default ``HOROVOD_SPARK_START_TIMEOUT`` or 600. An
    average after ``join()`` divides by all ranks, and ``import horovod`` in ``fn`` means Rueda if it does so in this
    process. In ``fn`` the world exists already, so ``hvd.init()`` forms none.

    Raises as :func:`rueda.spark.run`.

    Example::

        >>> horovod.spark.run(train, args=(10,), num_proc=4)  # doctest: +SKIP
    """
    refuse(
        use_mpi=use_mpi,
        extra_mpi_args=extra_mpi_args,
        stdout=stdout,
        stderr=stderr,
        executable=executable,
    )
    timeout = _start_timeout() if start_timeout is None else start_timeout
    forming = partial(as_horovod, is_installed())
    return run_formed(forming, fn, args, kwargs, num_proc, timeout, env, nics)


def run_elastic(*_: Any, **__: Any) -> NoReturn:
    """Raises :class:`rueda.UnsupportedError`, which says what to use instead.

    Example::

        >>> horovod.spark.run_elastic(train)  # doctest: +SKIP
    """
    raise UnsupportedError(
        "horovod.spark.run_elastic() is not supported: run() starts again on all ranks if a worker is lost, and "
        "rueda.spark.fit(checkpoint=) continues from the last state, see docs/spark.md"
    )


def _start_timeout() -> float:
    text = os.environ.get(_START_TIMEOUT, "600")
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{_START_TIMEOUT}={text!r} is not a number of seconds"
        ) from None
