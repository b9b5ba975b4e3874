"""Node number, node count, meeting address and secret, from flags and variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..environment import is_rank
from ..errors import LaunchError

_WHERE = re.compile(r"tcp:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/]+):(?P<port>\d{1,5})")
# As in csrc/membership/bootstrap_rendezvous.h.
_MIN_SECRET = 16
# Other launchers' variables for the node number and count, innermost launcher first.
_RANKS = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID")
_COUNTS = ("PET_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
# Variables that, if set, differ between jobs with the same secret.
_IDENTITY = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")
_NOT_WITH = {
    "hosts": "-H",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "mpirun_path": "--mpirun",
    "map_by": "--map-by",
    "ulfm": "--ulfm",
    "mpi_args": "--mpi-args",
}


@dataclass(frozen=True)
class Nodes:
    """One node's view of a job on several."""

    count: int
    rank: int
    host: str  # of node 0, as given
    port: int
    timeout: float  # seconds within which all nodes must connect
    secret: str = field(repr=False)
    identity: tuple[str, ...] = ()  # of the job, from other launchers' variables

    @property
    def where(self) -> str:
        """The address in the form of --rendezvous."""
        return f"tcp:{self.host}:{self.port}"


def nodes_of(values: Mapping[str, Any], variables: Mapping[str, str]) -> Nodes | None:
    """The settings of a job on several nodes, or None for this node alone. Raises LaunchError for invalid ones."""
    if all(values[name] is None for name in ("nodes", "node_rank", "rendezvous")):
        return None
    count = _number(values["nodes"], "--nodes", _COUNTS, variables)
    if count is None:
        raise LaunchError("say how many nodes the job has: --nodes N")
    if count < 1:
        raise LaunchError(f"--nodes {count}: a job needs at least 1 node")
    if count == 1:
        return None
    for name, flag in _NOT_WITH.items():
        if values[name]:
            raise LaunchError(f"{flag} cannot be used with --nodes: leave out one of them")
    if values["bootstrap"] == "mpi":
        raise LaunchError("--bootstrap mpi cannot be used with --nodes: leave out one of them")
    rank = _number(values["node_rank"], "--node-rank", _RANKS, variables)
    if rank is None:
        raise LaunchError(
            f"say which of the {count} nodes this is: --node-rank R, from 0 to {count - 1}"
        )
    if not 0 <= rank < count:
        raise LaunchError(f"--node-rank {rank}: {count} nodes have numbers from 0 to {count - 1}")
    host, port = _where(values["rendezvous"], variables)
    identity = tuple(variables.get(name, "") for name in _IDENTITY)
    return Nodes(count, rank, host, port, values["nodes_timeout"], secret_of(variables), identity)


def hint_at_nodes(values: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """A hint if a job runs on this node alone by default, although it seems to be one of several nodes; else ""."""
    index = variables.get("JOB_COMPLETION_INDEX")
    is_asked_for = values["nodes"] == 1 or values["hosts"] or values["hostfile"]
    if not index or is_asked_for:
        return ""
    return (
        f"this pod is number {index} of an indexed Kubernetes job (JOB_COMPLETION_INDEX), and its ranks form a job "
        "of their own: for one job on all pods give --nodes N --rendezvous tcp:HOST:PORT, otherwise --nodes 1"
    )


def hint_at_batch_job(values: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """A hint if ranks start on this host alone, although a batch system has granted other hosts, too; else ""."""
    asked = ("nodes", "hosts", "hostfile", "host_discovery_script")
    if any(values[name] for name in asked) or is_rank(variables):
        return ""
    count, source = _granted(variables)
    if count < 2:
        return ""
    start = "srun" if source.startswith("SLURM") else "the batch system's command"
    return (
        f"the batch job has {count} nodes ({source}), but all ranks run on this one: start 'rueda run' on each with "
        f"{start} and --nodes {count} --rendezvous tcp:HOST:PORT, or name the hosts with -H; if one node is meant, "
        "give --nodes 1"
    )


def _granted(variables: Mapping[str, str]) -> tuple[int, str]:
    """How many nodes a batch system has granted, and which variable says so. Within a Slurm step: the step's nodes."""
    for name in ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if (text := variables.get(name, "")).isdecimal():
            return int(text), name
    for name in ("PBS_NODEFILE", "PE_HOSTFILE"):  # one line per slot, or per host
        try:
            lines = Path(variables[name]).read_text(errors="replace").splitlines()
        except (KeyError, OSError, ValueError):
            continue
        return len({line.split()[0] for line in lines if line.strip()}), name
    if words := variables.get("LSB_MCPU_HOSTS", "").split():  # alternating hosts and slots
        return len(set(words[::2])), "LSB_MCPU_HOSTS"
    return 1, ""


def secret_of(variables: Mapping[str, str]) -> str:
    """The job's secret, from RUEDA_SECRET or the file RUEDA_SECRET_FILE. Raises LaunchError."""
    secret = variables.get("RUEDA_SECRET") or _secret_in(variables.get("RUEDA_SECRET_FILE", ""))
    if len(secret) < _MIN_SECRET:
        raise LaunchError(
            f"nodes that meet over TCP need RUEDA_SECRET, a random text of at least {_MIN_SECRET} characters that is "
            "the same on all nodes (openssl rand -hex 32 makes one), or RUEDA_SECRET_FILE, a file that holds it"
        )
    return secret


def _secret_in(name: str) -> str:
    if not name:
        return ""
    try:
        if Path(name).stat().st_mode & 0o004:
            raise LaunchError(f"RUEDA_SECRET_FILE={name} may be read by every user: chmod 600 it")
        return Path(name).read_text().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LaunchError(f"RUEDA_SECRET_FILE={name} cannot be read: {reason}") from error


def _number(
    given: int | None, flag: str, names: tuple[str, ...], variables: Mapping[str, str]
) -> int | None:
    if given is not None:
        return given
    for name in names:
        if text := variables.get(name):
            if not text.isdecimal():
                raise LaunchError(f"{name}={text} is not a number; give {flag}")
            return int(text)
    return None


def _where(given: str | None, variables: Mapping[str, str]) -> tuple[str, int]:
    host, port = variables.get("PET_MASTER_ADDR", ""), variables.get("PET_MASTER_PORT")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    text = given or (f"tcp:{host}:{port}" if host and port else "")
    if not text:
        raise LaunchError(
            "say where the nodes meet: --rendezvous tcp:HOST:PORT, with node 0's host and a free port there"
        )
    found = _WHERE.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        raise LaunchError(
            f"--rendezvous '{text}': write tcp:HOST:PORT, with node 0's host and a free port there"
        )
    return found["host"], int(found["port"])
