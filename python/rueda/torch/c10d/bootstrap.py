"""Turns the ranks of a torch process group into a Rueda world or process set."""

from __future__ import annotations

import json
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler

from rueda import _native, groups, lifecycle
from rueda.errors import InitializationError, InvalidArgumentError, RuedaError, UnsupportedError
from rueda.exchanges import barrier
from rueda.objects import broadcast_object
from rueda.torch.c10d.functional import implement_operators
from rueda.torch.c10d.generation import begin_generation
from rueda.torch.c10d.meeting import arranged, is_limited, stall_options, wait_for_the_others
from rueda.torch.c10d.operations import Membership
from rueda.torch.c10d.process_group import RuedaProcessGroup
from rueda.torch.c10d.reconfiguring import ReconfigurableGroup
from rueda.torch.c10d.watched_store import WatchedStore
from rueda.torch.c10d.work import FATAL
from rueda.variables import set_variables

__all__ = ["register"]

# With any of these, Rueda finds the other ranks by itself.
LAUNCHER_VARIABLES = ("RUEDA_RENDEZVOUS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Timeout for connecting to a store that is already listening.
_REACHED = timedelta(seconds=60)
# Limits of the time in which ranks that have met at the store form a world; seconds.
_LEAST_INIT, _MOST_INIT = 10.0, 120.0


def register() -> None:
    """Registers ``"rueda"`` with torch.distributed; further calls have no effect."""
    if "RUEDA" in dist.Backend._plugins:
        return
    # Parts of torch move a group's data to the first of these that is not the CPU.
    devices = ["cpu"] if torch.version.cuda is None else ["cpu", "cuda"]
    dist.Backend.register_backend(
        "rueda", cast(Callable[..., Any], _create), extended_api=True, devices=devices
    )
    _refuse_several_backends()
    implement_operators()
    register_rendezvous_handler("rueda", _rendezvous)  # type: ignore[no-untyped-call]
    # So that init_process_group("rueda") needs no extra arguments under mpirun and `rueda run`, as under torchrun.
    handlers = getattr(
        sys.modules[register_rendezvous_handler.__module__], "_rendezvous_handlers", {}
    )
    if "env" in handlers:
        handlers["env"] = _environment_or_rueda(handlers["env"])


def _refuse_several_backends() -> None:
    """Makes torch.distributed refuse a group with Rueda as one of several backends, such as ``"cpu:gloo,cuda:rueda"``.

    A Python backend replaces all others without being told about them. So the names are checked when torch parses
    them, the first step of creating a group, before any ranks communicate.
    """
    read: Callable[[type[dist.Backend], str], dist.Backend] = dist.Backend.__new__

    def read_one(kind: type[dist.Backend], name: str) -> dist.Backend:
        if isinstance(name, str):
            backends = {pair.rpartition(":")[2] for pair in name.lower().split(",")}
            if "rueda" in backends and len(backends) > 1:
                raise UnsupportedError(
                    f"{name!r}: rueda cannot be one of several backends of a group. It serves tensors of the CPU and "
                    f"of GPUs alike, so that init_process_group('rueda') is enough"
                )
        return read(kind, name)

    dist.Backend.__new__ = read_one  # type: ignore[assignment, method-assign]


def _environment_or_rueda(
    original: Callable[..., Iterator[tuple[Store, int, int]]],
) -> Callable[..., Iterator[tuple[Store, int, int]]]:
    """``env://`` if torch's variables are set; else ``rueda://`` under a launcher or in a world; else ``env://``."""

    def handler(
        url: str, timeout: timedelta = timedelta(minutes=30), **others: object
    ) -> Iterator[tuple[Store, int, int]]:
        told = any(variable in os.environ for variable in TORCH_VARIABLES) or "?" in url
        launched = any(variable in os.environ for variable in LAUNCHER_VARIABLES)
        if not told and (launched or lifecycle.is_initialized()):
            return _rendezvous(url, timeout, **others)
        return original(url, timeout=timeout, **others)

    return handler


def _rendezvous(
    url: str, timeout: timedelta = timedelta(minutes=30), **_: object
) -> Iterator[tuple[Store, int, int]]:
    """``rueda://``: the ranks meet as in :func:`rueda.init`, and rank 0 serves a store for torch.distributed."""
    global _met
    if not lifecycle.is_initialized():
        lifecycle.init((), **stall_options(timeout))
    rank, size = lifecycle.rank(), lifecycle.size()
    one_host = lifecycle.local_size() == size
    store = None
    address = None
    if rank == 0:
        host = "127.0.0.1" if one_host else socket.gethostname()
        store = _serve_store(host, size, timeout, one_host)
        address = (host, store.port)
    host, port = broadcast_object(address, 0, name="c10d.store")
    if store is None:
        store = _reach_store(host, port, size, timeout)
    barrier(name="c10d.store")  # once all ranks are connected, rank 0 may end the store
    _met = weakref.ref(store)
    yield store, rank, size
    raise RuntimeError("rueda:// does not rendezvous again")


def _reach_store(host: str, port: int, size: int, timeout: timedelta) -> TCPStore:
    """Connects to rank 0's store, which already listens, within 60 s: rank 0 may have been lost meanwhile."""
    try:
        store = TCPStore(host, port, size, False, min(timeout, _REACHED), wait_for_workers=False)
    except (RuntimeError, dist.DistError) as error:
        raise InitializationError(
            f"rank 0's store for torch.distributed cannot be reached: {error}"
        ) from error
    store.set_timeout(timeout)
    return store


def _serve_store(host: str, size: int, timeout: timedelta, one_host: bool) -> TCPStore:
    """Rank 0's store. If all ranks are on one host, it listens only on the loopback."""
    if not one_host:
        return TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
    with socket.create_server((host, 0), backlog=socket.SOMAXCONN) as listener:
        port = listener.getsockname()[1]
        # The store takes ownership of the descriptor and closes it.
        return TCPStore(
            host,
            port,
            size,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def _create(options: Any, given: object) -> RuedaProcessGroup:
    """Called by init_process_group() and new_group() on each member of a new group."""
    global _limited, _prefix
    is_world = not options.global_ranks_in_group
    is_met = is_world and _take_met(options.store)
    if getattr(options, "enable_reconfigure", False) or getattr(given, "enable_reconfigure", False):
        # Neither a rendezvous nor Rueda's world is needed yet.
        return ReconfigurableGroup(
            options.store, options.group_rank, options.group_size, options.timeout
        )
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    owns_world = False
    if is_world:
        # A store from `rueda://` serves only one default group.
        _prefix = "rueda/met/" if is_met else begin_generation(store, rank, size, options.timeout)
    store = PrefixStore(_prefix, store)
    if is_world:
        ranks = list(range(size))
        owns_world = _enter_world(store, rank, size, options.timeout)
    if is_world or size > 1:
        watched = WatchedStore(store, options.timeout, ranks)
        if not is_met:
            _require_world(watched, is_world, ranks, rank)
        set_id = 0 if is_world else _form_set(watched, rank, ranks)
    else:
        set_id = _form_alone(ranks[0])
    if not is_world:
        # torch gives groups of other ranks a store with the same prefix if these make them at the same time.
        store = PrefixStore(f"{ranks[0]}/", store)
    if is_world and _limited.world != lifecycle.first_world_number():
        _limited = _Limited(lifecycle.first_world_number(), is_limited(options.timeout))
    membership = Membership(set_id, ranks, owns_world, is_world, not _limited.by_user)
    return RuedaProcessGroup(store, rank, size, options.timeout, membership)


# Prefix of the store keys of the current default group and its subgroups.
_prefix = ""


class _Limited(NamedTuple):
    """Whether the user has chosen the world's ``stall_error``, which the groups' timeouts then do not change.

    ``world``: the first of the worlds that have followed one another. Later default groups in it may have other
    timeouts than the first one, from which this is found out.
    """

    world: int
    by_user: bool


_limited = _Limited(-1, False)
# The last store from `rueda://`, over which torch's ranks are the same as Rueda's; for one default group.
_met: weakref.ref[TCPStore] | None = None


def _take_met(store: Store) -> bool:
    """Whether the store of a default group is the one that `rueda://` created last; forgets that one."""
    global _met
    met, _met = _met, None
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return met is not None and met() is store


def _enter_world(store: Store, rank: int, size: int, timeout: timedelta) -> bool:
    """Forms Rueda's world from the ranks of the store; returns false if there is a world already."""
    if lifecycle.is_initialized():
        return False
    with arranged(store, rank, size, stall_options(timeout), timeout) as meeting:
        variables = {
            "RUEDA_RANK": str(rank),
            "RUEDA_SIZE": str(size),
            "RUEDA_RENDEZVOUS": meeting.address,
            "RUEDA_SECRET": meeting.secret,
        }
        if meeting.listener >= 0:
            variables["RUEDA_RENDEZVOUS_LISTENER"] = str(meeting.listener)
        # Unset afterwards: processes started later are not ranks of this world.
        with set_variables(variables):
            lifecycle.init((), bootstrap="rendezvous", **_init_limit(timeout), **meeting.options)
    return True


def _init_limit(timeout: timedelta) -> dict[str, Any]:
    """How long to wait for ranks that are known to have come: the group's timeout within limits, or the variable's."""
    if "RUEDA_INIT_TIMEOUT" in os.environ:
        return {}
    return {"init_timeout": min(max(timeout.total_seconds(), _LEAST_INIT), _MOST_INIT)}


def _require_world(store: WatchedStore, is_world: bool, ranks: list[int], rank: int) -> None:
    """Raises, on all ranks alike, if torch's rank numbers differ from those of Rueda's world."""
    _require_initialized()
    if ranks != sorted(ranks):
        raise UnsupportedError(
            f"the ranks of a group must be sorted, not {ranks}: use sort_ranks=True"
        )
    size = lifecycle.size()
    store.set(f"rank/{ranks[rank]}", str(lifecycle.rank()))
    for expected, told in zip(ranks, store.gather("rank"), strict=True):
        found = int(told)
        if found != expected or (is_world and size != len(ranks)):
            wait_for_the_others(store, rank, len(ranks))
            raise _numbered_otherwise(expected, found)


def _require_initialized() -> None:
    if not lifecycle.is_initialized():
        raise InitializationError(
            "new_group() with the backend rueda needs init_process_group('rueda') before"
        )


def _numbered_otherwise(rank: int, found: int) -> InitializationError:
    return InitializationError(
        f"rank {rank} of torch.distributed is rank {found} of {lifecycle.size()} in Rueda's world, which exists "
        f"already: they must agree"
    )


def _form_alone(rank: int) -> int:
    """Forms a process set of this rank alone; returns its number.

    Without the store: if each rank makes a group of its own, as some programs do, torch gives all of them one prefix.
    """
    _require_initialized()
    if rank != lifecycle.rank():
        raise _numbered_otherwise(rank, lifecycle.rank())
    answer = _number_beside(set(groups.taken_slots()))
    if "error" in answer:
        raise InitializationError(answer["error"])
    number = int(answer["number"])
    try:
        _native.create_group(number, [rank])
    except FATAL:
        raise
    except RuedaError as error:
        raise _not_formed([rank], f"rank {rank}: {error}") from error
    return number


def _form_set(store: WatchedStore, rank: int, ranks: list[int]) -> int:
    """Forms a process set known only to its members; returns its number, agreed on through the store."""
    # Keys contain ranks of the world: ranks that make other groups at the same time may use the same store.
    first = ranks[0]
    store.set(f"sets/{ranks[rank]}", json.dumps({"taken": groups.taken_slots(), "ranks": ranks}))
    if rank == 0:
        taken: set[int] = set()
        wrong = []
        for peer, told in enumerate(store.gather("sets")):
            said = json.loads(told)
            taken.update(said["taken"])
            if said["ranks"] != ranks:
                wrong.append(f"rank {ranks[peer]} says {said['ranks']}")
        if wrong:
            answer: dict[str, Any] = {
                "error": f"the ranks of a group differ: rank {first} says {ranks}, {'; '.join(wrong)}"
            }
        else:
            answer = _number_beside(taken)
        store.set(f"set/{first}", json.dumps(answer))
    said = json.loads(store.answer(f"set/{first}", "sets"))
    if "error" in said:
        raise InitializationError(said["error"])
    _form_everywhere(store, rank, said["number"], ranks)
    return int(said["number"])


def _form_everywhere(store: WatchedStore, rank: int, number: int, ranks: list[int]) -> None:
    """Forms the set on all ranks or on none: a single rank can run out of memory for it."""
    failed: RuedaError | None = None
    try:
        _native.create_group(number, ranks)
    except RuedaError as error:
        failed = error
    store.set(f"formed/{ranks[rank]}", str(failed or ""))
    all_formed = f"all formed/{ranks[0]}"
    if rank == 0:
        said = zip(ranks, store.gather("formed"), strict=True)
        store.set(
            all_formed, "; ".join(f"rank {peer}: {why.decode()}" for peer, why in said if why)
        )
    why = store.answer(all_formed, "formed").decode()
    if not why:
        return
    if not failed:
        _native.destroy_group(number)
    raise _not_formed(ranks, why) from failed


def _not_formed(ranks: list[int], why: str) -> InitializationError:
    return InitializationError(f"the group of ranks {ranks} could not be formed: {why}")


def _number_beside(taken: set[int]) -> dict[str, Any]:
    """A number for a set in a slot that its members have not ``taken``, or the error if none is left."""
    limit = _native.process_set_limit
    free = next((slot for slot in range(limit) if slot not in taken), None)
    if free is None:
        return {"error": f"there are too many groups at once, at most {limit}"}
    try:
        return {"number": groups.number_in(free)}
    except InvalidArgumentError as error:
        return {"error": f"so many groups have been made that their numbers are used up: {error}"}
