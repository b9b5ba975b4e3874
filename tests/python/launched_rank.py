"""What a launcher starts in place of a Python that imports torch: a process that stands in for the rank.

    python -S launched_rank.py FOLDER PROGRAM [ARGUMENT...]
    python -S launched_rank.py FOLDER -c TEXT [ARGUMENT...]

The servers of forkserver.py listen in ``FOLDER``. One of them forks off the rank, with this process's environment and
output, on its host in a lab (tests/net/lab). This process passes signals on to it and ends as it has ended; the rank
ends with this process. For a launcher the two are the same, but for signals to a process group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

NUMBERS = ("RUEDA_RANK", "RUEDA_JOINER", "OMPI_COMM_WORLD_RANK", "RANK")
NAMESPACES = ("net", "uts", "mnt")  # of which a host in a lab consists
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)


def answer(server: socket.socket) -> int:
    """The next number that the server tells."""
    told = server.recv(64)
    assert told, "the process that forks ranks has ended"
    return int(told)


def run(folder: str, request: dict[str, object]) -> int:
    """Has a rank forked off, and waits until it has ended: its exit code, negative for a signal."""
    number = int(next((os.environ[name] for name in NUMBERS if name in os.environ), "0"))
    servers = sorted(os.listdir(folder))
    # Until there is somebody to pass them on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.path.join(folder, servers[number % len(servers)]))
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
    """Ends as the rank ends."""
    folder, program, *arguments = sys.argv[1:]
    is_path = program != "-c"
    if not is_path:
        program, *arguments = arguments
    code = run(
        folder,
        {
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
