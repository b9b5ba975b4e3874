"""A training that `rueda equiv` judges: scikit-learn's digits, a small network, 120 steps of 24 images.

    rueda equiv --np 1,2,4 --strategy sync,local:8 --seeds 5 python benchmarks/equiv/train.py

The ranks share the images of each step. ``EQUIV_FAULT`` names a fault of `faults.py`, ``EQUIV_HOW`` another way to do
the same.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F
from faults import FAULTS, Fault
from images import load
from rueda.horovod.torch import SyncBatchNorm
from torch import nn

GLOBAL_BATCH = 24  # of 1, 2, 3 and 4 ranks


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["mlp", "bn"], default="mlp", help="bn: over all ranks")
    parser.add_argument("--optimizer", choices=["sgd", "plain-sgd", "adam"], default="sgd")
    parser.add_argument("--clip", type=float, help="the norm of gradients")
    parser.add_argument("--codec", help="compresses gradients, with error feedback")
    parser.add_argument("--steps", type=int, default=120)
    return parser.parse_args()


def model_of(kind: str, fault: Fault) -> nn.Module:
    """64-32-10 with GELU."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    norm = nn.BatchNorm1d(32) if fault.local_statistics else SyncBatchNorm(32)
    return nn.Sequential(nn.Linear(64, 32), norm, nn.GELU(), nn.Linear(32, 10))


def optimizer_of(options: argparse.Namespace, model: nn.Module, fault: Fault) -> Any:
    """One process's."""
    if options.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=fault.learning_rate(0.002))
    momentum = 0.9 if options.optimizer == "sgd" else 0.0
    return torch.optim.SGD(model.parameters(), lr=fault.learning_rate(0.05), momentum=momentum)


def distributed(
    options: argparse.Namespace, model: nn.Module, plain: Any, how: str, fault: Fault, passes: int
) -> Any:
    """The optimizer of all ranks: that of wrap(), or DistributedOptimizer where it has what is needed."""
    if how != "distributed" and passes == 1 and not fault.needs_distributed and not options.codec:
        return rueda.wrap(model, plain)
    compression = fault.compression
    if options.codec:
        feedback = True if fault.error_feedback is None else fault.error_feedback
        compression = rueda.CompressionPolicy(
            {"*": options.codec}, min_elements=1, error_feedback=feedback
        )
    if not fault.begins_apart:
        rueda.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = rueda.DistributedOptimizer(
        plain, model.named_parameters(), compression, backward_passes_per_step=passes
    )
    rueda.equiv.watch(model)
    return optimizer


def main() -> None:
    """One run."""
    options = parsed()
    how = os.environ.get("EQUIV_HOW", "")
    rueda.init()
    torch.set_num_threads(1)
    seed = rueda.equiv.seed()
    fault = FAULTS[os.environ.get("EQUIV_FAULT", "")](rueda.rank(), rueda.size())
    torch.manual_seed(seed + (1000 * rueda.rank() if fault.begins_apart else 0))
    x, y, test_x, test_y = load()
    model = model_of(options.model, fault)
    fault.attach(model)
    passes = 2 if how == "accumulate" else fault.passes
    plain = optimizer_of(options, model, fault)
    optimizer = distributed(options, model, plain, how, fault, passes)
    rank, size = fault.place()

    shuffle = np.random.default_rng(seed)
    order = np.concatenate([shuffle.permutation(len(y)) for _ in range(options.steps // 59 + 1)])
    batches = order[: options.steps * GLOBAL_BATCH].reshape(-1, GLOBAL_BATCH)
    for step in range(1, options.steps + 1):
        if step == options.steps // 2 + fault.late_schedule:
            for group in optimizer.param_groups:
                group["lr"] *= 0.3
        batch = batches[fault.batch(step) - 1]
        own = np.array_split(batch, size)[rank] if how == "rows" else batch[rank::size]
        parts = np.array_split(fault.images(own), passes)
        optimizer.zero_grad()
        mean_loss = 0.0
        for part in parts:
            loss = F.cross_entropy(model(x[part]), y[part]) * fault.loss_weight(step)
            mean_loss += loss.item() / passes
            (loss / passes if fault.divides_passes else loss).backward()
        if options.clip is not None and fault.clips_too_early:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.synchronize()
        if options.clip is not None and not fault.clips_too_early:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        fault.before_update(step, model, optimizer)
        optimizer.step()
        rueda.equiv.record(loss=mean_loss)

    if hasattr(optimizer, "consolidate"):
        optimizer.consolidate()
    model.eval()
    with torch.no_grad():
        guessed = model(test_x)
    accuracy = (guessed.argmax(1) == test_y).float().mean()
    rueda.equiv.result(accuracy=accuracy, test_loss=F.cross_entropy(guessed, test_y))
    rueda.shutdown()


if __name__ == "__main__":
    main()
