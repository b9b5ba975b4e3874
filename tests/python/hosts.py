"""Several hosts on this machine: network namespaces with a bridge, each with a hostname of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from launching import Ended, command, mpirun_line, run_to_end

# What starts mpirun's daemon on another host, as ssh would.
AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
"""


def _run(*line: str) -> None:
    subprocess.run(line, check=True, capture_output=True, text=True, timeout=30)


class Hosts:
    """``count`` hosts that are there within a ``with`` block. Skips the test where they cannot be made."""

    def __init__(self, count: int, folder: Path) -> None:
        self._name = "ru" + uuid.uuid4().hex[:6]  # names of interfaces have 15 characters at most
        self.names = [f"{self._name}h{i}" for i in range(count)]
        self.addresses = [f"10.213.77.{i + 1}" for i in range(count)]
        self._folder = folder

    def __enter__(self) -> Hosts:
        if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "unshare")):
            pytest.skip("needs root, ip and unshare")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"no network namespaces can be made here: {error.stderr.strip()}")
        agent = self._folder / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for line in [["netns", "delete", name] for name in self.names] + [
            ["link", "delete", self._name]
        ]:
            subprocess.run(["ip", *line], check=False, capture_output=True)
        for name in self.names:
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)

    def _make(self) -> None:
        _run("ip", "link", "add", self._name, "type", "bridge")
        _run("ip", "link", "set", self._name, "up")
        known = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for name, address in zip(self.names, self.addresses, strict=True)
        )
        for index, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            # `ip netns exec` lays it over /etc.
            etc = Path("/etc/netns") / name
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(known)
            _run("ip", "netns", "add", name)
            outer, inner = f"{self._name}o{index}", "eth0"
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            _run("ip", "link", "set", outer, "master", self._name, "up")
            inside = ["ip", "-n", name]
            _run(*inside, "addr", "add", f"{address}/24", "dev", inner)
            _run(*inside, "link", "set", inner, "up")
            _run(*inside, "link", "set", "lo", "up")

    def run(
        self,
        program: str | Path,
        ranks_each: int,
        arguments: Sequence[str] = (),
        extra: dict[str, str] | None = None,
        limit: float = 240,
    ) -> Ended:
        """Runs ``ranks_each`` ranks on every host under mpirun, which is started on the first one."""
        everywhere = ",".join(f"{name}:{ranks_each}" for name in self.names)
        network = "10.213.77.0/24"
        options = ["--host", everywhere, "--prtemca", "plm", "ssh"]
        options += ["--prtemca", "plm_ssh_agent", str(self._folder / "agent")]
        options += ["--prtemca", "prte_if_include", network]
        options += ["--mca", "btl_tcp_if_include", network, "--mca", "pml", "ob1"]
        options += ["--mca", "btl", "self,tcp,sm"]
        for name in ["PATH", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", *(extra or {})]:
            if name in os.environ or name in (extra or {}) or name == "OMP_NUM_THREADS":
                options += ["-x", name]
        line = mpirun_line(ranks_each * len(self.names), command(program, arguments), options)
        first = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "bash", "-c"]
        start = 'hostname "$0"; exec "$@"'
        return run_to_end([*first, start, self.names[0], *line], extra, limit, "mpirun")

    def check(self, program: str | Path, ranks_each: int, arguments: Sequence[str] = ()) -> Ended:
        """As :meth:`run`; all ranks must succeed."""
        ended = self.run(program, ranks_each, arguments)
        assert ended.returncode == 0, ended.output
        return ended
