"""The files in which ranks of a run leave their records, and how they are read.

Of rank R: ``rankR.json`` says which tensors there are, and how many ranks the world had when the record began; files of
earlier versions lack the latter. ``rankR.steps`` has a row of four float64 for each step, and
``rankR.states`` one for each step of which the state was recorded: those four and, for each tensor, its hash (whose 64
bits take the place of a float64), its norm and its sketch (`sketch.py`). ``rankR.metrics`` has a line of JSON for each
metric. ``rankR.end`` has the last state, and ``rankR.ended.json`` comes last: what the script has asked for.

A step without a loss has NaN there. A loss that is NaN itself has the bits of :data:`NAN_LOSS`, as R tells NA from NaN.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

__all__ = [
    "NAN_LOSS",
    "Layout",
    "RankRecord",
    "RecordError",
    "Writer",
    "is_missing",
    "loss_cell",
    "read_rank",
    "recorded_size",
]

Array = npt.NDArray[np.float64]
# As `sketch.py` makes them.
MAX_SKETCH = 32
_NAN_LOSS_BITS = 0x7FF8_0000_0000_07A2
#: What a row has for a loss of NaN.
NAN_LOSS = float(np.array(_NAN_LOSS_BITS, np.int64).view(np.float64))


def loss_cell(loss: float) -> float:
    """What a row has for this loss."""
    return NAN_LOSS if math.isnan(loss) else loss


def is_missing(losses: Array) -> npt.NDArray[np.bool_]:
    """Where a column of losses has none, not even NaN."""
    return np.asarray(np.isnan(losses) & (losses.view(np.int64) != _NAN_LOSS_BITS))


class RecordError(Exception):
    """A record that cannot be read; the text is a sentence."""


@dataclass(frozen=True)
class Layout:
    """Which tensors a state has: names, numbers of elements, and the relative distance of two numbers of their type."""

    names: tuple[str, ...]
    numels: tuple[int, ...]
    eps: tuple[float, ...]

    HEAD: ClassVar[int] = 4
    STEP: ClassVar[int] = 0
    LOSS: ClassVar[int] = 1
    SECONDS: ClassVar[int] = 2
    BYTES: ClassVar[int] = 3

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each tensor's numbers are in a row."""
        found = {}
        at = self.HEAD
        for name, numel in zip(self.names, self.numels, strict=True):
            width = 2 + min(numel, MAX_SKETCH)
            found[name] = slice(at, at + width)
            at += width
        return found

    @cached_property
    def width(self) -> int:
        """Of a row."""
        return self.HEAD + sum(2 + min(numel, MAX_SKETCH) for numel in self.numels)


class Writer:
    """Writes the records of one rank, in the place of earlier ones.

    ``size``: how many ranks the world has now; None, the default, if nothing tells.
    """

    def __init__(
        self, folder: os.PathLike[str], rank: int, layout: Layout, size: int | None = None
    ) -> None:
        self.layout = layout
        self._path = Path(folder) / f"rank{rank}"
        described = {
            "names": layout.names,
            "numels": layout.numels,
            "eps": layout.eps,
            "size": size,
        }
        self._file(".json").write_text(json.dumps(described))
        self._steps: IO[bytes] = self._file(".steps").open("wb")
        self._states: IO[bytes] = self._file(".states").open("wb")
        self._metrics: IO[str] = self._file(".metrics").open("w")

    def _file(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def row(self, row: Array) -> None:
        """A step; with its state where the row is as wide as that."""
        self._steps.write(row[: Layout.HEAD].tobytes())
        if len(row) == self.layout.width:
            self._states.write(row.tobytes())

    def metric(self, step: int, name: str, value: float, *, is_result: bool) -> None:
        """A number by its name."""
        line = {"step": step, "name": name, "value": value, "result": is_result}
        self._metrics.write(json.dumps(line) + "\n")

    def end(self, row: Array, used: set[str]) -> None:
        """The last state; no step follows."""
        self._file(".end").write_bytes(row.tobytes())
        for file in (self._steps, self._states, self._metrics):
            file.close()
        self._file(".ended.json").write_text(json.dumps({"used": sorted(used)}))


@dataclass(frozen=True)
class RankRecord:
    """What one rank has recorded of a run: S steps, states of R of them and of the end, N tensors.

    - ``steps``: (S, 4), as in the file: step, loss, seconds and bytes. Step 0, the beginning, is among them.
    - ``state_steps``: (R+1,) of which step each state is; the last is that of the end.
    - ``hashes``, ``norms`` (of what is finite): (R+1, N).
    - ``sketches``: of each tensor, (R+1, k).
    - ``metrics``: by name the (step, value) that record() was given; ``results``: what result() was given.
    - ``used``: what the script has asked for, "seed" and "strategy".
    """

    rank: int
    layout: Layout
    steps: Array
    state_steps: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int64]
    norms: Array
    sketches: tuple[Array, ...]
    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    results: dict[str, float] = field(default_factory=dict)
    used: frozenset[str] = frozenset()


def record_of(
    rank: int,
    layout: Layout,
    steps: Array,
    states: Array,
    metrics: list[dict[str, Any]],
    used: frozenset[str],
) -> RankRecord:
    """From rows as files have them, those of states with the last one behind the others."""
    places = list(layout.places.values())
    of_steps: dict[str, list[tuple[int, float]]] = {}
    for line in metrics:
        if not line["result"]:
            of_steps.setdefault(line["name"], []).append((line["step"], line["value"]))
    return RankRecord(
        rank,
        layout,
        steps,
        states[:, Layout.STEP].astype(np.int64),
        states.view(np.int64)[:, [place.start for place in places]],
        states[:, [place.start + 1 for place in places]],
        tuple(states[:, place.start + 2 : place.stop] for place in places),
        of_steps,
        {line["name"]: line["value"] for line in metrics if line["result"]},
        used,
    )


def recorded_size(folder: Path, rank: int) -> int | None:
    """How many ranks the world had when this rank began its record; None where no record says so."""
    try:
        size = json.loads((folder / f"rank{rank}.json").read_text())["size"]
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return size if type(size) is int else None


def read_rank(folder: Path, rank: int) -> RankRecord:
    """The record of one rank. Raises RecordError where it has left none, or has not come to its end."""

    def file(suffix: str) -> Path:
        return folder / f"rank{rank}{suffix}"

    if not file(".json").exists():
        raise RecordError(f"rank {rank} has recorded nothing")
    if not file(".ended.json").exists():
        raise RecordError(f"rank {rank} did not finish its record")
    try:
        described = json.loads(file(".json").read_text())
        layout = Layout(
            tuple(described["names"]), tuple(described["numels"]), tuple(described["eps"])
        )
        steps = np.fromfile(file(".steps")).reshape(-1, Layout.HEAD)
        states = np.fromfile(file(".states")).reshape(-1, layout.width)
        end = np.fromfile(file(".end")).reshape(1, layout.width)
        metrics = [json.loads(line) for line in file(".metrics").read_text().splitlines()]
        used = frozenset(json.loads(file(".ended.json").read_text())["used"])
        return record_of(rank, layout, steps, np.concatenate([states, end]), metrics, used)
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"the record of rank {rank} in '{folder}' is damaged: {error}") from error
