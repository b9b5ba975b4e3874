"""Entering and leaving the world, and its ranks."""

from __future__ import annotations

import atexit
import functools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NoReturn

from rueda import _native, attendance, rendezvous
from rueda.arguments import RANK_BITS, fits, shown
from rueda.endings import endings
from rueda.error_texts import describe, in_one_line
from rueda.errors import (
    InitializationError,
    InvalidArgumentError,
    PeerLostError,
    ShutdownError,
)
from rueda.handles import end_world
from rueda.process_sets import (
    ProcessSet,
    add_process_set,
    adopt_process_sets,
    arrival,
    follow_process_sets,
    forget_process_sets,
)
from rueda.whereabouts import describe_origin, start_telling

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "world",
]

# The process that called init(). A child made by fork() inherits the hooks but must not act on them: the world belongs
# to its parent.
_owner: int | None = None
_hooked = False
# The number of worlds this process has been in. Changes with each world, so that agreements from one are not used in
# another.
_worlds = 0
# Number of the world that init() formed; others may have followed it since.
_first = 0
# How many process sets were passed to that init().
_sets_of_init = 0
# Number of the world with which the current block of world() began; 0 outside.
_block = 0
# Functions of other modules to call before the world is left.
_endings: list[Callable[[], None]] = []
# The argument of sys.exit(), if it reports a failure.
_exit_code: object = None
# What init() raises instead of forming a world of this process alone; empty where it may.
_no_lone_world = ""


def init(
    process_sets: Iterable[ProcessSet] = (),
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    **options: object,
) -> None:
    """Forms the world; does nothing if it already exists.

    Under ``mpirun`` the ranks meet through MPI, under ``rueda run`` without MPI through its rendezvous, under MPICH's
    ``mpiexec`` and ``srun --mpi=pmi2`` through PMI. Under plain ``srun`` or ``torchrun``, or wherever ``RANK``,
    ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are set, ranks on one host meet through a Unix socket, ranks on
    several over TCP with ``RUEDA_SECRET`` (``docs/hosts.md``). Without a launcher the world has one rank.
    ``options`` override the environment (``docs/options.md`` lists them).
    ``process_sets`` are added immediately, in this order, which must be the same on every rank. A process started by
    ``rueda run --max-np`` to join a job waits until the others admit it: see :mod:`rueda.elastic`. Its ``process_sets``
    must be the same as the others'; they become the others' sets, and it is not a member of them.

    ``rank``, ``size`` and ``rendezvous`` go together, for processes that something else has started. The processes meet
    at the address that :func:`rueda.rendezvous.open` has returned in the process with rank 0, regardless of the
    environment, or at that of a :class:`rueda.elastic.Reception`, where they wait without a time limit until ``size``
    have come or the others admit them. (``size=1`` needs no address.) :func:`rueda.world` also leaves the world again.

    The world is left at exit. If an exception ends the main thread, the other ranks first receive its text and lines,
    and raise :class:`rueda.PeerLostError` with them.

    Raises :class:`rueda.InitializationError` for options that are invalid or differ between ranks, if a launcher
    announces more ranks that cannot be found, or if ranks do not meet within ``init_timeout``;
    :class:`rueda.InvalidArgumentError` for an invalid rank, size or rendezvous; and as :func:`rueda.add_process_set`,
    after leaving the world that was formed for it.

    Example::

        >>> rueda.init()  # rueda.init(fusion_threshold="16M", log_level="debug"), say
        >>> rueda.is_initialized()
        True
    """
    global _owner, _worlds, _first, _sets_of_init
    process_sets = [
        each if isinstance(each, ProcessSet) else ProcessSet(each) for each in process_sets
    ]
    is_new = not _native.is_initialized()
    count = len(process_sets)
    given = {
        name: os.fsdecode(value) if isinstance(value, bytes) else str(value)
        for name, value in options.items()
    }
    if (rank, size, rendezvous) != (None, None, None):
        if _meet(rank, size, rendezvous, given):
            _adopt(process_sets)
            process_sets = []
    elif is_new and os.environ.get("RUEDA_JOINER") and _worlds == 0:
        _join(process_sets, given)
        process_sets = []
    elif is_new and os.environ.get("RUEDA_JOINER") and "bootstrap" not in given:
        raise InitializationError(
            "this process was started to join the world of a running job, which it has left; it cannot form another "
            "one: its launcher has given it no rank"
        )
    else:
        _native.init(given)
        if is_new and _no_lone_world and _native.size() == 1 and given.get("bootstrap") != "none":
            _native.shutdown()
            raise InvalidArgumentError(_no_lone_world)
    if is_new and _native.size() > 1:
        start_telling()
        if _native.options()["recovery"] == "on":
            endings.ask()  # now: once a rank is lost, its survivors need the processor
    _worlds += is_new
    if is_new:
        _first, _sets_of_init = _worlds, count
    _owner = os.getpid()
    _install_hooks()
    try:
        for process_set in process_sets:
            add_process_set(process_set)
    except PeerLostError:
        raise  # recover() can follow
    except BaseException:
        # The next init() would do nothing in this world, in which others may wait for this rank.
        if is_new:
            shutdown()
        raise


def _meet(rank: object, size: object, address: str | None, options: dict[str, str]) -> bool:
    """Enters the world of ranks that something else has started. Returns whether that world already existed."""
    try:
        own, count = operator.index(rank), operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        own, count = -1, 0
    if not (0 <= own < count and fits(count, RANK_BITS)):
        raise InvalidArgumentError(
            f"init(rank={rank!r}, size={size!r}): both must be given, and ranks are whole numbers from 0 to size-1"
        )
    if _native.is_initialized():
        raise InvalidArgumentError(
            f"init(rank={own}, size={count}): this process is in a world already; leave it with rueda.shutdown() first"
        )
    if address is None and count == 1:
        _native.init({**options, "bootstrap": "none"})
        return False
    if address is None:
        raise InvalidArgumentError(
            f"init(rank={own}, size={count}) needs rendezvous=, the address that rueda.rendezvous.open({count}) has "
            "returned in the process with rank 0"
        )
    meeting = rendezvous.meeting_of(own, count, address)
    if meeting.is_reception:
        from rueda.elastic import joining, reception  # which import this module

        reception.check_in(meeting, own)
        try:
            joining.join({"recovery": "on", **options})
        except BaseException:
            attendance.leave(done=False)
            raise
        return attendance.attendance().is_newcomer
    rendezvous.enter(meeting, own, options)
    return False


@contextmanager
def world(rank: int, size: int, rendezvous: str | None = None, **options: object) -> Iterator[None]:
    """The world of :func:`init` as a context manager, for programs that swallow exceptions.

    The world is left at the end of the block. If an exception ends the block, the other ranks first receive its text
    and raise :class:`rueda.PeerLostError` with it, instead of waiting for a rank whose process lives on. Arguments and
    errors are those of :func:`init`. After :func:`shutdown` in the block, :func:`init` raises
    :class:`rueda.InvalidArgumentError` where it would form a world of this process alone.

    Example::

        >>> rueda.shutdown()
        >>> with rueda.world(0, 1):
        ...     rueda.allreduce([1.0, 2.0], op=rueda.Sum).tolist()
        [1.0, 2.0]
        >>> rueda.is_initialized()
        False
        >>> rueda.init()
    """
    global _block
    init((), rank=rank, size=size, rendezvous=rendezvous, **options)
    _block = _worlds
    if size > 1:
        refuse_to_be_alone(
            f"rank {rank} of {size} has left the world of its rueda.world() block (of an engine, the world of its "
            "function), and init() would form another one of this process alone: end the block or the function first"
        )
    try:
        yield
    except BaseException as error:
        # Neither an echo of another rank's failure nor a clean end is news to the others.
        echo = isinstance(error, PeerLostError | ShutdownError)
        well = isinstance(error, GeneratorExit) or (
            isinstance(error, SystemExit) and error.code in (None, 0)
        )
        if not echo and not well:
            tell_failure(error)
        if not well:
            attendance.leave(done=False)
        raise
    finally:
        _block = 0
        refuse_to_be_alone("")
        shutdown()


def refuse_to_be_alone(reason: str) -> None:
    """Makes :func:`init` raise :class:`rueda.InvalidArgumentError` where it would form a world of this process alone.

    For processes that an engine has placed as ranks of a larger world, which no launcher has told :func:`init` of.
    """
    global _no_lone_world
    _no_lone_world = reason


def abort(reason: str) -> None:
    """Ends the world after a failure: the other ranks immediately raise :class:`rueda.PeerLostError` with ``reason``.

    For programs that swallow exceptions and keep the process alive, so that the others would wait for it;
    :func:`world` does this automatically. Afterwards this process is in no world, and :func:`init` may follow. With
    recovery on, the others can continue without it.

    Raises :class:`rueda.InvalidArgumentError` for a reason that is not a string or is blank, and
    :class:`rueda.NotInitializedError` outside a world.

    Example::

        >>> rueda.abort("the input of day 3 is damaged")
        >>> rueda.is_initialized()
        False
        >>> rueda.init()
    """
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidArgumentError(f"abort({shown(reason)}): pass a text for the other ranks")
    _native.rank()  # raises outside a world
    _native.abort(in_one_line(reason))
    attendance.leave(done=False)
    shutdown()


def tell_failure(error: BaseException) -> None:
    """Makes the other ranks raise :class:`rueda.PeerLostError` with the error's text and lines, if there is a world."""
    if _native.is_initialized():
        _native.abort(_describe_with_origin(type(error), error, error.__traceback__))


def _join(process_sets: list[ProcessSet], options: dict[str, str]) -> None:
    """Enters the world of a running job."""
    from rueda.elastic import joining  # which imports this module

    joining.join(options)
    _adopt(process_sets)


def _adopt(process_sets: list[ProcessSet]) -> None:
    """Makes a newcomer's process sets those of the others."""
    try:
        adopt_process_sets(process_sets, attendance.attendance().sets_of_init)
    except InvalidArgumentError as error:
        tell_failure(error)  # the others continue without this process
        attendance.leave(done=False)
        raise


def shutdown() -> None:
    """Leaves the world: finishes what all ranks have agreed on, fails the rest with :class:`rueda.ShutdownError`.

    Happens automatically at exit. Does nothing outside a world. :func:`init` may follow.

    Example::

        >>> rueda.shutdown()
        >>> rueda.init(fusion_threshold=0)  # a new world with other options
        >>> rueda.options()["fusion_threshold"]
        '0'
    """
    if _native.is_initialized():
        for end in _endings:
            end()
    _native.shutdown()
    attendance.leave(done=True)
    arrival.place = ""
    end_world()
    forget_process_sets()


def before_shutdown(end: Callable[[], None]) -> None:
    """Registers ``end`` to be called whenever the world is about to be left; registering it again has no effect."""
    if end not in _endings:
        _endings.append(end)


def is_initialized() -> bool:
    """Whether this process is in a world.

    Example::

        >>> rueda.is_initialized()
        True
    """
    return _native.is_initialized()


def follow_world(previous_ranks: list[int]) -> None:
    """Called when this process has moved on to another world: drops the state of the old one, except process sets.

    ``previous_ranks``: for each rank, its rank in the previous world, or -1.
    """
    global _worlds
    _worlds += 1
    end_world()
    follow_process_sets(previous_ranks)


def world_number() -> int:
    """The number of worlds that this process has formed so far; a different number means a different world."""
    return _worlds


def first_world_number() -> int:
    """The number of the first of the worlds that have followed one another since :func:`init`.

    Process set numbers have the same meaning in all of these.
    """
    return _first


def sets_of_init() -> int:
    """How many process sets were passed to :func:`init`; newcomers must pass as many."""
    return _sets_of_init


def block_number() -> int:
    """A different number for each block of :func:`world`; 0 outside. Numbers given in one block are void in the next.

    Processes that serve one job after another, as in Spark and Dask, have not all served the same jobs.
    """
    return _block


def rank() -> int:
    """Rank of this process in the world, from 0. Raises :class:`rueda.NotInitializedError` before :func:`init`.

    Example::

        >>> rueda.rank()
        0
    """
    return _native.rank()


def size() -> int:
    """Number of processes in the world. Raises :class:`rueda.NotInitializedError` before :func:`init`.

    Example::

        >>> rueda.size()
        1
    """
    return _native.size()


def local_rank() -> int:
    """Rank of this process among the processes on its host. Raises :class:`rueda.NotInitializedError`.

    Example::

        >>> rueda.local_rank()
        0
    """
    return _native.local_rank()


def local_size() -> int:
    """Number of processes on this host. Raises :class:`rueda.NotInitializedError`.

    Example::

        >>> rueda.local_size()
        1
    """
    return _native.local_size()


def cross_rank() -> int:
    """Index of this host among the hosts that have a process with this local rank. Raises as :func:`rank`.

    Example::

        >>> rueda.cross_rank()
        0
    """
    return _native.cross_rank()


def cross_size() -> int:
    """Number of hosts that have a process with this local rank. Raises as :func:`rank`.

    Example::

        >>> rueda.cross_size()
        1
    """
    return _native.cross_size()


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes. Raises as :func:`rank`.

    Example::

        >>> rueda.is_homogeneous()
        True
    """
    return _native.is_homogeneous()


def _install_hooks() -> None:
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(_leave_at_exit)
    previous = sys.excepthook

    def tell_the_others(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        # Print our own traceback first, so that someone looking for the first failure finds the cause, not its echoes.
        try:
            previous(kind, value, traceback)
            sys.stderr.flush()
        finally:
            # An echo of another rank's failure is no news to the others.
            echo = issubclass(kind, PeerLostError | ShutdownError)
            in_main = threading.current_thread() is threading.main_thread()
            if _is_owner() and in_main:
                if not echo:
                    _native.abort(_describe_with_origin(kind, value, traceback))
                attendance.leave(done=False)

    sys.excepthook = tell_the_others
    _watch_exit()


def _watch_exit() -> None:
    """Wraps ``sys.exit`` to note the exit code: Python calls no hook for SystemExit, nor has atexit the code."""
    original = sys.exit

    @functools.wraps(original)
    def exit_and_tell(status: object = None, /) -> NoReturn:
        global _exit_code
        if threading.current_thread() is threading.main_thread():
            _exit_code = status
        original(status)  # type: ignore[arg-type]

    sys.exit = exit_and_tell


def _describe_with_origin(
    kind: type[BaseException], value: BaseException, traceback: TracebackType | None
) -> str:
    text = describe(kind, value)
    with suppress(Exception):  # without the line, the text must still be sent
        if origin := describe_origin(traceback):
            text += f", raised {in_one_line(origin)}"
    return text


def _is_owner() -> bool:
    return _owner == os.getpid() and _native.is_initialized()


def _leave_at_exit() -> None:
    if not _is_owner():
        return
    if _exit_code:  # neither None nor 0
        _native.abort(in_one_line(f"sys.exit({_exit_code!r})"))
        attendance.leave(done=False)
    shutdown()
