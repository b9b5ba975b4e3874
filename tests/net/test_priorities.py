"""A link that large tensors fill: a more urgent tensor overtakes them, and no bit changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab.fixture import MakeLab
from .launching import Launcher

pytest.importorskip("rueda._native")

# Counts bytes, not time: what this host sends while the urgent tensor is in flight.
PROGRAM = """
    import sys, time
    import numpy as np
    import rueda
    # Each tensor on its own: with the three in one batch, there is room for another beside it.
    rueda.init(fusion_threshold=1 << 20)
    size = 2 << 20
    sent = lambda: int(pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
    rng = np.random.default_rng(rank)
    larges = [rng.random(size, np.float32) for _ in range(3)]
    small = rng.random(10_000, np.float32)
    sums = {}
    for priority in (0, 5, 0, 5):  # negotiated, then replayed where it can be
        arrays = [large.copy() for large in larges] + [small.copy()]
        rueda.barrier()
        begun = sent()
        handles = [
            rueda.allreduce_async_(array, name=f"large.{priority}.{number}", op=rueda.Sum)
            for number, array in enumerate(arrays[:3])
        ]
        while sent() - begun < 1 << 20:
            time.sleep(0.001)
        before = sent()
        urgent = rueda.allreduce_async_(
            arrays[3], name=f"small.{priority}", op=rueda.Sum, priority=priority
        )
        urgent.result()
        told = sent() - before
        for handle in handles:
            handle.result()
        if priority not in sums:
            sums[priority] = arrays
        for one, other in zip(sums[0], arrays):
            assert one.tobytes() == other.tobytes()
        if rueda.local_rank() == 0:
            print("sent", priority, told, flush=True)
        rueda.barrier()
    print("done", rank, flush=True)
"""


@pytest.mark.parametrize("hosts", ["h0:1,h1:1", "h0:2,h1:2"])
def test_an_urgent_tensor_overtakes_large_ones(
    make_lab: MakeLab, tmp_path: Path, hosts: str
) -> None:
    lab = make_lab(2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    ran = launcher.run("-H", hosts, "--no-prefix", *launcher.program(PROGRAM))
    assert ran.code == 0, ran.err
    lines = [line.split()[1:] for line in ran.out.splitlines() if line.startswith("sent")]
    urgent = [int(told) for priority, told in lines if priority == "5"]
    usual = [int(told) for priority, told in lines if priority == "0"]
    # Data already handed to the kernel cannot be overtaken.
    assert 4 * sum(urgent) < 3 * sum(usual), lines
