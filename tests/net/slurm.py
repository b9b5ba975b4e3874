"""A Slurm of two nodes on hosts of a lab: slurmctld on h0, slurmd on h0 and h1, no munge, no cgroups.

For Debian's slurm-wlm (22.05): apt-get install --no-install-recommends slurm-wlm slurmd slurmctld
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from rueda_command import launcher_environment

from .lab import Lab, Unavailable

# `ip netns exec` mounts a sysfs without this machine's cgroups, which slurmd requires.
_WITH_CGROUPS = """
mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/systemd &&
mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd
exec "$@"
"""
_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
_CONFIGURATION = """
ClusterName=lab
SlurmctldHost=h0({h0})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=30
KillWait=2
JobRequeue=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
NodeName=h0 NodeAddr={h0} CPUs=8 State=UNKNOWN
NodeName=h1 NodeAddr={h1} CPUs=8 State=UNKNOWN
PartitionName=p Nodes=h0,h1 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Slurm:
    """Runs for a `with` block. Raises Unavailable if Slurm is not installed."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        missing = [name for name in _PROGRAMS if not self._find(name)]
        if missing:
            raise Unavailable(f"needs Slurm: there is no {missing[0]}")

    @staticmethod
    def _find(name: str) -> str | None:
        return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")

    def __enter__(self) -> Slurm:
        (self._folder / "state").mkdir()
        addresses = {host: self._lab.ipv4(host) for host in ("h0", "h1")}
        text = _CONFIGURATION.format(folder=self._folder, **addresses)
        (self._folder / "slurm.conf").write_text(text)
        try:
            self._daemon("h0", "slurmctld", "-D", "-c", "-i")
            for host in ("h0", "h1"):
                (self._folder / f"spool.{host}").mkdir()
                self._daemon(host, "slurmd", "-D", "-N", host)
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the daemons; the processes they started end with the lab."""
        for daemon in self._daemons:
            daemon.kill()
        for daemon in self._daemons:
            daemon.wait(30)

    def run(
        self, *command: str, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a Slurm command on h0 to completion."""
        return self._lab.run("h0", *command, timeout=timeout, env=self._environment(variables))

    def logs(self) -> str:
        """Returns the daemons' logs."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        base = {k: v for k, v in launcher_environment().items() if not k.startswith("SLURM_")}
        conf = str(self._folder / "slurm.conf")
        return {**base, "SLURM_CONF": conf, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}

    def _daemon(self, host: str, name: str, *arguments: str) -> None:
        conf = str(self._folder / "slurm.conf")
        line = ["sh", "-c", _WITH_CGROUPS, name, str(self._find(name)), *arguments, "-f", conf]
        self._daemons.append(
            self._lab.start(
                host,
                *line,
                env={**os.environ, "SLURM_CONF": conf},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            found = self.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.split()
            if found == ["h0", "idle", "h1", "idle"]:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"Slurm's nodes are not idle: {found}\n{self.logs()}")
            time.sleep(0.2)
