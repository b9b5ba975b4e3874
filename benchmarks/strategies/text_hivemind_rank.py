"""One peer of hivemind's, which trains what text_rank.py does by local steps and averages over the peers.

    python text_hivemind_rank.py PERIOD SETTINGS PEER PEERS

SETTINGS as for text_rank.py. hivemind averages parameters in the background whenever all peers together have trained on
as many texts as PERIOD steps of all have. Peer 0 begins the hash table, which the others find on host h0. Prints what
text_rank.py prints; the models are not made one at the end, so the loss is that of each peer's own.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import hivemind
import torch
from hivemind.compression import Uniform8BitQuantization
from text_rank import Settings, Transformer, train
from torch.distributed import TCPStore

FIRST = "h0"
STORE = 29511  # a port; the lab's hosts have nothing else on theirs
MATCHMAKING = 2.0  # seconds in which peers look for each other


class Peer:
    """A node of the hash table, and the optimizer over it."""

    def __init__(self, period: int, settings: Settings, peer: int, peers: int) -> None:
        self.count = peers
        self.settings = settings
        self.period = period
        self.store = TCPStore(
            FIRST, STORE, is_master=peer == 0, wait_for_workers=False, timeout=timedelta(minutes=2)
        )
        own = f"/ip4/{socket.gethostbyname(socket.gethostname())}/tcp/0"
        known = [] if peer == 0 else json.loads(self.store.get("peers"))
        self.table = hivemind.DHT(host_maddrs=[own], initial_peers=known, start=True)
        if peer == 0:
            self.store.set("peers", json.dumps([str(at) for at in self.table.get_visible_maddrs()]))

    def meet(self, what: str) -> None:
        """Returns once all have come to it."""
        self.store.add(what, 1)
        while self.store.add(what, 0) < self.count:
            time.sleep(0.02)

    def wrap(self, model: Transformer, optimizer: torch.optim.Optimizer) -> Any:
        """The optimizer, whose steps are hivemind's now."""
        self.optimizer = hivemind.Optimizer(
            dht=self.table,
            run_id="text",
            optimizer=optimizer,
            batch_size_per_step=self.settings.batch,
            target_batch_size=self.settings.batch * self.period * self.count,
            use_local_updates=True,
            matchmaking_time=MATCHMAKING,
            averaging_timeout=30.0,
            state_averaging_compression=Uniform8BitQuantization(),
        )
        return self.optimizer


def main() -> None:
    """The command."""
    period, settings = int(sys.argv[1]), Settings.parse(sys.argv[2])
    peer, peers = int(sys.argv[3]), int(sys.argv[4])
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    own = Peer(period, settings, peer, peers)
    found = train(peer, settings, own.wrap, lambda: own.meet("ready"))
    found["rounds"] = own.optimizer.local_epoch
    print("measured", json.dumps(found), flush=True)
    own.meet("done")
    own.optimizer.shutdown()
    own.table.shutdown()
    os._exit(0)  # threads of its own would go on


if __name__ == "__main__":
    main()
