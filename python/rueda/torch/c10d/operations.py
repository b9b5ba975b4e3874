"""What every operation of a process group goes through."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import Work

from rueda import _native, lifecycle
from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError, RuedaError, ShutdownError
from rueda.handles import Handle
from rueda.torch.c10d.arguments import seconds_of
from rueda.torch.c10d.coalescing import JointWork
from rueda.torch.c10d.names import Names
from rueda.torch.c10d.placement import ON_HOST, Placement
from rueda.torch.c10d.work import DoneWork, RuedaWork
from rueda.torch.compiling import never_compiled

__all__ = ["Membership", "Operations", "part_of"]

Begin = Callable[[str], Sequence[_native.Handle]]
Finish = Callable[[Sequence[_native.Handle]], list[torch.Tensor]]
W = TypeVar("W", bound=RuedaWork)

# So many works with small results live on after they are done.
KEPT = 512


def part_of(name: str, number: int) -> str:
    """The name of one of several tensors of an operation."""
    return name if number == 0 else f"{name}.{number}"


class Membership(NamedTuple):
    """Which of Rueda's ranks form a group. ``ranks``: of the world, by rank of the group."""

    set_id: int
    ranks: list[int]
    owns_world: bool  # Rueda's world was formed for it and ends with it
    is_world: bool
    sets_limit: bool = True  # its time limits raise the stall_error of its process set


@never_compiled
class Operations(dist.ProcessGroup):
    """The life of a group and how its operations are begun. Collectives and messages are in subclasses."""

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
        self._works: dict[str, RuedaWork] = {}  # collectives on their way, by name
        # torch's C++ may hold one for which it asks later, as DistributedDataParallel does with that of a context for
        # uneven inputs: without its object in Python it would be one of the base class, which can nothing.
        self._settled: deque[RuedaWork] = deque(maxlen=KEPT)
        self._coalesced: list[RuedaWork] | None = (
            None  # begun in a block of torch's, in which we are
        )
        self._world = lifecycle.world_number()
        self._fatal: Exception | None = None  # why it is of no use any more
        self._incarnation = 0  # another number each time that the group gets other members
        self._patience = 0.0  # seconds that were asked for
        self._be_patient(self._timeout)

    # torch's own never change, but those of a group whose members do; in Python and, by their other names, in C++.

    def rank(self) -> int:
        """This process's rank within the group."""
        return self._rank

    def size(self) -> int:
        """How many ranks the group has."""
        return self._size

    def getRank(self) -> int:  # noqa: N802
        """The same as :meth:`rank`."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """The same as :meth:`size`."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802 - by this name torch calls it
        """The name under which the backend is registered."""
        return "rueda"

    # torch asks a group for the backend of a device, and for the devices that have one.

    supports_reconfigure = False
    supports_splitting = False
    supports_coalescing = False

    def _get_backend(self, _: torch.device) -> Operations:  # type: ignore[override]  # it is one, in all that is asked of it
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    # torch keeps these two in a group's backends, and a group in Python has none.

    def getGroupName(self) -> str:  # noqa: N802
        """The group's name, which is the same on all members."""
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Called by torch.distributed once."""
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the group is for, in the words of who made it."""
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Called by torch.distributed once."""
        self._group_desc = description

    def set_timeout(self, timeout: timedelta) -> None:
        """How long later operations may take, where they do not say so themselves."""
        self._timeout = timeout.total_seconds()
        self._be_patient(self._timeout)

    def _be_patient(self, seconds: float) -> None:
        """The process set's operations may take so long, from now on: where the world's limit is shorter, it is raised.

        For that counts what the group's first rank asks for.
        """
        if seconds <= self._patience or not self._membership.sets_limit:
            return
        with suppress(RuedaError):  # the world has gone, or is not there yet
            _native.extend_patience(self._membership.set_id, seconds)
            self._patience = seconds

    def shutdown(self) -> None:
        """Ends the group; what is used of it afterwards raises :class:`rueda.ShutdownError`."""
        if self._closed:
            return
        self._closed = True
        self._settled.clear()
        if not lifecycle.is_initialized() or lifecycle.world_number() != self._world:
            return
        if self._membership.owns_world:
            lifecycle.shutdown()
        elif not self._membership.is_world:
            _native.destroy_group(self._membership.set_id)

    def abort(self) -> None:
        """Ends the group. Operations that are under way on other ranks fail."""
        self.shutdown()

    # Operations on GPUs that torch before 2.6 begins in a block and then waits for together, batch_isend_irecv() above
    # all. Nothing is gained by it: they are gathered by the engine in any case.

    def _start_coalescing(self, _: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _: torch.device) -> JointWork:
        begun, self._coalesced = self._coalesced or [], None
        return JointWork(begun)

    def _begun(self, work: W) -> W:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # --- What all collectives go through

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
    ) -> Work:
        """Begins a collective under the name that it has on every rank; ends it where its caller would wait at once.

        ``references``: all tensors that it touches, see :func:`tensors_in`; ``make``: what makes its work.
        """
        seconds, name = self._prepared(signature, options)
        submit = partial(begin, name)
        work_of = partial(self._work, what, name, finish, references, seconds, placement, make)
        if placement is ON_HOST and make is RuedaWork and self._waits_at_once(options):
            return _at_once(submit, [], finish, references, seconds, work_of)
        return self._begun(work_of(submit))

    def _collective_at_once(
        self,
        what: str,
        signature: Hashable,
        do: Callable[[str, list[_native.Handle], float], _native.Handle],
        finish: Finish,
        references: object,
        options: Any,
    ) -> Work:
        """:meth:`_collective` for a caller that waits at once, on tensors of the host that can be used as they lie.

        ``do`` gets what the native functions want of such callers: the name, a list for the handle, and the time limit.
        """
        seconds, name = self._prepared(signature, options)
        begun: list[_native.Handle] = []
        work_of = partial(self._work, what, name, finish, references, seconds, ON_HOST, RuedaWork)
        return _at_once(
            lambda: [do(name, begun, seconds)],
            begun,
            finish,
            references,
            seconds,
            work_of,
        )

    def _prepared(self, signature: Hashable, options: Any) -> tuple[float, str]:
        """The time limit and the name of a collective that begins."""
        self._require_open()
        seconds = seconds_of(options, self._timeout)
        self._be_patient(seconds)
        self._settle_old()
        return seconds, self._next_name(signature)

    def _work(
        self,
        what: str,
        name: str,
        finish: Finish,
        references: object,
        seconds: float,
        placement: Placement,
        make: Callable[..., RuedaWork],
        submit: Callable[[], Sequence[_native.Handle]],
    ) -> RuedaWork:
        work = make(
            f"{what} '{name}'",
            submit,
            finish,
            references,
            seconds,
            on_longer=self._be_patient,
            on_settled=partial(self._forget, name),
            on_error=self._names.restart,
            on_fatal=self._fatal_listener(),
            placement=placement,
        )
        self._works[name] = work
        return work

    def _waits_at_once(self, options: Any) -> bool:
        """Whether torch has said that the caller waits for the operation before he does anything else."""
        return self._coalesced is None and not getattr(options, "asyncOp", True)

    def _settle_old(self) -> None:
        """Brings results that nobody has asked for to their places, and lets go of what they needed."""
        try:
            oldest = next(iter(self._works.values()), None)
        except RuntimeError:  # another thread has settled one just now
            return
        if oldest is not None:
            oldest.settle_if_old()

    def _forget(self, name: str, work: RuedaWork) -> None:
        if self._works.get(name) is work:  # and not the next one of that name
            del self._works[name]
        if work.is_small():
            self._settled.append(work)

    def _refused(
        self, what: str, refusal: Refusal, options: Any = None, group: int = 0, parts: int = 1
    ) -> Work:
        """Takes part in a collective by failing it on every rank.

        ``group``: of how many tensors, where they are a group of Rueda's; ``parts``: where each is an operation.
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
        )

    def _next_name(self, signature: Hashable) -> str:
        name = self._names.next(signature)
        # A name serves one operation at a time. It comes again only after several others of its kind.
        before = self._works.get(name)
        if before is not None:
            before.outlast()
        return name

    def _fatal_listener(self) -> Callable[[Exception], None]:
        """What is to hear of an error of an operation that begins now; see :class:`RuedaWork`."""
        return partial(self._on_fatal, self._incarnation)

    def _on_fatal(self, incarnation: int, error: Exception) -> None:
        """An operation has failed so that the group, as it was in that incarnation, is of no use any more."""
        if incarnation == self._incarnation:
            self._fatal = self._fatal or error

    @property
    def fatal_error(self) -> Exception | None:
        """What has made the group useless, once an operation has failed so."""
        return self._fatal

    @property
    def is_of_this_world(self) -> bool:
        """Whether the group has not been destroyed, nor the world formed anew since it was made."""
        return not self._closed and lifecycle.world_number() == self._world

    @property
    def owns_world(self) -> bool:
        """Whether Rueda's world ends with the group."""
        return self._membership.owns_world

    def own_world(self, owns: bool) -> None:
        """Whether Rueda's world is to end with the group."""
        self._membership = self._membership._replace(owns_world=owns)

    @property
    def timeout(self) -> timedelta:
        """How long operations may take that do not say so themselves."""
        return timedelta(seconds=self._timeout)

    def _require_open(self) -> None:
        if self._closed:
            raise ShutdownError("the process group has been destroyed")
        if not self.is_of_this_world:
            raise ShutdownError(
                "the process group is of a world that has gone; rueda.torch.c10d.renew_process_group() makes one of "
                "the present world"
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
    """Does an operation whose caller would do nothing else meanwhile. Raises its error.

    What is late, fails or is interrupted gets the work that it would have got from ``work_of`` in any case. ``begun``:
    an empty list, in which ``submit`` may leave what it has begun, see :class:`rueda.handles.Handle`.
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
    """Whether all complete in time and without an error."""
    for native in natives:
        if not native.wait(max(0.0, deadline - time.monotonic())):
            return False
    try:
        for native in natives:
            native.check()
    except RuedaError:
        return False
    return True
