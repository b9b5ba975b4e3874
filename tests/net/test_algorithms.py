"""Algorithms between hosts, over links: same results on all ranks, expected number of messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .lab.fixture import MakeLab
from .launching import Launcher

pytest.importorskip("rueda._native")

REDUCE = """
    import numpy as np
    import rueda
    rueda.init()
    for count in (1, 2, 1021, 100_003, 600_000):
        values = np.random.default_rng(rank).random(count, np.float32)
        total = rueda.allreduce(values, name=str(count), op=rueda.Sum)
        others = rueda.allgather(values[None], name=f"all {count}")
        assert np.allclose(total, others.sum(axis=0), rtol=1e-5)
        assert len({each.tobytes() for each in rueda.allgather(total[None], name=f"sum {count}")}) == 1
    print("done", rank, rueda.options()["algorithm"], flush=True)
"""

EXCHANGE = """
    import json
    import numpy as np
    import rueda
    rueda.init()
    def block(sender, receiver, scale):
        rows = (sender * 3 + receiver * 5) % 4 * scale
        return np.full((rows, 3), sender * 100 + receiver, np.int16)
    def exchange(scale):
        blocks = [block(rank, other, scale) for other in range(size)]
        splits = [len(each) for each in blocks]
        received, counts = rueda.alltoall(np.concatenate(blocks), splits=splits, name=str(scale))
        expected = [block(other, rank, scale) for other in range(size)]
        assert list(counts) == [len(each) for each in expected]
        assert np.array_equal(received, np.concatenate(expected))
        return rueda.metrics()["alltoall_messages_sent"]
    sent = [exchange(scale) for scale in (0, 1, 1000, 100_000)]
    print("sent", json.dumps([rank, sent]), flush=True)
"""


def test_two_trees_reduce(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(5)
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    hosts = ",".join(f"h{host}:1" for host in range(5))
    ran = launcher.run(
        "-H", hosts, "--no-prefix", *launcher.program(REDUCE), RUEDA_ALGORITHM="tree"
    )
    assert ran.code == 0, ran.err
    assert ran.out.count("tree:0-") == 5


@pytest.mark.parametrize("algorithm", ["auto", "gathered", "pairwise"])
def test_hosts_exchange(make_lab: MakeLab, tmp_path: Path, algorithm: str) -> None:
    lab = make_lab(3)
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    ran = launcher.run(
        *("-H", "h0:2,h1:2,h2:1", "--no-prefix"),
        *launcher.program(EXCHANGE),
        RUEDA_ALGORITHM=algorithm,
    )
    assert ran.code == 0, ran.err
    lines = [line.removeprefix("sent ") for line in ran.out.splitlines() if "sent" in line]
    sent = dict(json.loads(line) for line in lines)
    assert len(sent) == 5
    # The arrays have no rows, so only row counts are sent: one message for each pair of ranks, or
    # for each host and local rank. The first ranks of the other hosts relay for the only rank of
    # the last host.
    for rank, counts in sent.items():
        gathered = {0: 2, 1: 1, 2: 2, 3: 1, 4: 4}[rank]
        assert counts[0] == (4 if algorithm == "pairwise" else gathered)
