"""A process group of Rueda's as the backend of one kind of device, as in ``"cpu:rueda,cuda:gloo"``.

torch takes a process group that is written in Python for all devices, or none. For one device it takes what is derived
from a C++ class, so there is one that hands all calls on (``device_backend.cpp``). It is compiled when a program asks
for it first, against the torch that is installed, and kept beside torch's other extensions.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from rueda.errors import InitializationError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend

__all__ = ["is_one_of_several", "load", "settle_default", "wrap"]

SOURCE = Path(__file__).with_name("device_backend.cpp")
# Little is gained by more optimisation: it only hands calls on.
FLAGS = ("-O1", "-fvisibility=hidden")
WHY = "a backend per device, as in 'cpu:gloo,cuda:rueda', needs an extension that is compiled at its first use"


def is_one_of_several() -> bool:
    """Whether the group that torch.distributed is making, further up the stack, has several backends.

    Nothing that torch gives the maker of a backend tells. Where its makers no longer look as they do, the answer is no.
    """
    _, backends = _group_being_made()
    return len(backends) > 1


def settle_default() -> None:
    """Says which backend answers for the whole group that is being made, where torch leaves that open.

    It has a choice of its own where NCCL is among them, and otherwise none as soon as one comes from outside.
    """
    group, backends = _group_being_made()
    if group is not None and not backends & {"nccl", "xccl"}:
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def _group_being_made() -> tuple[dist.ProcessGroup | None, set[str]]:
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    if frame is None:
        return None, set()
    config = frame.f_locals.get("backend_config")
    backends: Mapping[str, str] = getattr(config, "device_backend_map", {})
    return frame.f_locals.get("pg"), {str(backend) for backend in backends.values()}


def wrap(group: dist.ProcessGroup, timeout: timedelta) -> Backend:
    """A backend of one device that does what ``group`` does. :func:`load` must have been called."""
    return cast("Backend", load().backend_of(group, group.rank(), group.size(), timeout))


@cache
def load() -> ModuleType:
    """The compiled module, from torch's cache of extensions or compiled now, which takes some 20 s.

    Of several processes that come at the same time one compiles and the others wait: its lock ends with it.
    Raises :class:`rueda.InitializationError` where it cannot be compiled, with the reason.
    """
    name = _name()
    folder = _cache() / name
    library = folder / f"{name}.so"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "being_compiled").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not library.exists():
                    return _compile(name, folder / "build", library)
        except OSError as error:
            raise InitializationError(f"{WHY}, but {folder} cannot be written: {error}") from error
    try:
        return _imported(name, library)
    except ImportError as error:
        raise InitializationError(f"{WHY}, but {library} cannot be loaded: {error}") from error


def _imported(name: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _name() -> str:
    """Of the module; another one for each of what it depends on."""
    version = re.sub(r"\W", "_", torch.__version__)
    python = re.sub(r"\W", "_", str(sysconfig.get_config_var("SOABI")))
    contents = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return f"rueda_c10d_{contents}_torch_{version}_{python}"


def _cache() -> Path:
    from torch.utils import cpp_extension

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())


def _compile(name: str, folder: Path, library: Path) -> ModuleType:
    """Compiles in ``folder`` what then appears, whole, as ``library``, and is the result."""
    from torch.utils import cpp_extension

    compiler = os.environ.get("CXX", "c++")  # as torch chooses it
    missing = [tool for tool in (compiler, "ninja") if shutil.which(tool) is None]
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        missing.append(f"Python's headers ({headers}/Python.h)")
    if missing:
        raise InitializationError(
            f"{WHY}, but there is no {' and no '.join(missing)}: install what is missing (the variable CXX "
            f"names another compiler), or use the backend rueda for all devices"
        )
    print(f"rueda: compiling the backend per device into {library.parent}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)  # what was left by one that did not get to its end
    folder.mkdir()
    try:
        module = cpp_extension.load(
            name, [str(SOURCE)], extra_cflags=list(FLAGS), build_directory=str(folder)
        )
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        raise InitializationError(f"{WHY}, but it does not compile: {error}") from error
    (folder / library.name).replace(library)
    shutil.rmtree(folder, ignore_errors=True)
    return cast(ModuleType, module)
