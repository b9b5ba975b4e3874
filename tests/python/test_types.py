"""mypy accepts programs that use Rueda as documented."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
import rueda

rueda.init(fusion_threshold="16M")
total = rueda.allreduce(np.ones(3), name="gradient", op=rueda.Sum)
rows, counts = rueda.alltoall(np.ones(3), splits=[3])
with rueda.server.Table("weights", 100) as table:
    table.get().result()
for step in rueda.elastic.steps(3):
    with step:
        print(step.number)


@rueda.elastic.run
def train(state: rueda.elastic.State) -> int:
    state.epoch += 1
    state.losses.append(0.5)
    state.commit()
    return int(state.epoch)


train(rueda.elastic.State(epoch=0, losses=[]))
try:
    rueda.barrier()
except rueda.PeerLostError as error:
    print(error.peer, rueda.recover().lost)
"""
# Packages other than Rueda are not followed, which would take a minute.
CONFIGURATION = """
[mypy]
strict = True
[mypy-torch.*,torchft.*,keras.*,jax.*,ray.*,dask.*,distributed.*,optuna.*,pyspark.*,optax.*]
follow_imports = skip
ignore_missing_imports = True
"""


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not there")
@pytest.mark.timeout(300)
def test_a_typed_program_is_right(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    # Rueda's own sources are checked elsewhere, and with torch's types.
    told = [line for line in ended.stdout.splitlines() if line.startswith("program.py")]
    assert told == []
