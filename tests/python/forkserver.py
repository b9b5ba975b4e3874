"""A Python that has imported torch or only NumPy, as ``sys.argv[1]`` says, and forks off a rank for each request.

torch takes a second to import, and what its first optimizer imports another: more than most tests compute. NumPy takes
a fifth of a second, and what Rueda imports of Python's own a part of that. A message comes from the tests, through the
socket ``sys.argv[2]``, or from whoever connects to the socket that listens, ``sys.argv[3]``. It is JSON, with the files
for the rank's standard output and error: ``program``, ``is_path``, ``arguments``, ``folder`` and ``environment``. The
answer is the rank's number. For the tests it comes once the rank is a child of theirs: they are a subreaper meanwhile.
Others, which stand in for their ranks (launched_rank.py), get how it has ended as well. Three more files are the
namespaces of their host, which their rank is on, too.
"""

from __future__ import annotations

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

LONGEST = 1 << 20  # bytes of a request
OUTPUTS, NAMESPACES = 2, 3  # files of a request
# What programs need beside torch, by a word in them; it is imported when the first of them comes.
ALSO = {"digits": "sklearn.datasets"}
# Of Python's own modules, what Rueda imports and what takes long.
OF_PYTHON = ("dataclasses", "hashlib", "inspect", "ipaddress", "logging", "subprocess", "typing")


def serve(tests: socket.socket, listener: socket.socket) -> dict[str, Any]:
    """Forks ranks until the tests go. Returns in each rank, with what that is to run."""
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
            with contextlib.suppress(OSError):  # another listens there, too
                os.rmdir(os.path.dirname(path))
            sys.exit(0)
        if message:
            request = json.loads(message)
            import_for(request)
            gc.freeze()  # what all ranks share stays shared
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
    """Imports what the program needs, as far as that is there: the rank will tell."""
    text = request["program"]
    with contextlib.suppress(OSError, ImportError):
        if request["is_path"]:
            with open(os.path.join(request["folder"], text)) as file:
                text = file.read()
        for word, module in ALSO.items():
            if word in text:
                importlib.import_module(module)


def reap() -> None:
    """Takes leave of what has kept ranks and has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become_child_of_the_tests(tests: socket.socket, _: list[int]) -> None:
    """Returns in the rank, which goes to the process that has asked, since its parent ends."""
    between = os.getpid()
    if os.fork() > 0:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0001)
    os.setsid()  # so that what a rank has started can be ended with it
    tests.send(str(os.getpid()).encode())


def enter(namespaces: list[int]) -> None:
    """Goes to the host of a lab that a stand-in is on. Where this process is, it need not ask to be let in."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = {os.stat(f"/proc/self/ns/{name}").st_ino for name in os.listdir("/proc/self/ns")}
    for each in namespaces:
        if os.fstat(each).st_ino not in here and libc.setns(each, 0) != 0:
            raise OSError(ctypes.get_errno(), "this host cannot be entered")


def become_kept(stand_in: socket.socket, files: list[int]) -> None:
    """Returns in the rank. Its parent tells how it ends, and ends it when nobody listens any more."""
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
    """What Python does with a program, as far as a program can see."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # What Python itself has done when it started, with another environment.
    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[1:1] = [each for each in more if each not in sys.path]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    numpy.random.seed()  # random does so by itself
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


if __name__ == "__main__":
    import numpy

    if sys.argv[1] == "torch":
        import torch
        import torch._dynamo  # noqa: F401 - what the first optimizer imports
    else:
        for name in OF_PYTHON:
            importlib.import_module(name)

    gc.collect()
    run(serve(*(socket.socket(fileno=int(number)) for number in sys.argv[2:])))
