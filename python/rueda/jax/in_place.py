"""What XLA runs: a call of ``librueda_jax.so`` that begins a collective in the memory where its tensors lie.

No token orders these calls: they match those of other ranks by name. Ranks whose operations come in different orders
must then be free to begin them all before any of them has ended, and XLA's CPU backend takes that freedom away:

- It runs programs of at most 8 steps, and those whose tensors have at most 512 bytes, one step after the other
  (xla/backends/cpu/runtime/thunk_executor.h). So each call has idle steps beside it, enough for two of them.
- It lets an operation's result lie in memory that another's argument has left, and then the one waits for the other.
  So a result lies in its own argument's memory, where nobody else's can be. XLA copies arguments that must stay.
- What uses a result may lie in memory that another operation needs, too. XLA goes through a program in breadth, so that
  operations that do not depend on each other come before what uses any of them.
"""

from __future__ import annotations

import inspect
import re
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend
import numpy as np
from jax.interpreters import mlir

from rueda import lifecycle
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.heap import keep_in_heap
from rueda.jax.draining import drain
from rueda.jax.library import COLLECTIVE, NOTHING, set_world

__all__ = ["Kind", "Spec", "in_place_p", "register_lowering"]

# Tells this process from that in which a serialized function was compiled.
_PROCESS = uuid.uuid4().hex

_IDLE_STEPS = 4
_IDLE = jax.core.ShapedArray((1024,), np.dtype(np.uint8))


class Kind:
    """The names by which csrc/jax/collectives.cpp knows the collectives."""

    ALLREDUCE = "allreduce"
    REDUCE = "reduce"  # an allreduce whose result only the root keeps; the other ranks get zeros
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    REDUCE_SCATTER = "reduce_scatter"
    ALLTOALL = "alltoall"


class Spec(NamedTuple):
    """What is done to a list of tensors."""

    kind: str
    name: str  # empty: numbered, which only works outside of compiled functions
    paths: str  # of the tensors in their tree, each ended by a newline
    op: int
    root: int
    process_set: int
    size: int  # of the set
    world: int  # from which on the set has its number, as lifecycle.first_world_number(); 0 for the set of all ranks

    @property
    def is_tree(self) -> bool:
        """Whether there is more than an array by itself."""
        return self.paths != "\n"

    @property
    def is_allreduce(self) -> bool:
        """Whether ranks submit an allreduce, in which the arrays of a tree are one group."""
        return self.kind in (Kind.ALLREDUCE, Kind.REDUCE)

    @property
    def leaves(self) -> list[str]:
        """The path of each array."""
        return self.paths.split("\n")[:-1]

    @property
    def tree(self) -> int:
        """What ranks compare: a hash of the paths, without the addresses that a key's text may have."""
        return zlib.crc32(re.sub("0x[0-9a-f]+", "", self.paths).encode()) & 0x7FFFFFFF


# The scope of a branch of a ``cond`` or ``switch``.
_BRANCH = re.compile(r"branch_\d+_fun")

in_place_p = jax.extend.core.Primitive("rueda_in_place")
in_place_p.multiple_results = True


in_place_p.def_abstract_eval(lambda *avals, spec: list(avals))


class _Module:
    """What is known of a module, the code of one compiled function.

    JAX keeps it with the compiled function, and serializes it along.
    """

    def __init__(self) -> None:
        # Where in the module each name has come, and as which.
        self.names: defaultdict[str, list[tuple[Sequence[Any], int]]] = defaultdict(list)
        self.sizes: list[list[int]] = []  # of what each collective allocates, in bytes
        self.process = ""  # whose numbers of process sets it contains; empty if it contains none

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self.sizes, self.process)


def _loaded(sizes: list[list[int]], process: str) -> _Module:
    """Called where a serialized function is loaded, maybe in another process: prepares it as lowering does.

    Raises :class:`rueda.InvalidArgumentError` in another process if the function is for a process set.
    """
    if process and process != _PROCESS:
        raise InvalidArgumentError(
            "this compiled function has a collective of a process set, and other process sets may have its number in "
            "this process: compile the function here instead of loading it"
        )
    module = _Module()
    module.sizes, module.process = sizes, process
    _prepare(sizes)
    return module


def _prepare(sizes: Iterable[list[int]]) -> None:
    """Prepares this process for functions with collectives that allocate these sizes, in bytes."""
    lifecycle.before_shutdown(drain)
    for each in sizes:
        keep_in_heap(each)


def _module_of(context: Any) -> _Module:
    kept = context.module_context.keepalives  # a list of each module's own, in all of its contexts
    module = next((each for each in kept if isinstance(each, _Module)), None)
    if module is None:
        module = _Module()
        kept.append(module)
    return module


def _exclude_each_other(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether these places are in different branches of the same ``cond``, of which one is computed.

    Each ``cond`` that is lowered puts an object of its own before its branches. Those of two are equal, not the same.
    """
    within: Any = None
    for number, (here, there) in enumerate(zip(one, other, strict=False)):
        if here != there:
            # A program's own scopes may have any name.
            are_branches = number > 0 and within.name == "cond" and within is other[number - 1]
            return are_branches and all(_BRANCH.fullmatch(each.name) for each in (here, there))
        within = here
    return False


def _name_in(module: _Module, context: Any, name: str) -> str:
    """Another for each time that it comes in a module, as for what ``jax.checkpoint`` computes again.

    Both may be under way at once. Ranks count alike, as they do for what has no name. In branches that exclude each
    other it is the same: ranks may be in different ones.
    """
    place = context.name_stack.stack
    others = module.names[name]
    number = 1 + max(
        (taken for where, taken in others if not _exclude_each_other(where, place)), default=0
    )
    others.append((place, number))
    return name if number == 1 else f"{name}@{number}"


def register_lowering(primitive: Any, rule: Any, platform: str | None = None) -> None:
    """``mlir.register_lowering`` of what has to be lowered each time that it comes, as it has a name of its own."""
    can_be_told = "cacheable" in inspect.signature(mlir.register_lowering).parameters
    told = {"cacheable": False} if can_be_told else {}  # JAX 0.6 always does
    mlir.register_lowering(primitive, rule, platform=platform, **told)


def _devices_of(axis_context: Any) -> int:
    """By how many devices a function is computed: of ``jit``, ``shard_map`` or JAX 0.6's ``pmap``."""
    if hasattr(axis_context, "mesh"):
        return int(axis_context.mesh.size)
    if hasattr(axis_context, "num_devices"):
        return int(axis_context.num_devices)
    return int(axis_context.axis_env.nreps)


def _lower(context: Any, *operands: Any, spec: Spec) -> Any:
    devices = _devices_of(context.module_context.axis_context)
    if devices > 1:
        raise UnsupportedError(
            f"a function that runs on {devices} devices of one process cannot call Rueda, for which a process is one "
            "rank: start a process for each device"
        )
    module = _module_of(context)
    if spec.world:
        set_world(lifecycle.first_world_number())
        module.process = _PROCESS
    # XLA allocates results, and one block for all that lies between, anew in each call.
    sizes = [aval.size * aval.dtype.itemsize for aval in context.avals_in]
    module.sizes.append([*sizes, sum(sizes)])
    _prepare(module.sizes[-1:])
    idle = jax.ffi.ffi_lowering(NOTHING, has_side_effect=True)
    for _ in range(_IDLE_STEPS):
        idle(context.replace(avals_in=[], avals_out=[_IDLE]))
    # With a side effect, so that XLA neither drops nor merges what other ranks wait for.
    call = jax.ffi.ffi_lowering(
        COLLECTIVE,
        has_side_effect=True,
        operand_output_aliases={index: index for index in range(len(operands))},
    )
    return call(
        context,
        *operands,
        kind=spec.kind,
        name=_name_in(module, context, spec.name),
        paths=spec.paths,
        tree=np.int32(spec.tree),
        op=np.int32(spec.op),
        root=np.int32(spec.root),
        process_set=np.int32(spec.process_set),
        world=np.int32(spec.world),
    )


register_lowering(in_place_p, _lower, platform="cpu")
