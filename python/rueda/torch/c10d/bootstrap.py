"""How the ranks of a process group become a world or a process set of Rueda."""

from __future__ import annotations

import json
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler

from rueda import _native, groups, lifecycle
from rueda.errors import InitializationError, InvalidArgumentError, RuedaError, UnsupportedError
from rueda.exchanges import barrier
from rueda.objects import broadcast_object
from rueda.torch.c10d.meeting import arranged, is_limited, stall_options, wait_for_the_others
from rueda.torch.c10d.operations import Membership
from rueda.torch.c10d.process_group import RuedaProcessGroup
from rueda.torch.c10d.reconfiguring import ReconfigurableGroup
from rueda.torch.c10d.watched_store import WatchedStore
from rueda.variables import set_variables

__all__ = ["register"]

# By any of these Rueda finds the other ranks itself.
LAUNCHER_VARIABLES = ("RUEDA_RENDEZVOUS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Within which a store answers that listens already.
_REACHED = timedelta(seconds=60)


def register() -> None:
    """Makes ``"rueda"`` known to torch.distributed, once."""
    if "RUEDA" in dist.Backend._plugins:
        return
    dist.Backend.register_backend(
        "rueda", cast(Callable[..., Any], _create), extended_api=True, devices=["cpu", "cuda"]
    )
    _refuse_several_backends()
    register_rendezvous_handler("rueda", _rendezvous)  # type: ignore[no-untyped-call]
    # So that init_process_group("rueda") needs no more under mpirun and `rueda run` than under torchrun.
    handlers = getattr(
        sys.modules[register_rendezvous_handler.__module__], "_rendezvous_handlers", {}
    )
    if "env" in handlers:
        handlers["env"] = _environment_or_rueda(handlers["env"])


def _refuse_several_backends() -> None:
    """Has torch.distributed refuse a group with Rueda as one of several backends, such as ``"cpu:gloo,cuda:rueda"``.

    A backend in Python takes the place of all others, and is not told that there were any. So the names are checked
    where torch reads them: the first that it does for a new group, before any rank has met another.
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
    """``env://`` where torch's variables are set, otherwise ``rueda://`` where a launcher of Rueda's is at work."""

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
    global _generation, _met
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
    # Newcomers have made fewer groups than the others, of which rank 0 is one.
    (host, port), _generation = broadcast_object((address, _generation), 0, name="c10d.store")
    if store is None:
        store = _reach_store(host, port, size, timeout)
    barrier(name="c10d.store")  # rank 0 may end it as soon as all have reached it
    _met = weakref.ref(store)
    yield store, rank, size
    raise RuntimeError("rueda:// does not rendezvous again")


def _reach_store(host: str, port: int, size: int, timeout: timedelta) -> TCPStore:
    """Rank 0's, which listens already; where rank 0 is lost by now it is not waited for as long as ``timeout``."""
    try:
        store = TCPStore(host, port, size, False, min(timeout, _REACHED), wait_for_workers=False)
    except (RuntimeError, dist.DistError) as error:
        raise InitializationError(
            f"rank 0's store for torch.distributed cannot be reached: {error}"
        ) from error
    store.set_timeout(timeout)
    return store


def _serve_store(host: str, size: int, timeout: timedelta, one_host: bool) -> TCPStore:
    """Rank 0's store. For ranks of one host it listens on the loopback alone."""
    if not one_host:
        return TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
    with socket.create_server((host, 0), backlog=socket.SOMAXCONN) as listener:
        port = listener.getsockname()[1]
        # The store closes the descriptor that it is given.
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
    """What init_process_group() and new_group() call on the members of a new group."""
    global _limited
    is_world = not options.global_ranks_in_group
    is_met = is_world and _take_met(options.store)
    if getattr(options, "enable_reconfigure", False) or getattr(given, "enable_reconfigure", False):
        # Nobody is met yet, nor is Rueda's world.
        return ReconfigurableGroup(
            options.store, options.group_rank, options.group_size, options.timeout
        )
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    owns_world = False
    if is_world:
        _begin_generation(is_met)
    store = PrefixStore(_prefix, store)
    if is_world:
        ranks = list(range(size))
        owns_world = _enter_world(store, rank, size, options.timeout)
    watched = WatchedStore(store, options.timeout, ranks)
    if not is_met:
        _require_world(watched, is_world, ranks, rank)
    set_id = 0 if is_world else _form_set(watched, rank, ranks)
    if is_world:
        _limited = is_limited(options.timeout)
    membership = Membership(set_id, ranks, owns_world, is_world, not _limited)
    return RuedaProcessGroup(store, rank, size, options.timeout, membership)


# How many default groups this process has made over stores that may outlive them.
_generation = 0
# Under which the present default group and those beside it have their keys.
_prefix = ""
# Whether somebody has given the world a limit that those of groups may not exceed.
_limited = False
# The store that Rueda's ranks have made together last, so that torch's are the same; of one group.
_met: weakref.ref[TCPStore] | None = None


def _take_met(store: Store) -> bool:
    """Whether a default group has this store, of all that torch has been given, from Rueda's ranks."""
    global _met
    met, _met = _met, None
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return met is not None and met() is store


def _begin_generation(is_met: bool) -> None:
    """What an earlier group has left in a store that outlives it must not be met.

    One that the ranks have made together serves one group.
    """
    global _generation, _prefix
    _generation += not is_met
    _prefix = "rueda/met/" if is_met else f"rueda/{_generation}/"


def _enter_world(store: Store, rank: int, size: int, timeout: timedelta) -> bool:
    """Forms Rueda's world out of the ranks of the store; false where there is one already."""
    if lifecycle.is_initialized():
        return False
    with arranged(store, rank, size, stall_options(timeout)) as meeting:
        variables = {
            "RUEDA_RANK": str(rank),
            "RUEDA_SIZE": str(size),
            "RUEDA_RENDEZVOUS": meeting.address,
            "RUEDA_SECRET": meeting.secret,
        }
        if meeting.listener >= 0:
            variables["RUEDA_RENDEZVOUS_LISTENER"] = str(meeting.listener)
        # Processes started later are no ranks of this world.
        with set_variables(variables):
            lifecycle.init((), bootstrap="rendezvous", **meeting.options)
    return True


def _require_world(store: WatchedStore, is_world: bool, ranks: list[int], rank: int) -> None:
    """Raises, on every rank alike, where torch's ranks are not those of Rueda's world."""
    if not lifecycle.is_initialized():
        raise InitializationError(
            "new_group() with the backend rueda needs init_process_group('rueda') before"
        )
    if ranks != sorted(ranks):
        raise UnsupportedError(f"the ranks of a group must be sorted, not {ranks}")
    size = lifecycle.size()
    store.set(f"rank/{rank}", str(lifecycle.rank()))
    for peer, expected in enumerate(ranks):
        found = int(store.get(f"rank/{peer}"))
        if found != expected or (is_world and size != len(ranks)):
            wait_for_the_others(store, rank, len(ranks))
            raise InitializationError(
                f"rank {expected} of torch.distributed is rank {found} of {size} in Rueda's world, which "
                f"exists already: they must agree"
            )


def _form_set(store: WatchedStore, rank: int, ranks: list[int]) -> int:
    """A process set that only its members know, under a number that they agree on through the store."""
    limit = _native.process_set_limit
    store.set(f"sets/{rank}", json.dumps({"taken": groups.taken_slots(), "ranks": ranks}))
    if rank == 0:
        taken: set[int] = set()
        wrong = []
        for peer in range(len(ranks)):
            said = json.loads(store.get(f"sets/{peer}"))
            taken.update(said["taken"])
            if said["ranks"] != ranks:
                wrong.append(f"rank {ranks[peer]} says {said['ranks']}")
        free = next((slot for slot in range(limit) if slot not in taken), None)
        if wrong:
            answer: dict[str, object] = {
                "error": f"the ranks of a group differ: rank {ranks[0]} says {ranks}, {'; '.join(wrong)}"
            }
        elif free is None:
            answer = {"error": f"there are too many groups at once, at most {limit}"}
        else:
            answer = _number_in(free)
        store.set("set", json.dumps(answer))
    said = json.loads(store.get("set"))
    if "error" in said:
        raise InitializationError(said["error"])
    _form_everywhere(store, rank, said["number"], ranks)
    return int(said["number"])


def _form_everywhere(store: WatchedStore, rank: int, number: int, ranks: list[int]) -> None:
    """Forms the set on every rank, or on none: a rank of its own can lack the memory for it."""
    failed: RuedaError | None = None
    try:
        _native.create_group(number, ranks)
    except RuedaError as error:
        failed = error
    store.set(f"formed/{rank}", str(failed or ""))
    if rank == 0:
        said = [(peer, store.get(f"formed/{peer}").decode()) for peer in range(len(ranks))]
        store.set("formed", "; ".join(f"rank {ranks[peer]}: {why}" for peer, why in said if why))
    why = store.get("formed").decode()
    if not why:
        return
    if not failed:
        _native.destroy_group(number)
    raise InitializationError(f"the group of ranks {ranks} could not be formed: {why}") from failed


def _number_in(slot: int) -> dict[str, object]:
    """A number for a set in this slot, or why there is none."""
    try:
        return {"number": groups.number_in(slot)}
    except InvalidArgumentError as error:
        return {"error": f"so many groups have been made that their numbers are used up: {error}"}
