"""Starts PCCL's master and RANKS peers of pccl_rank.py on this host, until the peers end.

pccl_job.py RANKS FOLDER PHASE SEED; the master's process is in the file `master` of the folder.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from rueda.launcher.processes import become_killable

HERE = Path(__file__).parent
PCCL = HERE.parent / "pccl"
sys.path.insert(0, str(PCCL))
import environment  # noqa: E402


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Runs one job."""
    ranks = int(sys.argv[1])
    python = environment.command()
    job = os.getpid()
    where = f"127.0.0.1:{free_port()}"

    def begin(*line: str, output: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*python, *line],
            stdout=output,
            text=True,
            preexec_fn=lambda: become_killable(job, signal.SIGKILL),
        )

    processes = [begin(str(PCCL / "master.py"), where, output=subprocess.PIPE)]
    (master,) = processes
    try:
        assert master.stdout is not None
        if master.stdout.readline() != "ready\n":
            sys.exit("PCCL's master does not start")
        (Path(sys.argv[2]) / "master").write_text(str(master.pid))
        program = str(HERE / "pccl_rank.py")
        for rank in range(ranks):
            processes.append(begin(program, *sys.argv[2:5], str(rank), str(ranks), where))
        codes = [process.wait() for process in processes[1:]]
    finally:
        for process in processes:
            process.kill()
    sys.exit(0 if all(code in (0, -signal.SIGKILL) for code in codes) else 1)


if __name__ == "__main__":
    main()
