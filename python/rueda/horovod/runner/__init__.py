"""``horovod.run``: calls a function on ranks started by ``rueda run``."""

from __future__ import annotations

import importlib.util
import os
import shlex
import site
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rueda.engines.given import (
    count_of,
    function_of,
    keywords_of,
    place_of,
    positionals_of,
    seconds_of,
)
from rueda.engines.pickling import pickled
from rueda.engines.ranks import failed_by_itself
from rueda.error_texts import describe
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.failures import Failure
from rueda.horovod.alias import is_installed
from rueda.horovod.runner.desk import DESK, Desk

__all__ = ["run"]

# The phrase that Horovod's users search for when ranks have failed.
_PHRASE = "Horovod detected that one or more processes exited with non-zero status"
_STDLIB_ARCHIVE = f"/python{sys.version_info[0]}{sys.version_info[1]}.zip"
_ELASTIC = "horovod.run() starts as many ranks as it is asked for: start an elastic script by `rueda run --min-np`"


def run(
    func: Any,
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[float] | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Iterable[str] | None = None,
    executable: str | os.PathLike[str] | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` on ``num_proc`` ranks, all new processes, and returns the results by rank.

    ``func`` must call ``hvd.init()`` itself. cloudpickle carries it to the ranks and the results back. The ranks get
    this process's ``sys.path``, whose files other hosts need, too. The arguments are those of ``horovod.run``,
    with the meaning that :doc:`rueda run` gives them:

    - ``hosts``: such as ``"host1:2,host2:4"``, by default this host; ``hostfile``: a file of such lines. Other hosts
      are reached by ssh, with ``ssh_port`` and ``ssh_identity_file``, and fetch the function from this process.
    - ``use_gloo`` starts the ranks directly, ``use_mpi`` by mpirun, with ``mpi_args``; the launcher chooses by default.
      ``mpi_args`` requires mpirun; ``ssh_port`` and ``ssh_identity_file`` exclude it.
    - ``start_timeout``: seconds for which ranks wait for each other. ``network_interfaces``: the interfaces on which
      the ranks and this process listen. ``executable``: the ranks' Python. ``output_filename``, ``verbose``: the
      launcher's.
    - ``disable_cache`` has no effect, since nothing is cached.
    - ``min_num_proc``, ``max_num_proc``, ``slots``, ``reset_limit``, ``cooldown_range`` and ``host_discovery_script``
      raise :class:`rueda.UnsupportedError`. ``np`` and ``network_interface`` are old names that warn.

    The ranks end with this process, and before an exception such as ``KeyboardInterrupt`` leaves this function.

    Raises ``RuntimeError`` if ranks have failed; its ``__cause__`` is the error of one that failed on its own. Raises
    :class:`rueda.InvalidArgumentError`, a ``ValueError``, for invalid arguments, before it starts anything, and
    ``ImportError`` without cloudpickle.

    Example::

        >>> import rueda.horovod
        >>> def total(x):
        ...     import rueda.horovod.torch as hvd
        ...     hvd.init()
        ...     return x * hvd.size()
        >>> rueda.horovod.run(total, (21,), num_proc=2)  # doctest: +SKIP
        [42, 42]
    """
    for old, value in (("np", np), ("network_interface", network_interface)):
        if value is not None:
            new = {"np": "num_proc", "network_interface": "network_interfaces"}[old]
            warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, 2)
    refused: dict[str, Any] = {
        "min_num_proc": min_num_proc,
        "min_np": min_np,
        "max_num_proc": max_num_proc,
        "max_np": max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    for name, value in refused.items():
        if value is not None:
            raise UnsupportedError(f"{name}={value!r}: {_ELASTIC}")
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("hosts and hostfile are given: pass one of them")
    if use_gloo and use_mpi:
        raise InvalidArgumentError("use_gloo and use_mpi are given: pass one of them")
    _check_ways(use_gloo, use_mpi, mpi_args, ssh_port, ssh_identity_file)
    if network_interface is not None:
        network_interfaces = _text_of("network_interface", network_interface).split(",")
    size = count_of("num_proc", num_proc if np is None else np, "ranks")
    given = function_of("func", func), positionals_of("args", args), keywords_of("kwargs", kwargs)
    interfaces = _names_of(network_interfaces)
    where = ["-H", f"localhost:{size}" if hosts is None else _text_of("hosts", hosts)]
    if hostfile is not None:
        where = ["--hostfile", place_of("hostfile", hostfile)]
    line = ["-np", str(size), *where]
    if start_timeout is not None:
        line += ["--start-timeout", f"{seconds_of('start_timeout', start_timeout):g}"]
    if ssh := _ssh(ssh_port, ssh_identity_file):
        line += ["--ssh", ssh]
    if output_filename is not None:
        line += ["--output-filename", place_of("output_filename", output_filename)]
    if mpi_args is not None:
        line += ["--mpi-args", _text_of("mpi_args", mpi_args)]
    if interfaces:
        line += ["--network-interfaces", ",".join(interfaces)]
    switches = {
        "--gloo": use_gloo,
        "--mpi": use_mpi,
        "--verbose": verbose,
        "--horovod": is_installed(),
    }
    line += [flag for flag, is_on in switches.items() if is_on]
    python = place_of("executable", executable or sys.executable)
    line += [python, "-m", "rueda.horovod.runner.call"]
    content = _pickled(given)
    with Desk(_address_for(hosts, hostfile, interfaces), content) as desk:
        code, last_line = _launch(line, desk.told)
        outcomes = desk.outcomes()
    return _results(outcomes, size, code, last_line)


def _check_ways(gloo: Any, mpi: Any, mpi_args: Any, ssh_port: Any, identity: Any) -> None:
    """Raises ``InvalidArgumentError`` for arguments that the chosen way to start ranks would ignore."""
    if gloo and mpi_args is not None:
        raise InvalidArgumentError(
            "mpi_args and use_gloo are given: mpi_args are for mpirun, which use_gloo does not use"
        )
    for name, value in (("ssh_port", ssh_port), ("ssh_identity_file", identity)):
        if value is not None and (mpi or mpi_args is not None):
            raise InvalidArgumentError(
                f"{name}={value!r}: mpirun reaches hosts in its own way; pass use_gloo=True without mpi_args, or tell "
                "mpirun by mpi_args=\"--prtemca plm_ssh_args '-p PORT -i FILE'\" (Open MPI 5; "
                "'--mca plm_rsh_args' before it)"
            )


def _text_of(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}={value!r}: pass a text")
    return value


def _names_of(interfaces: Any) -> list[str]:
    given = [] if interfaces is None else interfaces
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"network_interfaces={interfaces!r}: pass the names of network interfaces"
        )
    return sorted(names) if isinstance(names, set | frozenset) else list(names)


def _ssh(port: Any, identity: Any) -> str:
    words = ["ssh"]
    if port is not None:
        words += ["-p", str(count_of("ssh_port", port, "a port"))]
    if identity is not None:
        words += ["-i", place_of("ssh_identity_file", identity)]
    return shlex.join(words) if len(words) > 1 else ""


def _pickled(given: tuple[Any, ...]) -> bytes:
    if importlib.util.find_spec("cloudpickle") is None:
        raise ImportError(
            "horovod.run() sends functions by cloudpickle: pip install cloudpickle",
            name="cloudpickle",
        )
    import cloudpickle

    return pickled(cloudpickle.dumps, "what horovod.run() is to call", given)


def _address_for(hosts: str | None, hostfile: Any, interfaces: Sequence[str]) -> str:
    """Returns this process's address for all ranks; raises ``InvalidArgumentError`` for an invalid host list."""
    from rueda import door
    from rueda.launcher.errors import LaunchError
    from rueda.launcher.hosts import parse_hostfile, parse_hosts
    from rueda.launcher.remote.address import resolve, towards

    try:
        found = parse_hostfile(Path(hostfile)) if hostfile is not None else parse_hosts(hosts or "")
    except LaunchError as error:
        if hosts is None and hostfile is None:
            return "127.0.0.1"
        raise InvalidArgumentError(f"{error}") from None
    far = [host.name for host in found if not host.is_local]
    if not far:
        return "127.0.0.1"
    if not interfaces:
        ways = [towards(address) for address in map(resolve, far) if address]
        if own := next(filter(None, ways), None):
            return own
    listener, address = door.listen(interfaces[0] if interfaces else "")
    listener.close()
    return address.removeprefix("tcp:").rpartition(":")[0].strip("[]")


def _search_path() -> str:
    """Returns the ``sys.path`` entries that the ranks' own Python does not add by itself."""
    schemes = ("stdlib", "platstdlib", "purelib", "platlib")
    own = {sysconfig.get_path(each) for each in schemes}
    own |= {f"{folder}/lib-dynload" for folder in own}
    own |= {*site.getsitepackages([sys.prefix, sys.base_prefix]), site.getusersitepackages()}
    own |= {path for path in sys.path if isinstance(path, str) and path.endswith(_STDLIB_ARCHIVE)}
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own -= {os.path.abspath(path) for path in named}
    # Python skips entries that are not strings.
    paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
    return os.pathsep.join(path for path in paths if path not in own)


def _launch(arguments: Sequence[str], told: str) -> tuple[int, str]:
    """Runs the launcher to completion; returns its exit code and its last line on stderr."""
    from rueda.launcher import companion

    # In the environment: every user can read a command line.
    variables = {**os.environ, DESK: told, "PYTHONPATH": _search_path()}
    last = ""
    launcher: subprocess.Popen[Any] = companion.start(
        arguments, env=variables, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    with launcher:
        try:
            for written in launcher.stderr or ():
                sys.stderr.write(written)
                last = written.strip() or last
            code = launcher.wait()
        except BaseException:
            launcher.terminate()  # it ends its ranks first
            launcher.communicate()  # drain its output until it ends
            raise
    return code, last


def _results(outcomes: Mapping[int, Any], size: int, code: int, last_line: str) -> list[Any]:
    failures = {rank: told for rank, told in outcomes.items() if isinstance(told, Failure)}
    if failures:
        own = failed_by_itself({rank: failure.error for rank, failure in failures.items()})
        cause = next(iter(failures.values())) if own is None else failures[own]
        error = cause.here()
        raise RuntimeError(
            f"{_PHRASE}: rank {cause.rank}: {describe(type(error), error)}"
        ) from error
    if code:
        raise RuntimeError(f"{_PHRASE}: exit code {code}: {last_line}")
    missing = [rank for rank in range(size) if rank not in outcomes]
    if missing:
        raise RuntimeError(f"{_PHRASE}: no result came from ranks {missing}")
    return [outcomes[rank] for rank in range(size)]
