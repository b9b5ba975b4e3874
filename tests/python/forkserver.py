"""A Python that has imported torch or NumPy (``sys.argv[1]``) and forks a rank per request.

Importing torch takes a second, and the modules its first optimizer imports another: more than most
tests compute. NumPy takes a fifth of a second, and the standard modules that Rueda imports a part
of that. Requests come from the tests through the socket ``sys.argv[2]``, or from any process that
connects to the listening socket ``sys.argv[3]``. A request is JSON (``number``, ``program``,
``is_path``, ``arguments``, ``folder`` and ``environment``) with the files for the rank's standard
output and error. The answer is the rank's process ID. The tests get it once the rank is their
child: they are a subreaper meanwhile. Other clients are stand-ins for their ranks
(launched_rank.py) and also get the rank's wait status. They pass three more files, the namespaces
of their host, which the rank enters.

Of ranks with torch, only the first of a world (``number`` 0) ends as Python does: clearing torch's
modules takes a fifth of a second, more than most tests. The others leave after their exit handlers,
but for those that mpirun has started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import types
from typing import Any

LONGEST = 1 << 20  # maximum bytes of a request
OUTPUTS, NAMESPACES = 2, 3  # files of a request
# Modules that programs need besides torch, by a word in the program; imported for the first such
# program.
ALSO = {"digits": "sklearn.datasets"}
# Standard modules that Rueda imports and that take long.
OF_PYTHON = ("dataclasses", "hashlib", "inspect", "ipaddress", "logging", "subprocess", "typing")


def serve(tests: socket.socket, listener: socket.socket) -> dict[str, Any]:
    """Forks ranks until the tests end. Returns in each rank, with its request."""
    while True:
        reap()
        if tests in select.select([tests, listener], [], [])[0]:
            asker, become_rank = tests, become_child_of_the_tests
        else:
            asker, become_rank = listener.accept()[0], become_kept
        message, files, _, _ = socket.recv_fds(asker, LONGEST, OUTPUTS + NAMESPACES)
        if not message and asker is tests:
            reap()
            path = listener.getsockname()
            os.unlink(path)
            with contextlib.suppress(OSError):  # the other server listens there too
                os.rmdir(os.path.dirname(path))
            sys.exit(0)
        if message:
            request = json.loads(message)
            import_for(request)
            gc.freeze()  # keeps memory that all ranks share shared
            between = os.fork()
            if between == 0:
                become_rank(asker, files)
                tests.close()
                listener.close()
                asker.close()
                for number, file in enumerate(files[:OUTPUTS], 1):
                    os.dup2(file, number)
                enter(files[OUTPUTS:])
                for file in files:
                    os.close(file)
                return request
            if asker is tests:
                os.waitpid(between, 0)
        for file in files:
            os.close(file)
        if asker is not tests:
            asker.close()


def import_for(request: dict[str, Any]) -> None:
    """Imports what the program needs, if available; otherwise the rank itself reports the error."""
    text = request["program"]
    with contextlib.suppress(OSError, ImportError):
        if request["is_path"]:
            with open(os.path.join(request["folder"], text)) as file:
                text = file.read()
        for word, module in ALSO.items():
            if word in text:
                importlib.import_module(module)


def reap() -> None:
    """Reaps children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become_child_of_the_tests(tests: socket.socket, _: list[int]) -> None:
    """Returns in the rank, which the tests adopt because its parent exits."""
    between = os.getpid()
    if os.fork() > 0:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0001)
    os.setsid()  # so that processes the rank starts can be ended with it
    tests.send(str(os.getpid()).encode())


def enter(namespaces: list[int]) -> None:
    """Enters the stand-in's host in a lab. Needs no privilege if this process is on it."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = {os.stat(f"/proc/self/ns/{name}").st_ino for name in os.listdir("/proc/self/ns")}
    for each in namespaces:
        if os.fstat(each).st_ino not in here and libc.setns(each, 0) != 0:
            raise OSError(ctypes.get_errno(), "this host cannot be entered")


def become_kept(stand_in: socket.socket, files: list[int]) -> None:
    """Returns in the rank. Its parent reports its end, and kills it if the stand-in goes."""
    rank = os.fork()
    if rank == 0:
        os.setsid()
        return
    for file in files:
        os.close(file)
    ended = os.pidfd_open(rank)
    with contextlib.suppress(OSError):
        stand_in.send(str(rank).encode())
        if stand_in in select.select([stand_in, ended], [], [])[0]:
            os.kill(rank, signal.SIGKILL)
        stand_in.send(str(os.waitpid(rank, 0)[1]).encode())
    os._exit(0)


def run(request: dict[str, Any]) -> None:
    """Runs a program as Python would, as seen from the program."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # Python itself did this at start, with another environment.
    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[1:1] = [each for each in more if each not in sys.path]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    numpy.random.seed()  # the random module reseeds itself after fork
    program = request["program"]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if request["is_path"]:
        module.__file__ = program
        sys.argv = [program, *request["arguments"]]
        sys.path[0] = os.path.dirname(program)
        with open(program) as file:
            text = file.read()
    else:
        sys.argv = ["-c", *request["arguments"]]
        sys.path[0] = ""
        text, program = program, "<string>"
    exec(compile(text, program, "exec", dont_inherit=True), module.__dict__)


class Ending:
    """The exit code of a rank that leaves without clearing modules, once it is known."""

    code: int | None = None

    def run(self, request: dict[str, Any]) -> None:
        """Runs a program; Python then ends as usual after Ctrl-C, and if it has to print why it exits."""
        try:
            run(request)
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                self.code = error.code or 0
            raise
        except Exception:
            self.code = 1
            raise
        self.code = 0

    def leave(self) -> None:
        """The last exit handler."""
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code & 0xFF)


if __name__ == "__main__":
    ending = Ending()
    atexit.register(ending.leave)  # before any other, so that it is called after all others

    import numpy

    if sys.argv[1] == "torch":
        import torch
        import torch._dynamo  # noqa: F401 - what the first optimizer imports
    else:
        for name in OF_PYTHON:
            importlib.import_module(name)

    gc.collect()
    its_request = serve(*(socket.socket(fileno=int(number)) for number in sys.argv[2:]))
    # MPI is finalised later, and mpirun would miss that.
    has_mpi = any(name.startswith(("OMPI_", "PMI")) for name in its_request["environment"])
    if its_request["number"] > 0 and "torch" in sys.modules and not has_mpi:
        ending.run(its_request)
    else:
        run(its_request)
