"""What a checkpoint adds to training: Rueda's beside torch.save on rank 0 and beside torch's own asynchronous one.

    rueda run --no-mpi -np 2 python benchmarks/checkpoint/measure.py [--folder F] [--rounds N] [--megabytes M]

A model of about 33 MB and Adam's state of it, 100 MB together, are trained with DistributedOptimizer. A turn of a
contender is a number of steps, before the third of which it saves; then it waits until the checkpoint is on the disk.
Contenders take turns, in another order each round:

    none        no checkpoint
    torch.save  rank 0 saves and calls fsync, the others wait at a barrier
    dcp         torch.distributed.checkpoint.async_save of rank 0's state, in the process of that rank alone (no_dist)
    rueda       rueda.checkpoint.save

Columns are medians over the rounds, of the slowest rank each: how long the call holds its caller, and the
processor time of the calling thread in it, which other programs on the machine hardly change; a step while it is being
written, which is every step that ends before it is complete, beside a step of `none`; how long until it is complete;
how many bytes the rank with most of them writes; and how much longer a turn is than that of `none`, waiting for the
disk included, as the median over rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rueda
import rueda.checkpoint
import rueda.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

STEPS = 12  # of a turn
AT = 2  # the step before which it is saved
Wait = Callable[[], None]
IsDone = Callable[[], bool]


@dataclass
class Course:
    """What is trained."""

    model: nn.Module
    optimizer: Any
    folder: Path
    number: int = 0
    inputs: torch.Tensor = field(default_factory=lambda: torch.randn(16, 1024))

    def step(self) -> None:
        """One step of training."""
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """As torch's functions take it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def next_folder(self) -> Path:
        """Where nothing is yet."""
        self.number += 1
        return self.folder / str(self.number)


def course_of(folder: Path, megabytes: float) -> Course:
    """Of parameters and Adam's two states of each."""
    torch.manual_seed(1)
    width = 1024
    layers = max(1, round(megabytes * 1e6 / 3 / (4 * width * (width + 1))))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    distributed = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
    rueda.torch.broadcast_parameters(model.state_dict())
    return Course(model, distributed, folder)


def save_nothing(course: Course) -> tuple[IsDone, Wait]:
    """The steps alone."""
    return lambda: True, lambda: None


def save_on_rank_0(course: Course) -> tuple[IsDone, Wait]:
    """What most programs do."""
    if rueda.rank() == 0:
        with open(course.next_folder().with_suffix(".pt"), "wb") as file:
            torch.save(course.state(), file)
            file.flush()
            os.fsync(file.fileno())
    rueda.barrier()
    return lambda: True, lambda: None


def save_by_torch(course: Course) -> tuple[IsDone, Wait]:
    """A thread of rank 0 writes, from a copy."""
    if rueda.rank() != 0:
        return lambda: True, lambda: None
    future: Any = dcp.async_save(course.state(), checkpoint_id=course.next_folder(), no_dist=True)
    return future.done, lambda: future.result()


def save_by_rueda(course: Course) -> tuple[IsDone, Wait]:
    """A thread of each rank writes, from a copy of its part."""
    parts = {"model": course.model, "optimizer": course.optimizer}
    pending = rueda.checkpoint.save(course.folder, 0, **parts)

    def wait() -> None:
        pending.result()

    return pending.done, wait


CONTENDERS: dict[str, Callable[[Course], tuple[IsDone, Wait]]] = {
    "none": save_nothing,
    "torch.save": save_on_rank_0,
    "dcp": save_by_torch,
    "rueda": save_by_rueda,
}


@dataclass
class Turn:
    """In seconds and bytes, of the slowest rank."""

    held: float
    held_cpu: float
    step_beside: float  # the median of the steps while something was written; NaN without
    complete: float
    written: float
    whole: float


def take_turn(course: Course, name: str) -> Turn:
    """All steps, and the checkpoint on the disk."""
    rueda.barrier()
    began = time.perf_counter()
    held = held_cpu = complete = 0.0
    beside: list[float] = []
    before = written_bytes()
    is_done: IsDone = lambda: True  # noqa: E731
    wait: Wait = lambda: None  # noqa: E731
    saved = began
    for number in range(STEPS):
        if number == AT:
            saved, used = time.perf_counter(), time.thread_time()
            is_done, wait = CONTENDERS[name](course)
            held, held_cpu = time.perf_counter() - saved, time.thread_time() - used
        at = time.perf_counter()
        course.step()
        if (number >= AT and not is_done()) or (name == "none" and number >= AT):
            beside.append(time.perf_counter() - at)
        elif number >= AT and not complete:
            complete = time.perf_counter() - saved
    wait()
    complete = complete or time.perf_counter() - saved
    whole = time.perf_counter() - began
    own = [held, held_cpu, float(np.median(beside)) if beside else float("nan"), complete]
    own += [written_bytes() - before, whole]
    every = np.array(rueda.allgather_object(own))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no rank has steps beside
        most = np.nanmax(every, axis=0)
    shutil.rmtree(course.folder, ignore_errors=True) if rueda.rank() == 0 else None
    rueda.barrier()
    course.folder.mkdir(parents=True, exist_ok=True)
    return Turn(*(float(each) for each in most))


def written_bytes() -> int:
    """That this process has written into files."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "wchar":
            return int(value)
    raise RuntimeError("/proc/self/io tells no wchar")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; temporary")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=float, default=100, help="of state")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    rueda.init()
    torch.set_num_threads(1)
    base = tempfile.mkdtemp(dir=options.folder) if rueda.rank() == 0 else None
    folder = Path(rueda.broadcast_object(base)) / "checkpoints"
    folder.mkdir(exist_ok=True)
    course = course_of(folder, options.megabytes)
    for _ in range(3):
        course.step()
    state = course.state()["optimizer"]["state"].values()
    size = sum(each.nbytes for each in course.model.state_dict().values())
    size += sum(each.nbytes for part in state for each in part.values())
    turns: dict[str, list[Turn]] = {name: [] for name in CONTENDERS}
    for name in CONTENDERS:
        take_turn(course, name)  # not counted: memory is mapped, and a world formed
    for number in range(options.rounds):
        order = list(CONTENDERS)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            turns[name].append(take_turn(course, name))
    if rueda.rank() == 0:
        shutil.rmtree(folder.parent)
        print_table(turns, size)
    rueda.shutdown()


def print_table(turns: dict[str, list[Turn]], size: int) -> None:
    """In Markdown."""
    print(f"{size / 1e6:.1f} MB of state, {rueda.size()} ranks, {len(turns['none'])} rounds")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.release()}")
    print(
        "| | held, ms | of it CPU | step beside, ms | complete, ms | most bytes, MB | turn, ms more |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, each in turns.items():
        keys = ("held", "held_cpu", "complete")
        held, used, complete = (1e3 * np.median([getattr(t, key) for t in each]) for key in keys)
        steps = [t.step_beside for t in each if not np.isnan(t.step_beside)]
        step = f"{1e3 * np.median(steps):.1f}" if steps else ""
        written = np.median([turn.written for turn in each])
        more = np.median([a.whole - b.whole for a, b in zip(each, turns["none"], strict=True)])
        if name == "none":
            print(f"| {name} | | | {step} | | | |")
        else:
            print(
                f"| {name} | {held:.1f} | {used:.1f} | {step} | {complete:.0f} | {written / 1e6:.1f} "
                f"| {1e3 * more:.0f} |"
            )


if __name__ == "__main__":
    main()
