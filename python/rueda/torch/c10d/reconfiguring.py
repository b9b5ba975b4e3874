"""Process groups whose members the program can change repeatedly: torch's interface for fault tolerance.

torch has ``dist.init_process_group(..., enable_reconfigure=True)`` since 2.14; on older versions use :class:`Options`.
``docs/torch-distributed.md`` has an example.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from torch._C._distributed_c10d import ErrorType, PrefixStore, Store

from rueda import _native
from rueda.door import listen
from rueda.errors import (
    InitializationError,
    InvalidArgumentError,
    NotInitializedError,
    RuedaError,
    ShutdownError,
    StalledError,
)
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.json_objects import read_object
from rueda.torch.c10d.private_world import PrivateWorld, open_world, private_options
from rueda.torch.c10d.work import DoneWork
from rueda.torch.compiling import never_compiled

__all__ = ["Options", "ReconfigurableGroup", "ReconfigureOptions"]

_FORM = 1


@dataclass(frozen=True)
class Options:
    """The backend's options, for ``init_process_group("rueda", pg_options=...)``.

    ``enable_reconfigure``: the group is a :class:`ReconfigurableGroup`, as with torch's argument of this name.

    Example::

        >>> rueda.torch.c10d.Options(enable_reconfigure=True).enable_reconfigure
        True
    """

    enable_reconfigure: bool = False


@dataclass
class ReconfigureOptions:
    """The argument of :meth:`ReconfigurableGroup.reconfigure`, for versions of torch without this class.

    Example::

        >>> rueda.torch.c10d.ReconfigureOptions(1, ["one handle", "another"]).timeout is None
        True
    """

    uuid: int
    handles: Collection[str] = field(repr=False)  # they contain secrets
    timeout: timedelta | None = None
    hints: Mapping[str, str] = field(default_factory=dict)


class _Member(NamedTuple):
    """The content of a handle: whose group it is, and where its process accepts the others if it is the first."""

    id: str
    host: str
    within_host: str
    across_hosts: str  # empty if the process cannot listen on any network
    secret: str

    @classmethod
    def of(cls, handle: str) -> _Member:
        try:
            said = read_object(handle)
            if said.pop("rueda", None) != _FORM or not all(
                isinstance(v, str) for v in said.values()
            ):
                raise ValueError
            return cls(**said)
        except (ValueError, TypeError):
            # Omits the handle's text, which may contain a secret.
            raise InvalidArgumentError(
                "one of the handles is not from get_reconfigure_handle() of this version of Rueda"
            ) from None


class _Door:
    """Where others reach this process to form one world, if it is the first member; it listens from the start.

    ``group``: the id of the process's group, the same in all of the group's worlds.
    """

    def __init__(self, group: str) -> None:
        name = f"rueda-{secrets.token_hex(16)}"
        self._within_host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._within_host.bind(f"\0{name}")
        self._within_host.listen(socket.SOMAXCONN)
        self._across_hosts: socket.socket | None = None
        address = ""
        with suppress(RuedaError, OSError):  # no network
            self._across_hosts, address = listen()
        self.member = _Member(
            group,
            _native.host_identity(),
            f"unix:@{name}",
            address,
            secrets.token_hex(32),
        )

    @property
    def handle(self) -> str:
        return json.dumps({"rueda": _FORM, **self.member._asdict()})

    def enter(self, uuid: int, members: list[_Member], timeout: timedelta) -> int:
        """Forms a new world with the members; returns its number."""
        first = members[0]
        rank = members.index(self.member)
        one_host = all(member.host == first.host for member in members)
        address = first.within_host if one_host else first.across_hosts
        if not address:
            raise InitializationError("the first of the members cannot be reached from other hosts")
        listener = self._within_host if one_host else self._across_hosts
        descriptor = listener.fileno() if rank == 0 and listener is not None else -1
        text = json.dumps([uuid, *(member.id for member in members)])
        # Specific to this world: processes that expect other members are rejected.
        secret = hmac.new(first.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        return open_world(rank, len(members), address, secret, descriptor, private_options(timeout))

    def close(self) -> None:
        self._within_host.close()
        if self._across_hosts is not None:
            self._across_hosts.close()


@never_compiled
class ReconfigurableGroup(PrivateWorld):
    """The backend ``"rueda"`` with torch's interface for fault tolerance: a group whose members can change.

    It has no members at first: :meth:`rank` and :meth:`size` are -1. The program passes the handles of all future
    members to each of them, by any means, and each calls :meth:`reconfigure`; again if a member is lost or others are
    to join. Each time the members form a world of their own: on one host in shared memory, between hosts over TCP.
    They meet at the first member, not at a store, so no process has to outlive the others.

    A handle contains a secret: anyone who knows it can become a member. It is valid for one world: after each
    :meth:`reconfigure` the members exchange new handles, ideally at once, to have them when a member is lost.

    Example::

        >>> options = rueda.torch.c10d.Options(enable_reconfigure=True)
        >>> dist.init_process_group("rueda", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)
        >>> group = dist.group.WORLD
        >>> handles = [group.get_reconfigure_handle()]
        >>> group.reconfigure(rueda.torch.c10d.ReconfigureOptions(1, handles)).wait()
        True
        >>> dist.get_world_size()
        1
        >>> dist.destroy_process_group()
    """

    supports_reconfigure = True

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, timeout, None, "c10d")
        self._rank = self._size = -1
        self._own_store = store
        self._id = secrets.token_hex(16)
        self._door: _Door | None = None
        self._used: set[int] = set()
        self._is_destroyed = False

    def get_reconfigure_handle(self) -> str:
        """The handle of this group's process for the next :meth:`reconfigure`, after which there is a new one.

        Raises :class:`rueda.ShutdownError` if the group has been destroyed, ``OSError`` if the process cannot listen.
        """
        self._require_not_destroyed()
        if self._door is None:
            self._door = _Door(self._id)
        return self._door.handle

    def reconfigure(self, opts: Any) -> DoneWork:
        """Leaves the current world and forms one of the processes with these handles. Collective over them.

        ``opts``: torch's ``ReconfigureOptions``, or Rueda's. ``uuid``: a number not yet used with this group, the same
        on all members. ``handles``: a list in the order of the new ranks, or a set, which is sorted. ``timeout``: the
        group's by default. ``hints`` are ignored. Blocks until the world is formed.

        Raises :class:`rueda.InvalidArgumentError`, before anything has changed, for a ``uuid`` that was already used,
        for an invalid handle, for a process listed twice, and if this process's handle is missing or outdated;
        :class:`rueda.InitializationError` if the members do not meet in time: the group then has no members, and can be
        reconfigured with another ``uuid``.
        """
        self.get_reconfigure_handle()
        assert self._door is not None
        own = self._door.member
        uuid = int(opts.uuid)
        handles = (
            sorted(opts.handles) if isinstance(opts.handles, set | frozenset) else opts.handles
        )
        members = [_Member.of(handle) for handle in handles]
        if uuid in self._used:
            raise InvalidArgumentError(f"uuid {uuid} was already used for this process group")
        if own not in members:
            is_old = any(member.id == own.id for member in members)
            raise InvalidArgumentError(
                "this process's handle is from before the last reconfigure(): get a new one for each reconfigure()"
                if is_old
                else "this process's own handle is not among those of the members"
            )
        if len({member.id for member in members}) < len(members):
            raise InvalidArgumentError("a process is among the members twice")
        self._used.add(uuid)
        self._leave_world()
        timeout = opts.timeout if opts.timeout is not None else timedelta(seconds=self._timeout)
        door, self._door = self._door, None
        try:
            world = door.enter(uuid, members, timeout)
        finally:
            door.close()
        self._enter(world, members.index(own), len(members))
        self._store = PrefixStore(f"{uuid}/", self._own_store)
        return DoneWork([])

    def _leave_world(self) -> None:
        if self.error is None:
            self._leave_quietly()
        else:
            self._end("the process group is reconfigured")
        self._rank = self._size = -1

    def get_error(self) -> ErrorType:
        """The kind of error that has ended the current world, or ``SUCCESS``."""
        if self.fatal_error is None:
            return ErrorType.SUCCESS
        is_late = isinstance(self.fatal_error, RuedaTimeoutError | StalledError)
        return ErrorType.TIMEOUT if is_late else ErrorType.COMM_ERROR

    def shutdown(self) -> None:
        """Ends the group; it can no longer be reconfigured."""
        super().shutdown()
        self._is_destroyed = True
        if self._door is not None:
            self._door.close()

    def _require_open(self) -> None:
        self._require_not_destroyed()
        super()._require_open()
        if self._size < 0:
            raise NotInitializedError(
                "the process group has no members: reconfigure() gives it some"
            )

    def _require_not_destroyed(self) -> None:
        if self._is_destroyed:
            raise ShutdownError("the process group has been destroyed")
