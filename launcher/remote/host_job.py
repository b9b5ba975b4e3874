"""The description of a job for one host, and the host's checks before anything starts."""

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
    identities: list[dict[str, str]]  # identity variables of each rank, in order
    first: int
    grace: float
    silence: float  # seconds without a message after which the other side counts as gone
    interface: str  # the user's choice, or ""
    reached_at: str  # the address at which other hosts reach this one, or ""
    reads_input: bool  # whether rank 0 gets the launcher's piped input
    # How many processes may exist at a time, also started later. If not 0, the host runs until the job is over.
    most: int = 0
    # Ranks that share the host's cores, unless its environment sets the threads.
    cores_for: int = 0

    @property
    def size(self) -> int:
        """The number of ranks of the whole job."""
        return int(self.identities[0]["RUEDA_SIZE"])

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HostJob:
        """The inverse of to_json()."""
        return cls(**value)


@dataclass(frozen=True)
class Prepared:
    """A host that is ready to start its ranks."""

    command: tuple[str, ...]
    environment: dict[str, str]
    listener: socket.socket | None
    rendezvous: str


def prepare(job: HostJob) -> Prepared:
    """Changes into the job's folder and sets its variables. Raises LaunchError if the job cannot run here."""
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise LaunchError(
            f"cannot enter folder '{job.folder}': {error.strerror}; the job runs in the same "
            "folder on every host"
        ) from error
    os.environ["PWD"] = job.folder  # the shell that started this process has set its own
    os.environ.update(job.settings)
    here = max(len(job.identities), job.most)
    if job.cores_for:
        os.environ.setdefault(
            THREADS, str(threads_per_rank(cores_within_quota()[0], job.cores_for))
        )
    check_number(here, here)
    provide_descriptors(here, started_here=True)
    command = check_command(job.command, local=True)
    # All interfaces carry data. The first also carries the ranks' other messages.
    chosen = [interface_address(part) for part in job.interface.split(",") if part]
    address = chosen[0] if chosen else job.reached_at
    if not job.interface and is_own(address):
        os.environ["RUEDA_INTERFACE"] = address  # so that ranks meet and send data on one network
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
