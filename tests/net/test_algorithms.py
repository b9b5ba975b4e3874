"""Algorithms between hosts, over their links: every rank gets the same, in as many messages as they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .lab.fixture import MakeLab
from .launching import Launcher

pytest.importorskip("rueda._native")

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
    # Numbers of rows, since there are no rows: for each pair, or for each host and rank there. For
    # the only rank of the last host the first ranks of the others carry.
    for rank, counts in sent.items():
        gathered = {0: 2, 1: 1, 2: 2, 3: 1, 4: 4}[rank]
        assert counts[0] == (4 if algorithm == "pairwise" else gathered)
