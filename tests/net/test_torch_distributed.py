"""torch.distributed's backend on several hosts under torchrun: without MPI and Rueda's launcher."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forked import launched

from .lab import Lab
from .lab.fixture import MakeLab

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

PROGRAM = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    import rueda
    import rueda.torch.c10d
    for world in range(2):
        dist.init_process_group("rueda")
        assert "RUEDA_RENDEZVOUS_LISTENER" not in os.environ
        assert (rueda.size(), rueda.local_size()) == (4, 2)
        rank = dist.get_rank()
        for name, ranks in (("world", [0, 1, 2, 3]), ("host", [2, 3]), ("across", [1, 2])):
            group = dist.new_group(ranks)
            if rank in ranks:
                total = torch.full((100_003,), float(rank))
                dist.all_reduce(total, group=group)
                assert torch.all(total == sum(ranks)), (name, total)
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.write(f"done {rank}\\n")  # in one piece: the ranks of a host share a pipe
    sys.stdout.flush()
"""


def torchrun(lab: Lab, folder: Path, **variables: str) -> tuple[list[int], str]:
    """Runs two ranks on each of two hosts; returns each torchrun's exit code and output."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    settings = [f"{name}={value}" for name, value in {"OMP_NUM_THREADS": "1", **variables}.items()]
    started = [
        lab.start(
            host,
            *("env", *settings, sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(number)),
            *("--master-addr", lab.address("h0"), "--master-port", "29511"),
            *("--no-python", *launched(folder / "program.py")),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, host in enumerate(("h0", "h1"))
    ]
    try:
        written = "".join(process.communicate(timeout=150)[0] for process in started)
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], written


def test_torchrun_on_two_hosts(make_lab: MakeLab, tmp_path: Path) -> None:
    codes, written = torchrun(make_lab(2), tmp_path)
    done = sorted(int(rank) for rank in re.findall(r"^done (\d+)", written, re.MULTILINE))
    assert (codes, done) == ([0, 0], [0, 1, 2, 3]), written


def test_an_interface_that_is_none_is_named_on_all_ranks(make_lab: MakeLab, tmp_path: Path) -> None:
    codes, written = torchrun(make_lab(2), tmp_path, RUEDA_INTERFACE="eth7")
    assert 0 not in codes
    assert "rank 0 cannot serve the ranks of other hosts" in written
    assert "'eth7' is neither a network interface nor an address of this host" in written
