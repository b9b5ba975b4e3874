"""How much of an epoch is spent waiting for input, with a DataLoader alone and with PrefetchLoader.

Samples are files of random bytes, dropped from the page cache before each epoch, or a pretended disk that takes a while
to answer: to several requests at once, or to one after the other. A step sleeps in the place of training.

    python benchmarks/report/input.py [--files 400] [--train 30]
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from rueda.torch import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

BATCH = 8
SIZE = 256 << 10  # bytes of a file
ANSWER = 0.01  # seconds of the pretended disk


class Files(Dataset[torch.Tensor]):
    """Of a folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths = [folder / f"{number}" for number in range(count)]
        data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
        for number, path in enumerate(self.paths):
            path.write_bytes(np.roll(data, number).tobytes())

    def forget(self) -> None:
        """Has the kernel read them anew."""
        for path in self.paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=torch.uint8)


class Distant(Dataset[torch.Tensor]):
    """A disk that takes ANSWER for each sample, of several at once where it can."""

    def __init__(self, count: int, at_once: int) -> None:
        self.count = count
        self.arms = threading.Semaphore(at_once)

    def forget(self) -> None:
        """Nothing is remembered."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.count:
            raise IndexError(index)
        with self.arms:
            time.sleep(ANSWER)
        return torch.zeros(16)


def epoch(batches: object, train: float) -> float:
    """The share of it that was waited, the first batch apart."""
    waited = 0.0
    begin = asked = time.perf_counter()
    for number, _ in enumerate(batches):  # type: ignore[arg-type, var-annotated]
        came = time.perf_counter()
        if number == 0:
            begin = came
        else:
            waited += came - asked
        time.sleep(train)
        asked = time.perf_counter()
    return waited / (asked - begin)


@click.command(help=__doc__)
@click.option("--files", default=400, show_default=True)
@click.option("--train", default=30.0, show_default=True, help="Milliseconds of a step.")
def main(files: int, train: float) -> None:
    """The table of docs/report.md."""
    ways: dict[str, Callable[[DataLoader[torch.Tensor]], object]] = {
        "DataLoader": lambda loader: loader,
        "PrefetchLoader": PrefetchLoader,
        "PrefetchLoader, threads=8": lambda loader: PrefetchLoader(loader, depth=2, threads=8),
    }
    click.echo(f"| source | {' | '.join(ways)} | warning |")
    click.echo(f"| --- |{' --- |' * (len(ways) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        sources = {
            f"files of {SIZE >> 10} KiB": Files(Path(folder), files),
            "10 ms for each sample, 8 at once": Distant(files, 8),
            "10 ms for each sample, one at a time": Distant(files, 1),
        }
        for name, source in sources.items():
            source.forget()
            shares = []
            warned = []
            # What lies below this machine's disk, if anything, has seen them all.
            for _ in DataLoader(source, batch_size=BATCH):
                pass
            for how, way in ways.items():
                source.forget()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    batches = way(DataLoader(source, batch_size=BATCH))
                    shares.append(f"{epoch(batches, train / 1000):.1%}")
                if caught:
                    warned.append(how.partition(", ")[2] or "one thread")
            click.echo(f"| {name} | {' | '.join(shares)} | {', '.join(warned) or 'no'} |")


if __name__ == "__main__":
    main()
