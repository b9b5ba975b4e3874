"""The program of each rank: `python -m rueda.bench.train.worker '{...}'`, under `rueda run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import rueda.torch as rueda
import torch

from .contenders import CONTENDERS, OF_TORCH, open_gloo
from .gradients import measure_gradients
from .measure import measure_training
from .models import trainings


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Measures all requested models. Collective; returns the same on every rank."""
    notes: list[str] = []
    why_no_gloo = open_gloo(order["store"])
    if why_no_gloo:
        notes.append(f"no DistributedDataParallel: {why_no_gloo}")
    names = [name for name in CONTENDERS if name not in OF_TORCH or not why_no_gloo]
    rounds, steps, bucket_bytes = order["rounds"], order["steps"], order["bucket_bytes"]
    known = trainings(rueda.rank())
    models: dict[str, Any] = {}
    for model in order["models"]:
        if model == "gradients":
            models[model], more = measure_gradients(rounds, steps, bucket_bytes, not why_no_gloo)
            notes += more
        else:
            models[model] = measure_training(known[model], names, rounds, steps, bucket_bytes)
    return {
        "schema": 1,
        "ranks": rueda.size(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transport": rueda.options()["transport"],
        "bucket_bytes": bucket_bytes,
        "notes": notes,
        "models": models,
    }


def main() -> None:
    """Measures, and writes the result on rank 0."""
    order = json.loads(sys.argv[1])
    rueda.init()
    result = measure(order)
    if rueda.rank() == 0:
        Path(order["result"]).write_text(json.dumps(result))
    rueda.barrier()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    rueda.shutdown()


if __name__ == "__main__":
    main()
