"""One replica group of torchft's, which trains what text_rank.py does by torchft's own DiLoCo over gloo.

    python text_torchft_rank.py PERIOD,FRAGMENTS,DELAY,MIXING SETTINGS REPLICA REPLICAS

SETTINGS as for text_rank.py. Replica 0 runs the lighthouse too; all find it, and each other, on host h0. Prints what
text_rank.py prints.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from text_rank import Settings, Transformer, train
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft._torchft import LighthouseServer
from torchft.local_sgd import DiLoCo

FIRST = "h0"
LIGHTHOUSE, STORE = 29510, 29511  # ports; the lab's hosts have nothing else on theirs
TIMEOUT = timedelta(seconds=60)
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def halves(model: Transformer, count: int) -> list[nn.Module]:
    """The model in one fragment or two, which together have all of its parameters."""
    first, second = model.layers.layers
    position = nn.ParameterList([model.position])
    parts: list[nn.Module] = [
        nn.ModuleList([model.embedding, position, first]),
        nn.ModuleList([second, model.output]),
    ]
    return parts if count == 2 else [nn.ModuleList(parts)]


class Replica:
    """A manager, and what it manages."""

    def __init__(self, spec: str, replica: int, replicas: int) -> None:
        period, fragments, delay, mixing = spec.split(",")
        self.period, self.fragments, self.delay = int(period), int(fragments), int(delay)
        self.mixing = float(mixing)
        self.count = replicas
        host = socket.gethostname()
        if replica == 0:
            self.lighthouse = LighthouseServer(bind=f"[::]:{LIGHTHOUSE}", min_replicas=replicas)
        self.common = TCPStore(FIRST, STORE, is_master=replica == 0, wait_for_workers=False)
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.meet("the lighthouse is up")
        self.manager = Manager(
            pg=ProcessGroupGloo(TIMEOUT),
            load_state_dict=None,
            state_dict=None,
            min_replica_size=replicas,
            use_async_quorum=False,
            timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=host,
            store_port=self.store.port,
            lighthouse_addr=f"http://{FIRST}:{LIGHTHOUSE}",
            replica_id=f"replica_{replica}",
            hostname=host,
            init_sync=False,  # equal seeds
        )

    def meet(self, what: str) -> None:
        """Returns once all have come to it."""
        self.common.add(what, 1)
        while self.common.add(what, 0) < self.count:
            time.sleep(0.02)

    def wrap(self, model: Transformer, optimizer: torch.optim.Optimizer) -> Any:
        """The optimizer, whose steps are torchft's now."""
        parts = halves(model, self.fragments)
        DiLoCo(
            self.manager,
            parts,
            optimizer,
            [torch.optim.SGD(part.parameters(), **OUTER) for part in parts],
            self.period,
            fragment_sync_delay=self.delay,
            fragment_update_alpha=self.mixing,
        ).__enter__()
        return optimizer


def main() -> None:
    """The command."""
    spec, settings = sys.argv[1], Settings.parse(sys.argv[2])
    replica, replicas = int(sys.argv[3]), int(sys.argv[4])
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    own = Replica(spec, replica, replicas)
    found = train(replica, settings, own.wrap, lambda: own.meet("ready"))
    expected = settings.steps // own.period * own.fragments
    if own.manager.current_step() != expected:
        raise RuntimeError(
            f"{own.manager.current_step()} outer steps were committed, not {expected}"
        )
    print("measured", json.dumps(found), flush=True)
    own.meet("done")
    own.manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
