"""One replica group of measure.py; the last line that it prints is what it has measured, in JSON, in milliseconds."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import click
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.process_group import ProcessGroup

SIZES = {"1 KiB": 1 << 10, "16 KiB": 16 << 10, "256 KiB": 256 << 10, "1 MiB": 1 << 20}
SIZES |= {"4 MiB": 4 << 20, "16 MiB": 16 << 20, "64 MiB": 64 << 20}
WARM_UP = 5


class Net(nn.Module):
    """That of torchft's train_ddp.py."""

    def __init__(self, useless_mb: int) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.useless = nn.Embedding(useless_mb * 1_000_000 // 10 // 4, 10)
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = torch.flatten(self.cnn(pictures), 1)
        scores: torch.Tensor = self.classifier(features)
        return scores + self.useless.weight[0]


def timed(
    seconds: float, step: Callable[[], object], replicas_agree: Callable[[float], float]
) -> float:
    """Median milliseconds of a step; as many as replica 0 expects to take so many seconds."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    taken = (time.perf_counter() - began) / WARM_UP
    times = []
    for _ in range(max(5, round(replicas_agree(seconds / taken)))):
        began = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


class Replica:
    """A manager and what it manages."""

    def __init__(self, contender: str, replica: int, replicas: int) -> None:
        timeout = timedelta(seconds=60)
        self.group: ProcessGroup
        if contender == "gloo":
            self.group = ProcessGroupGloo(timeout)
        else:
            from rueda.torch.torchft import ProcessGroupRueda

            self.group = ProcessGroupRueda(timeout)
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.state: dict[str, nn.Module | torch.optim.Optimizer] = {}
        self.is_first = replica == 0
        self.manager = Manager(
            pg=self.group,
            load_state_dict=self._load,
            state_dict=lambda: {name: each.state_dict() for name, each in self.state.items()},
            min_replica_size=replicas,
            replica_id=f"replica_{replica}",
            timeout=timeout,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self.store.port,
            hostname="127.0.0.1",
            init_sync=False,
        )

    def _load(self, state: dict[str, dict[str, object]]) -> None:
        for name, each in self.state.items():
            each.load_state_dict(state[name])

    def agree(self, number: float) -> float:
        """Replica 0's."""
        told = torch.tensor([number if self.is_first else 0.0], dtype=torch.float64)
        self.group.allreduce([told], dist.ReduceOp.SUM).wait()
        return told.item()

    def train(self, seconds: float, useless: int) -> dict[str, float]:
        torch.manual_seed(0)
        model = Net(useless)
        wrapped = DistributedDataParallel(self.manager, model)
        optimizer = Optimizer(self.manager, torch.optim.AdamW(model.parameters()))
        self.state = {"model": model, "optim": optimizer}
        pictures, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
        criterion = nn.CrossEntropyLoss()

        def step() -> None:
            optimizer.zero_grad()
            criterion(wrapped(pictures), labels).backward()
            optimizer.step()

        taken = timed(seconds, step, self.agree)
        committed = self.manager.current_step()
        assert committed >= WARM_UP + 5, f"only {committed} steps were committed"
        return {"ms/step": taken}

    def allreduce(self, seconds: float) -> dict[str, float]:
        self.state = {"model": nn.Linear(1, 1)}
        self.manager.start_quorum()
        self.manager.wait_quorum()
        found = {}
        for label, size in SIZES.items():
            tensor = torch.ones(size // 4)
            found[label] = timed(seconds, lambda: self.manager.allreduce(tensor).wait(), self.agree)  # noqa: B023
            assert self.manager.errored() is None
            assert tensor.eq(1).all()
        return found

    def configure(self, seconds: float, replica: int, replicas: int) -> dict[str, float]:
        """By replica 0's store: all of them come as soon as they have been told of it by an allreduce."""
        self.state = {"model": nn.Linear(1, 1)}
        self.manager.start_quorum()
        self.manager.wait_quorum()
        port = round(self.agree(self.store.port))
        number = 0

        def step() -> None:
            nonlocal number
            number += 1
            self.group.configure(f"127.0.0.1:{port}/again/{number}", "", replica, replicas)
            self.group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()

        return {"ms/configure": timed(seconds, step, self.agree)}


@click.command()
@click.argument("contender")
@click.argument("task")
@click.option("--replica", type=int)
@click.option("--replicas", type=int)
@click.option("--useless", type=int)
@click.option("--seconds", type=float)
def main(
    contender: str, task: str, replica: int, replicas: int, useless: int, seconds: float
) -> None:
    """Runs one of the tasks."""
    own = Replica(contender, replica, replicas)
    if task == "train":
        found = own.train(seconds, useless)
    elif task == "allreduce":
        found = own.allreduce(seconds)
    else:
        found = own.configure(seconds, replica, replicas)
    own.agree(0.0)  # none leaves before the others have finished
    print(json.dumps(found), flush=True)
    own.manager.shutdown(wait=False)
    own.group.shutdown()


if __name__ == "__main__":
    main()
