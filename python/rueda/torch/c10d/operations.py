"""The path that every operation of a process group takes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import Work

from rueda import _native, lifecycle
from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError, RuedaError, ShutdownError
from rueda.handles import Handle
from rueda.torch.c10d.arguments import seconds_of
from rueda.torch.c10d.as_backend import AsBackend
from rueda.torch.c10d.coalescing import JointWork
from rueda.torch.c10d.meeting import DEFAULT_STALL_ERROR
from rueda.torch.c10d.names import Names
from rueda.torch.c10d.placement import ON_HOST, Placement
from rueda.torch.c10d.registry import is_registering
from rueda.torch.c10d.work import DoneWork, RuedaWork
from rueda.torch.compiling import never_compiled
from rueda.torch.profiling import marked

__all__ = ["Membership", "Operations", "part_of"]

Begin = Callable[[str], Sequence[_native.Handle]]
Finish = Callable[[Sequence[_native.Handle]], list[torch.Tensor]]
W = TypeVar("W", bound=RuedaWork)

# How many completed works with small results are kept alive.
KEPT = 512
# How long an operation that is late is still waited for if the engine, too, is about to fail it, in seconds: its error
# names the missing ranks, which it first asks where they are, for a second at most.
GRACE = 2.0


def part_of(name: str, number: int) -> str:
    """The name of the ``number``-th tensor of an operation."""
    return name if number == 0 else f"{name}.{number}"


class Membership(NamedTuple):
    """Which of Rueda's ranks form a group. ``ranks``: world ranks, by group rank."""

    set_id: int
    ranks: list[int]
    owns_world: bool  # Rueda's world was formed for it and ends with it
    is_world: bool
    sets_limit: bool = True  # its timeouts replace stall_error for its process set


@never_compiled
class Operations(AsBackend):
    """A group's lifecycle, and how it starts operations. Collectives and messages are in subclasses."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        membership: Membership,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # a form that the stub lacks
        self._store = store
        self._rank, self._size = rank, size
        self._membership = membership
        self._timeout = timeout.total_seconds()
        self._names = Names(f"c10d.{membership.set_id}")
        self._group_name = ""
        self._group_desc = "undefined"
        self._closed = False
        self._works: dict[int, RuedaWork] = {}  # collectives in flight, by their number
        self._begun_works = count()
        # torch's C++ may hold a work and use it later, as DistributedDataParallel does for uneven inputs (join()).
        # Without its Python object it would be a plain Work of the base class, whose methods are not implemented.
        self._settled: deque[RuedaWork] = deque(maxlen=KEPT)
        self._coalesced: list[RuedaWork] | None = (
            None  # works begun in the current coalescing block of torch, if any
        )
        self._world = lifecycle.world_number()
        self._fatal: Exception | None = None  # what made the group unusable
        self._incarnation = 0  # changes each time that the group's members change
        # After how many seconds the engine fails operations, as far as known.
        self._judged = math.inf
        self._apply_timeout()

    # torch's rank and size never change, but a reconfigurable group's do. C++ calls them by the other names.

    def rank(self) -> int:
        """This process's rank within the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self._size

    def getRank(self) -> int:  # noqa: N802
        """The same as :meth:`rank`."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """The same as :meth:`size`."""
        return self._size

    # torch keeps name and description in a group's backends, but a Python group has none.

    def getGroupName(self) -> str:  # noqa: N802
        """The group's name, which is the same on all members."""
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Called by torch.distributed once."""
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """The group's description, given by its creator."""
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Called by torch.distributed once."""
        self._group_desc = description

    # torch's C++ would ask the backend of a device, and a Python group has none there.

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives this rank has begun; equal on ranks at the same place. From 0 in a new world."""
        return self._names.begun

    def _set_sequence_number_for_group(self) -> None:
        """Nothing, as gloo: every member counts from 0."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations that have none of their own."""
        self._timeout = timeout.total_seconds()
        self._apply_timeout()

    def _apply_timeout(self) -> None:
        """Has the engine fail the process set's operations after the group's timeout; its errors name who is missing.

        If the user has chosen ``stall_error``, that limits them, and is left to the world's other operations.
        """
        set_id, _, _, is_world, sets_limit = self._membership
        with suppress(RuedaError):  # the world is gone, or not formed yet
            self._judged = self._timeout
            if not sets_limit:
                limit = float(_native.options()["stall_error"]) or math.inf
                self._judged = limit if is_world else min(self._timeout, limit)
            if sets_limit or not is_world:
                _native.set_timeout(set_id, self._judged)

    def _be_patient(self, seconds: float) -> None:
        """Lets the process set's operations take at least this long from now on.

        The value given on the group's first rank counts.
        """
        if seconds <= self._judged or not self._membership.sets_limit:
            return
        with suppress(RuedaError):  # the world is gone, or not formed yet
            _native.extend_timeout(self._membership.set_id, seconds)
            self._judged = seconds

    def _grace_after(self, seconds: float) -> float:
        """How much longer an operation is waited for that may take so many seconds, see ``GRACE``."""
        self._be_patient(seconds)
        return GRACE if seconds >= self._judged else 0.0

    def shutdown(self) -> None:
        """Ends the group; later operations raise :class:`rueda.ShutdownError`."""
        if self._closed:
            return
        self._closed = True
        self._settled.clear()
        if not lifecycle.is_initialized() or lifecycle.world_number() != self._world:
            return
        if self._membership.owns_world:
            lifecycle.shutdown()
        elif self._membership.is_world:
            if self._membership.sets_limit:  # otherwise it has set none
                _native.set_timeout(self._membership.set_id, DEFAULT_STALL_ERROR)
        else:
            _native.destroy_group(self._membership.set_id)

    def abort(self) -> None:
        """Ends the group. Operations in flight on other ranks fail."""
        self.shutdown()

    # torch before 2.6 begins GPU operations in a coalescing block and waits for them together, mainly in
    # batch_isend_irecv(). The works are only collected: the engine batches operations by itself.

    def _start_coalescing(self, _: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _: torch.device) -> JointWork:
        begun, self._coalesced = self._coalesced or [], None
        return JointWork(begun)

    def _begun(self, work: W, outputs: object) -> W:
        if self._coalesced is not None:
            self._coalesced.append(work)
        if is_registering():
            work.register(outputs)
        return work

    # --- The path of all collectives

    def _collective(
        self,
        what: str,
        signature: Hashable,
        begin: Begin,
        finish: Finish,
        references: object,
        options: Any = None,
        placement: Placement = ON_HOST,
        make: Callable[..., RuedaWork] = RuedaWork,
        outputs: object = (),
    ) -> Work:
        """Begins a collective under its name on all ranks; completes it too if the caller would wait immediately.

        ``references``: all tensors that it touches, see :func:`tensors_in`; ``make``: creates its work; ``outputs``:
        the caller's tensors that it writes, in nested lists.
        """
        seconds, grace, name = self._prepared(signature, options)
        submit = partial(begin, name)
        work_of = partial(
            self._work, what, name, finish, references, seconds, grace, placement, make
        )
        with marked(what):
            if placement is ON_HOST and make is RuedaWork and self._waits_at_once(options):
                return _at_once(submit, [], finish, references, seconds + grace, work_of)
            return self._begun(work_of(submit), outputs)

    def _collective_at_once(
        self,
        what: str,
        signature: Hashable,
        do: Callable[[str, list[_native.Handle], float], _native.Handle],
        finish: Finish,
        references: object,
        options: Any,
    ) -> Work:
        """:meth:`_collective` for a caller that waits immediately, on host tensors that can be used in place.

        ``do`` gets the native functions' arguments for such callers: the name, a list for the handle, and the timeout.
        """
        seconds, grace, name = self._prepared(signature, options)
        begun: list[_native.Handle] = []
        work_of = partial(
            self._work, what, name, finish, references, seconds, grace, ON_HOST, RuedaWork
        )
        with marked(what):
            return _at_once(
                lambda: [do(name, begun, seconds + grace)],
                begun,
                finish,
                references,
                seconds + grace,
                work_of,
            )

    def _prepared(self, signature: Hashable, options: Any) -> tuple[float, float, str]:
        """The timeout, its grace and the name of a collective that is about to begin."""
        self._require_open()
        seconds = seconds_of(options, self._timeout)
        grace = self._grace_after(seconds)
        self._settle_old()
        return seconds, grace, self._names.next(signature)

    def _work(
        self,
        what: str,
        name: str,
        finish: Finish,
        references: object,
        seconds: float,
        grace: float,
        placement: Placement,
        make: Callable[..., RuedaWork],
        submit: Callable[[], Sequence[_native.Handle]],
    ) -> RuedaWork:
        number = next(self._begun_works)
        work = make(
            f"{what} '{name}'",
            submit,
            finish,
            references,
            seconds,
            grace,
            on_longer=self._grace_after,
            on_settled=partial(self._forget, number),
            on_error=self._names.restart,
            on_fatal=self._fatal_listener(),
            placement=placement,
            collective=what,
        )
        self._works[number] = work
        return work

    def _waits_at_once(self, options: Any) -> bool:
        """Whether torch says that the caller waits for the operation before doing anything else."""
        return self._coalesced is None and not getattr(options, "asyncOp", True)

    def _in_flight(self) -> list[RuedaWork]:
        """The collectives in flight, oldest first. Other threads may settle them meanwhile."""
        return list(self._works.copy().values()) if self._works else []

    def _settle_old(self) -> None:
        """Settles the oldest work in flight if it has completed and nobody has asked for it, to release its memory."""
        try:
            oldest = next(iter(self._works.values()), None)
        except RuntimeError:  # another thread has just settled one
            return
        if oldest is not None:
            oldest.settle_if_old()

    def _forget(self, number: int, work: RuedaWork) -> None:
        self._works.pop(number, None)
        if work.is_small():
            self._settled.append(work)

    def _refused(
        self,
        what: str,
        refusal: Refusal,
        options: Any = None,
        group: int = 0,
        parts: int = 1,
        outputs: object = (),
    ) -> Work:
        """Takes part in a collective by failing it on every rank.

        ``group``: the number of tensors of a grouped operation; ``parts``: the number of separate operations;
        ``outputs``: see :meth:`_collective`.
        """
        set_id = self._membership.set_id
        why, unsupported = str(refusal), refusal.unsupported
        return self._collective(
            what,
            ("refused",),
            lambda name: [
                _native.refuse(part_of(name, number), set_id, why, unsupported, group)
                for number in range(max(1, parts))
            ],
            lambda _: [],
            None,
            options,
            outputs=outputs,
        )

    def _fatal_listener(self) -> Callable[[Exception], None]:
        """The ``on_fatal`` of an operation that begins now; see :class:`RuedaWork`."""
        return partial(self._on_fatal, self._incarnation)

    def _on_fatal(self, incarnation: int, error: Exception) -> None:
        """Called when an operation's error has made the group unusable in that incarnation."""
        if incarnation == self._incarnation:
            self._fatal = self._fatal or error

    @property
    def fatal_error(self) -> Exception | None:
        """The error of an operation that has made the group unusable, if any."""
        return self._fatal

    @property
    def is_of_this_world(self) -> bool:
        """Whether the group is still open and belongs to the current world."""
        return not self._closed and lifecycle.world_number() == self._world

    @property
    def owns_world(self) -> bool:
        """Whether Rueda's world ends with the group."""
        return self._membership.owns_world

    def own_world(self, owns: bool) -> None:
        """Sets whether Rueda's world ends with the group."""
        self._membership = self._membership._replace(owns_world=owns)

    @property
    def timeout(self) -> timedelta:
        """The timeout of operations that have none of their own."""
        return timedelta(seconds=self._timeout)

    def _require_open(self) -> None:
        if self._closed:
            raise ShutdownError("the process group has been destroyed")
        if not self.is_of_this_world:
            raise ShutdownError(
                "the process group belongs to a world that has ended; rueda.torch.c10d.renew_process_group() makes "
                "one of the present world"
            )

    def _world_rank(self, group_rank: int) -> int:
        if not 0 <= group_rank < self.size():
            raise InvalidArgumentError(
                f"there is no rank {group_rank} in a group of {self.size()} ranks"
            )
        return self._membership.ranks[group_rank]


def _at_once(
    submit: Callable[[], Sequence[_native.Handle]],
    begun: list[_native.Handle],
    finish: Finish,
    references: object,
    seconds: float,
    work_of: Callable[[Callable[[], Sequence[_native.Handle]]], RuedaWork],
) -> Work:
    """Runs an operation to completion for a caller that would only wait for it. Raises its error.

    If the operation is late, fails or is interrupted, ``work_of`` creates a regular work for it. ``begun``: an empty
    list, in which ``submit`` may store the handles that it has begun, see :class:`rueda.handles.Handle`.
    """
    deadline = time.monotonic() + seconds
    well = False
    try:
        handle = Handle(submit, finish, references, None, begun)
        begun[:] = handle._submitted()
        well = _end_well(begun, deadline)
    finally:
        if not well and begun:
            work = work_of(lambda: begun)
            work.deadline = deadline
    if well:
        return DoneWork(handle.result())
    work.wait()
    return work


def _end_well(natives: Sequence[_native.Handle], deadline: float) -> bool:
    """Whether all operations complete by the deadline without an error."""
    for native in natives:
        if not native.wait(max(0.0, deadline - time.monotonic())):
            return False
    try:
        for native in natives:
            native.check()
    except RuedaError:
        return False
    return True
