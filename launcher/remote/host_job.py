"""What a host is told of a job, and the checks there before anything is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..cores import cores_within_quota
from ..environment import THREADS, threads_per_rank, without_identity
from ..errors import LaunchError
from ..job import check_command
from ..resources import check_number, provide_descriptors
from .address import interface_address, is_own, listen, rendezvous_at


@dataclass(frozen=True)
class HostJob:
    """The part of a job that one host runs."""

    command: list[str]
    folder: str
    settings: dict[str, str]  # variables for all ranks
    identities: list[dict[str, str]]  # of each rank, in order: who it is
    first: int
    grace: float
    silence: float  # seconds after which the other side is taken for gone
    interface: str  # the user's choice, or nothing
    reached_at: str  # the address by which other hosts reach this one, or nothing
    reads_input: bool  # rank 0: what is piped into the launcher
    # So many processes may be started at a time, also later: it runs until it is told that the job is over.
    most: int = 0
    # Ranks that share that host's cores, where its environment says nothing else.
    cores_for: int = 0

    @property
    def size(self) -> int:
        """How many ranks the whole job has."""
        return int(self.identities[0]["RUEDA_SIZE"])

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HostJob:
        """As to_json() gave it."""
        return cls(**value)


@dataclass(frozen=True)
class Prepared:
    """A host that is ready to start its ranks."""

    command: tuple[str, ...]
    environment: dict[str, str]
    listener: socket.socket | None
    rendezvous: str


def prepare(job: HostJob) -> Prepared:
    """Changes into the job's folder and sets its variables; raises LaunchError where it cannot run."""
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise LaunchError(
            f"cannot enter folder '{job.folder}': {error.strerror}; the job runs in the same "
            "folder on every host"
        ) from error
    os.environ.update(job.settings)
    here = max(len(job.identities), job.most)
    if job.cores_for:
        os.environ.setdefault(
            THREADS, str(threads_per_rank(cores_within_quota()[0], job.cores_for))
        )
    check_number(here, here)
    provide_descriptors(here, started_here=True)
    command = check_command(job.command, local=True)
    # Each of several carries data; the first, whatever else ranks tell each other.
    chosen = [interface_address(part) for part in job.interface.split(",") if part]
    address = chosen[0] if chosen else job.reached_at
    if not job.interface and is_own(address):
        os.environ["RUEDA_INTERFACE"] = address  # the ranks meet and exchange data in one network
    listener, rendezvous = _open_rendezvous(address) if job.first == 0 else (None, "")
    return Prepared(command, without_identity(os.environ), listener, rendezvous)


def _open_rendezvous(address: str) -> tuple[socket.socket, str]:
    if not address:
        raise LaunchError(
            "no address of it is known that the other hosts can reach: name its network interface with "
            "--interface"
        )
    listener = listen(address)
    return listener, rendezvous_at(address, listener.getsockname()[1])
