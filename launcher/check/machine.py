"""The machine: processors, shared memory, and what the kernel permits."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from ..cores import cpu_quota, usable_cores, usable_cpus
from .row import Row, missing
from .shared_object import probe

# Those that the reductions can make use of, as /proc/cpuinfo names them.
_INSTRUCTION_SETS = (
    "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16",
    "asimd", "asimdhp", "bf16", "sve", "sve2",
)  # fmt: skip

# Reads memory of its parent, which is no descendant, as ranks are none of each other.
_READ_PARENT = """
import ctypes, os, sys
class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here = ctypes.create_string_buffer(8)
local, remote = Span(ctypes.addressof(here), 8), Span(int(sys.argv[1]), 8)
libc = ctypes.CDLL(None, use_errno=True)
got = libc.process_vm_readv(os.getppid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
answer("" if got == 8 else os.strerror(ctypes.get_errno()))
"""


def cpu_row() -> Row:
    """Cores that this process may use."""
    cores, threads, total = usable_cores(), usable_cpus(), os.cpu_count() or 0
    note = f"{threads} of {total} hardware threads may be used"
    if (quota := cpu_quota()) is not None:
        note += f", within a quota of {quota:g} CPU{'s' if quota != 1 else ''}"
    return Row("CPU cores", True, str(cores), note=note)


def instruction_sets_row() -> Row:
    """Vector instructions."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError as error:
        return missing("instruction sets", str(error))
    flags: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            flags = set(value.split())
            break
    known = [name for name in _INSTRUCTION_SETS if name in flags]
    return Row("instruction sets", True, platform.machine(), note=" ".join(known) or "none known")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def shared_memory_row() -> Row:
    """/dev/shm."""
    if not os.path.isdir("/dev/shm"):
        return missing("/dev/shm", "it is not there", "mount a tmpfs at /dev/shm")
    usage = shutil.disk_usage("/dev/shm")
    if not os.access("/dev/shm", os.W_OK):
        return missing("/dev/shm", "it is not writable", "chmod 1777 /dev/shm", "/dev/shm")
    note = f"{_gib(usage.free)} free"
    if usage.total < 2**30:
        note += "; small: with Docker, --shm-size=8g gives more"
    return Row("/dev/shm", True, _gib(usage.total), "/dev/shm", note)


def vm_read_row() -> Row:
    """Whether ranks may read each other's memory."""
    import ctypes

    buffer = ctypes.create_string_buffer(b"readable")
    try:
        refusal = str(probe(_READ_PARENT, str(ctypes.addressof(buffer))))
    except (OSError, AttributeError) as error:
        refusal = str(error)
    if not refusal:
        return Row("process_vm_readv", True, note="ranks of one user may read each other's memory")
    return missing(
        "process_vm_readv",
        refusal,
        "sysctl kernel.yama.ptrace_scope=0; in a container --cap-add=SYS_PTRACE",
    )


def memfd_row() -> Row:
    """Anonymous shared memory."""
    try:
        os.close(os.memfd_create("rueda-check"))
    except OSError as error:
        return missing(
            "memfd",
            str(error),
            "without it ranks of one host share no memory: allow memfd_create() in the container's seccomp profile",
        )
    return Row("memfd", True)
