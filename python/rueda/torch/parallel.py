"""Models that are sharded over some ranks and replicated over others: grids of ranks, and whether a model fits.

torch shards models: FSDP2, tensor parallelism and pipelines over a ``DeviceMesh``. Rueda defines which ranks train
together: ranks that hold the same part do, with any strategy of :func:`rueda.torch.wrap`.

Example::

    dist.init_process_group("rueda")
    grid = rueda.torch.parallel.Grid(replicate=-1, shard=4)
    fully_shard(model, mesh=grid.mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer = rueda.torch.wrap(model, optimizer, "diloco:32", process_set=grid.process_set("replicate"))

Import it explicitly: it needs ``torch.distributed``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import rueda.torch.c10d  # noqa: F401 - registers the backend
from rueda import _native, lifecycle
from rueda.arguments import shown, whole_number
from rueda.errors import InvalidArgumentError, NotInitializedError
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet, add_process_set, global_process_set
from rueda.torch.shards import local_of
from rueda.torch.strategies.agreed import agree

__all__ = ["Grid", "require_memory"]

_DEVICES = ("cpu", "cuda")


class Grid:
    """Arranges the ranks of the world, in order, as a grid of named dimensions.

    - ``device``: where the mesh's tensors are, "cpu" or "cuda".
    - ``sizes``: the size of each dimension; the last one has consecutive ranks, such as those of a host. One size may
      be -1, which stands for the rest.

    ``mesh`` is torch's ``DeviceMesh``: ``grid.mesh["shard"]`` shards a model. Collective; the default process group
    must exist and have the same ranks as Rueda's world. After :func:`rueda.recover`, create a new grid.

    Raises :class:`rueda.NotInitializedError` without a process group or a world; on every rank,
    :class:`rueda.InvalidArgumentError` if the sizes or the device of one rank make no grid of the world, and
    :class:`rueda.MismatchError` if they differ between ranks.

    Example::

        >>> dist.init_process_group("rueda", store=dist.HashStore(), rank=0, world_size=1)
        >>> grid = rueda.torch.parallel.Grid(replicate=-1, shard=1)
        >>> grid.size("replicate"), grid.coordinate("shard"), grid.process_set("replicate").ranks
        (1, 0, [0])
        >>> dist.destroy_process_group()
    """

    mesh: DeviceMesh

    def __init__(self, device: str = "cpu", **sizes: int) -> None:
        if not dist.is_initialized() or not lifecycle.is_initialized():
            raise NotInitializedError(
                "a grid needs torch's process group and Rueda's world: dist.init_process_group('rueda') makes both"
            )
        if dist.get_world_size() != lifecycle.size():
            _require_same_ranks()  # all that call this see it, but they may be only some of the world's ranks

        def prepare() -> tuple[dict[str, int], dict[str, str]]:
            _require_same_ranks()
            if device not in _DEVICES:
                raise InvalidArgumentError(f"device={shown(device)} is neither 'cpu' nor 'cuda'")
            complete = _complete(sizes, lifecycle.size())
            return complete, {
                "device of the grid": device,
                "grid": ", ".join(f"{name}={size}" for name, size in complete.items()),
            }

        self._sizes = agree("grid of ranks", global_process_set, prepare)
        self.mesh = init_device_mesh(
            device, tuple(self._sizes.values()), mesh_dim_names=tuple(self._sizes)
        )
        self._sets: dict[str, ProcessSet] = {}

    def size(self, dimension: str) -> int:
        """The number of ranks along a dimension."""
        return self._sizes[self._known(dimension)]

    def coordinate(self, dimension: str) -> int:
        """This rank's position along a dimension, from 0."""
        return self.mesh.get_local_rank(self._known(dimension))

    def process_set(self, dimension: str) -> ProcessSet:
        """The ranks that differ from this one in that dimension only; the same object each time.

        The first call is collective over the world: each line of the grid becomes a process set. Raises as
        :func:`rueda.add_process_set`, and :class:`rueda.InvalidArgumentError` for an unknown dimension.
        """
        self._known(dimension)
        if dimension not in self._sets:
            self._sets[dimension] = self._add_sets(dimension)
        return self._sets[dimension]

    def _add_sets(self, dimension: str) -> ProcessSet:
        if self._sizes[dimension] == lifecycle.size():
            return global_process_set
        ranks = torch.arange(lifecycle.size(), device="cpu").view(*self._sizes.values())
        place = list(self._sizes).index(dimension)
        lines = ranks.movedim(place, -1).reshape(-1, self._sizes[dimension]).tolist()
        added = [add_process_set(line) for line in lines]
        return next(each for each in added if lifecycle.rank() in each.ranks)

    def _known(self, dimension: str) -> str:
        if dimension not in self._sizes:
            raise InvalidArgumentError(
                f"there is no dimension '{dimension}' in {self!r}, whose dimensions are {', '.join(self._sizes)}"
            )
        return dimension

    def __repr__(self) -> str:
        return f"Grid({', '.join(f'{name}={size}' for name, size in self._sizes.items())})"


def _require_same_ranks() -> None:
    world = lifecycle.size()
    if dist.get_world_size() != world or dist.get_rank() != lifecycle.rank():
        raise InvalidArgumentError(
            f"this process is rank {dist.get_rank()} of {dist.get_world_size()} in torch's process group, but rank "
            f"{lifecycle.rank()} of {world} in Rueda's world: a grid needs the same ranks in both"
        )


def _complete(given: Mapping[str, object], world: int) -> dict[str, int]:
    """The sizes, with -1 replaced by the actual size."""
    sizes = {name: whole_number(name, size, -1) for name, size in given.items()}
    wrong = [name for name, size in sizes.items() if size != -1 and size < 1]
    rest = [name for name, size in sizes.items() if size == -1]
    if not sizes or wrong or len(rest) > 1:
        raise InvalidArgumentError(
            f"{sizes} is not a grid: give at least one dimension, sizes of 1 or more, and -1 at most once"
        )
    known = math.prod(size for size in sizes.values() if size != -1)
    complete = {name: world // known if size == -1 else size for name, size in sizes.items()}
    if math.prod(complete.values()) != world:
        raise InvalidArgumentError(
            f"{sizes} does not make up the {world} ranks of the world"
            + (f", which {known} does not divide" if rest else "")
        )
    return complete


def require_memory(
    model: torch.nn.Module,
    optimizer_values: float,
    shards: int = 1,
    limit: float | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Raises on every rank if the model is too large for one of them; returns the bytes that each needs. Collective.

    Counts the parameters, a gradient for each that needs one, and ``optimizer_values`` times as much for the
    optimizer's state: 0 for SGD, 1 with momentum, 2 for Adam. Each rank has one of ``shards`` equal parts of that.
    Activations, and layers that FSDP2 gathers temporarily, come on top. Parameters that already have memory are not
    counted again, so it can be called before the model has memory (``with torch.device("meta")``) or after.

    ``limit``: bytes that this rank may use; by default what its host or control group has left, divided by the number
    of ranks on the host. GPU parameters need a limit, such as ``torch.cuda.mem_get_info()[0]``.

    Raises, on every rank, :class:`rueda.InvalidArgumentError` with the sizes, the rank, and the number of shards that
    would fit, or for arguments of one rank that make no sense; and :class:`rueda.MismatchError` if ``shards`` or
    ``optimizer_values`` differ between ranks.

    Example::

        >>> model = torch.nn.Linear(1000, 1000, bias=False)
        >>> rueda.torch.parallel.require_memory(model, optimizer_values=2, shards=4)
        4000000
    """

    def prepare() -> tuple[tuple[float, int, int, int | None], dict[str, str]]:
        parts = whole_number("shards", shards, 1)
        values = _number("optimizer_values", optimizer_values)
        parameters = list(model.parameters())
        whole = sum(_bytes_of(each, values) for each in parameters)
        needed = math.ceil(whole / parts)
        held = sum(local_of(each).nbytes for each in parameters if not each.is_meta)
        available = _available() if limit is None else math.floor(_number("limit", limit))
        settings = {"number of shards": str(parts), "optimizer_values": f"{values:g}"}
        return (whole, needed, max(0, needed - held), available), settings

    whole, needed, lacking, available = agree("model and memory", process_set, prepare)
    told: list[tuple[int, int | None]] = allgather_object(
        (lacking, available), "memory of the model", process_set
    )
    for member, (wanted, available) in zip(process_set.ranks, told, strict=True):
        if available is None or wanted <= available:
            continue
        fitting = math.ceil(whole / max(1, available + needed - wanted))
        raise InvalidArgumentError(
            f"the model is too large: its parameters, gradients and {optimizer_values:g} values of the optimizer for "
            f"each have {_text(whole)}, one of {shards} parts {_text(needed)}, for which rank {member} lacks "
            f"{_text(wanted)} and has {_text(available)}: {fitting} parts would fit",
            member,
        )
    return needed


def _number(what: str, value: object) -> float:
    """An argument as a number. Raises InvalidArgumentError, on this rank only, if it is none, infinite or negative."""
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise InvalidArgumentError(f"{what}={shown(value)} is not a finite number of at least 0")
    return float(value)


def _bytes_of(parameter: torch.Tensor, optimizer_values: float) -> float:
    size = parameter.numel() * parameter.element_size()
    return size * (2 + optimizer_values) if parameter.requires_grad else size


def _available() -> int | None:
    """Bytes for this rank, if the system reports them."""
    left = _native.available_memory()
    return None if left is None else left // lifecycle.local_size()


def _text(size: float) -> str:
    if size >= 1e7:
        return f"{size / 1e9:.2f} GB"
    if size >= 1e4:
        return f"{size / 1e6:.3f} MB"
    return f"{size:,.0f} {'byte' if size == 1 else 'bytes'}"
