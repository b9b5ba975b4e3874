"""Starts a torchft lighthouse and RANKS replica groups of torchft_rank.py, one process each, until they end.

torchft_job.py RANKS torchft|torchft-rueda|torchft-defaults FOLDER PHASE SEED
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rueda.launcher.processes import become_killable
from torchft._torchft import LighthouseServer

# The lighthouse's settings in milliseconds, the process group, and its timeout in seconds. The defaults are those of
# the program torchft_lighthouse; the tuned ones are the smallest that torchft's documentation and tests use.
DEFAULTS = {"join_timeout_ms": 60000, "quorum_tick_ms": 100, "heartbeat_timeout_ms": 5000}
TUNED = {"join_timeout_ms": 100, "quorum_tick_ms": 20, "heartbeat_timeout_ms": 300}
WAYS = {
    "torchft": (TUNED, "gloo", 5.0),
    "torchft-rueda": (TUNED, "rueda", 5.0),
    "torchft-defaults": (DEFAULTS, "gloo", 60.0),
}


def main() -> None:
    """Runs one job."""
    ranks, way = int(sys.argv[1]), sys.argv[2]
    settings, backend, timeout = WAYS[way]
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, **settings)
    program = str(Path(__file__).with_name("torchft_rank.py"))
    job = os.getpid()
    processes = [
        subprocess.Popen(
            [sys.executable, program, *sys.argv[3:6], str(rank), str(ranks), backend, str(timeout)],
            env={
                **os.environ,
                "TORCHFT_LIGHTHOUSE": lighthouse.address(),
                "PYTHONWARNINGS": "ignore",
            },
            preexec_fn=lambda: become_killable(job, signal.SIGKILL),
        )
        for rank in range(ranks)
    ]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    lighthouse.shutdown()
    sys.exit(0 if all(code in (0, -signal.SIGKILL) for code in codes) else 1)


if __name__ == "__main__":
    main()
