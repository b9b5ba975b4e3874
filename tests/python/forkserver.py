"""A Python that has imported torch, and forks off a rank for each request.

torch takes a second to import, and what its first optimizer imports another: more than most tests compute. Each
message that comes through the socket ``sys.argv[1]`` is JSON, with the file that the rank writes to: ``program``,
``is_path``, ``arguments``, ``folder``, ``environment``, and ``modules`` to import before. The rank answers with its
number once it is a child of the process that has asked, which must be a subreaper meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import types
from typing import Any

LONGEST = 1 << 20  # bytes of a request


def serve(tests: socket.socket) -> dict[str, Any]:
    """Forks ranks until the tests go. Returns in each rank, with what that is to run."""
    while True:
        message, files, _, _ = socket.recv_fds(tests, LONGEST, 1)
        if not message:
            sys.exit(0)
        request = json.loads(message)
        for name in request["modules"]:
            with contextlib.suppress(ImportError):  # the rank will tell
                importlib.import_module(name)
        gc.freeze()  # what all ranks share stays shared
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() > 0:
                os._exit(0)  # so that the rank goes to the process that has asked
            while os.getppid() == between:
                time.sleep(0.0001)
            os.setsid()  # so that what a rank has started ends with it
            os.dup2(files[0], 1)
            os.dup2(files[0], 2)
            os.close(files[0])
            tests.send(str(os.getpid()).encode())
            tests.close()
            return request
        os.waitpid(between, 0)
        os.close(files[0])


def run(request: dict[str, Any]) -> None:
    """What Python does with a program, as far as a program can see."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
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
    import torch
    import torch._dynamo  # noqa: F401 - what the first optimizer imports

    gc.collect()
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
