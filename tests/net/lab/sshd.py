"""An ssh daemon on each host of a lab, with the lab's own keys."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import namespaces
from .tools import Unavailable, find, run

if TYPE_CHECKING:
    from .lab import Lab

_READY_WITHIN = 15.0

_DAEMON = """\
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
"""

_CLIENT = """\
Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""

# sshd needs this folder; the machine's /run must not keep it.
_START = "mount -t tmpfs lab /run && mkdir /run/sshd && exec "


def find_sshd() -> tuple[str, dict[str, str]]:
    """Returns the daemon and its variables: the system's, or what .ci/setup.sh unpacked."""
    installed = find("sshd")
    if installed is not None:
        return installed, {}
    unpacked = Path(os.environ.get("VIRTUAL_ENV", ".venv")).absolute() / "sshd"
    daemon = unpacked / "usr" / "sbin" / "sshd"
    if not daemon.exists():
        raise Unavailable("needs sshd, which is not installed")
    folders = sorted({str(path.parent) for path in unpacked.glob("**/lib*.so.*")})
    return str(daemon), {"LD_LIBRARY_PATH": os.pathsep.join(folders)}


class SshDaemons:
    """The daemons of a lab, started on first use."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self) -> list[str]:
        """Returns the ssh command to use on any of the hosts."""
        folder = self._lab.folder
        if not (folder / "ssh_config").exists():
            self._make_keys(folder)
            for host in self._lab.names:
                self._start(host)
        return ["ssh", "-F", str(folder / "ssh_config")]

    @contextmanager
    def without_keys(self) -> Iterator[None]:
        """Makes the daemons reject every key."""
        with self._emptied("authorized_keys"):
            yield

    @contextmanager
    def without_known_hosts(self) -> Iterator[None]:
        """Makes the client forget all host keys."""
        with self._emptied("known_hosts"):
            yield

    @contextmanager
    def _emptied(self, name: str) -> Iterator[None]:
        file = self._lab.folder / name
        before = file.read_text()
        file.write_text("")
        try:
            yield
        finally:
            file.write_text(before)

    def stop(self, host: str) -> None:
        """Ends one daemon; existing connections stay."""
        process = self._processes.pop(host)
        process.kill()
        process.wait()

    def restart(self, host: str) -> None:
        """Undoes stop()."""
        self._start(host)

    def close(self) -> None:
        """Ends all daemons."""
        for host in list(self._processes):
            self.stop(host)

    def _make_keys(self, folder: Path) -> None:
        find_sshd()
        for key in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(folder / key))
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        host_key = (folder / "host_key.pub").read_text()
        names = [name for host in self._lab.names for name in self._lab.names_of(host)]
        (folder / "known_hosts").write_text(f"{','.join(names)} {host_key}")
        (folder / "sshd_config").write_text(_DAEMON.format(folder=folder))
        (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))
        for host in self._lab.names:
            self._add_user(host)

    def _add_user(self, host: str) -> None:
        """Adds the unprivileged user that sshd requires."""
        users = Path("/etc/passwd").read_text()
        if "\nsshd:" not in users:
            users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        (namespaces.ETC / self._lab.namespace(host) / "passwd").write_text(users)

    def _start(self, host: str) -> None:
        daemon, variables = find_sshd()
        log = self._lab.folder / f"sshd.{host}.log"
        with log.open("wb") as output:
            self._processes[host] = self._lab.start(
                host,
                *("sh", "-c", f'{_START}"$@"', "sh", daemon, "-D", "-e"),
                *("-f", str(self._lab.folder / "sshd_config")),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
                start_new_session=True,  # a signal to the tests must not reach it
            )
        deadline = time.monotonic() + _READY_WITHIN
        while "Server listening" not in log.read_text():
            if self._processes[host].poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"sshd does not start: {log.read_text().strip()}")
            time.sleep(0.01)
