"""A torchft replica group that does what tests/chaos/rank.py does with Rueda: checked allreduces in a loop.

Each step is a quorum, an allreduce and a vote, as in torchft's training loop. It writes the same diary.

    torchft_rank.py FOLDER PHASE SEED PROCESS RANKS BACKEND TIMEOUT
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore
from torchft import Manager, ProcessGroupGloo

SIZES = {
    "idle": (1, 1000),
    "small": (1, 33, 1000),
    "large": (1 << 20, 3 << 20),
    "mixed": (1, 1000, 1 << 18, 1 << 20),
}
PAUSES = {"idle": 0.01, "small": 0.0, "large": 0.0, "mixed": 0.002}


def main() -> None:
    """Runs until the file `end` is there."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    folder, phase, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    process, ranks, backend, timeout = (
        int(sys.argv[4]),
        int(sys.argv[5]),
        sys.argv[6],
        float(sys.argv[7]),
    )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=timeout)
    if backend == "rueda":
        from rueda.torch.torchft import ProcessGroupRueda

        group = ProcessGroupRueda(timeout=limit)
    else:
        group = ProcessGroupGloo(timeout=limit)
    manager = Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=lambda state: None,
        state_dict=lambda: {"nothing": torch.zeros(1)},
        use_async_quorum=False,
        replica_id=f"replica{process}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=limit,
        quorum_timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=60),
    )
    diary = os.open(folder / f"rank{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(event: str, **what: object) -> None:
        line = json.dumps({"at": time.monotonic(), "event": event, **what})
        os.write(diary, line.encode() + b"\n")

    # All are there before the first quorum, in which the first ones would otherwise be alone.
    (folder / f"ready{process}").touch()
    while len(list(folder.glob("ready*"))) < ranks:
        time.sleep(0.01)
    # Born with the first whole step of all: a quorum alone is not the same for those that heal in it.
    participants = 0
    is_born = False
    right = True
    while True:
        manager.start_quorum()
        step = manager.current_step()
        if manager.num_participants() != participants:
            participants = manager.num_participants()
            right = False
        last = (folder / "end").exists()
        rng = random.Random(seed * 1000003 + step)
        count = rng.choice(SIZES[phase])
        tensor = torch.full((count if right else 1000,), 1.0 + 1e6 * last)
        manager.allreduce(tensor).wait()
        went = manager.should_commit()
        if not went:
            right = False
            if is_born:
                note("broken", step=step)
            continue
        got = float(tensor[0])
        assert bool((tensor == got).all()), "the elements differ"
        if got > 10:  # the average of ones, but for the end
            break
        assert abs(got - 1.0) < 1e-6, got
        if not is_born:
            is_born = right = participants == ranks
            if is_born:
                note("born", process=process, pid=os.getpid())
        elif not right:
            right = True
            note("right", size=participants, step=step)
        time.sleep(PAUSES[phase] * rng.random())
    note("end", size=manager.num_participants(), step=manager.current_step())
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
