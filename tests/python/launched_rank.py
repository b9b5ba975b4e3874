"""Stands in for a rank: a launcher starts this process instead of a Python that imports torch.

    python -S launched_rank.py FOLDER PROGRAM [ARGUMENT...]
    python -S launched_rank.py FOLDER -c TEXT [ARGUMENT...]

The servers of forkserver.py listen in ``FOLDER``. One of them forks the rank, with this process's
environment and output, on its host in a lab (tests/net/lab). This process forwards signals to the
rank and ends with its status; the rank ends with this process. To a launcher the two look the same,
except for signals to a process group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

NUMBERS = ("RUEDA_RANK", "RUEDA_JOINER", "OMPI_COMM_WORLD_RANK", "RANK")
NAMESPACES = ("net", "uts", "mnt")  # those that make up a host in a lab
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)


def answer(server: socket.socket) -> int:
    """Returns the next number that the server sends."""
    told = server.recv(64)
    assert told, "the process that forks ranks has ended"
    return int(told)


def rank_number() -> int:
    """As the launcher has told."""
    return int(next((os.environ[name] for name in NUMBERS if name in os.environ), "0"))


def run(folder: str, request: dict[str, object]) -> int:
    """Has a rank forked and waits until it ends. Returns its exit code, negative for a signal."""
    servers = sorted(os.listdir(folder))
    # Until there is a rank to forward them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.path.join(folder, servers[rank_number() % len(servers)]))
        host = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
        socket.send_fds(server, [json.dumps(request).encode()], [1, 2, *host])
        rank = answer(server)

        def pass_on(number: int, _: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(rank, number)

        for each in PASSED_ON:
            signal.signal(each, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return os.waitstatus_to_exitcode(answer(server))


def main() -> None:
    """Ends with the rank's exit code or signal."""
    folder, program, *arguments = sys.argv[1:]
    is_path = program != "-c"
    if not is_path:
        program, *arguments = arguments
    code = run(
        folder,
        {
            "number": rank_number(),
            "program": program,
            "is_path": is_path,
            "arguments": arguments,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        },
    )
    if code >= 0:
        sys.exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
