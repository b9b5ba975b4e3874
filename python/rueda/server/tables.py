"""Tables of elements: parameters that are divided over the ranks, for arrays of NumPy."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from rueda import _native
from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.process_sets import ProcessSet, global_process_set
from rueda.server.handing_over import hand_over
from rueda.server.opening import numbers, open_native, real, whole
from rueda.server.part import Part

__all__ = ["OpenTable", "Order", "Table"]

Order = Literal["as_they_come", "ring"]
Floats = npt.NDArray[np.float32]
_FINISHED = 2**63 - 1  # the clock of a rank that does no more steps


class OpenTable:
    """What tables of elements and of rows have in common."""

    def __init__(self, native: _native.Table, name: str, process_set: ProcessSet) -> None:
        self._native = native
        self._name = name
        self._ranks = process_set.size()
        self._rank = process_set.rank()
        self._clock = 0
        self._is_over = False

    @property
    def name(self) -> str:
        """By which its ranks opened it."""
        return self._name

    @property
    def clock(self) -> int:
        """How many steps this rank has told to be done."""
        return self._clock

    def tick(self) -> Handle[None]:
        """This rank has done a step; what it added before is in what others get for this clock."""
        return self._begin(self._native.tick, None, ticks=True)

    def finish(self) -> Handle[None]:
        """This rank does no more steps: nobody waits for it any more."""
        return self._begin(self._native.finish, None)

    def restart(self) -> Handle[None]:
        """This rank's clock is 0 again.

        Where all ranks do so, between two barriers, they go on as equals whatever their clocks have been.
        """
        handle = self._begin(lambda: self._native.restart(0), None)
        self._clock = 0
        return handle

    def clocks(self) -> list[int]:
        """Of each rank of the process set: how many steps this rank, as an owner, has been told that it has done.

        The largest whole number of 64 bits where it has finished.
        """
        return self._native.clocks()

    @property
    def rank(self) -> int:
        """This rank within the process set."""
        return self._rank

    def go_on(self, clock: int) -> None:
        """This rank has done so many steps, or has finished: as :meth:`clocks` has it, of a table that went before."""
        if clock == _FINISHED:
            self.finish().result()
            return
        self._begin(lambda: self._native.restart(clock), None).result()
        self._clock = clock

    def staleness(self) -> dict[int, int]:
        """How many additions of this rank, to one owner each, met which staleness.

        Staleness is how many additions an owner has counted between the values that this rank last got from it and its
        addition. 64 stands for all from 64 on.
        """
        counts = self._native.staleness()
        return {staleness: count for staleness, count in enumerate(counts) if count}

    def seen(self) -> list[int]:
        """Of each rank of the process set: how many additions its part had when values of it last came here."""
        return self._native.seen()

    def call(self, function: str, arguments: bytes = b"") -> list[bytes]:
        """Runs a function at each owner and returns what each makes of its part, by rank of the process set.

        ``function``: one of Rueda's, or one that a C++ library has registered with
        ``rueda::register_shard_function()`` on every rank. Raises :class:`rueda.InvalidArgumentError` for one that is
        not there, or that has failed, with its text.
        """
        return self._native.call(function, arguments)

    def min(self) -> float:
        """The least value; infinity where there is none. Found where the values are, like all that follow."""
        return float(np.min(_doubles(self.call("min"))))

    def max(self) -> float:
        """The greatest value; minus infinity where there is none."""
        return float(np.max(_doubles(self.call("max"))))

    def sum(self) -> float:
        """Of all values."""
        return sum(_doubles(self.call("sum")))

    def norm(self) -> float:
        """The Euclidean norm of all values."""
        return math.sqrt(sum(_doubles(self.call("sum_of_squares"))))

    def top(self, count: int) -> list[tuple[int, float]]:
        """The elements with the largest magnitudes, or the rows with the largest norms, each with that.

        The largest first, of equal ones that with the least number.
        """
        if count < 0:
            raise InvalidArgumentError(f"top(): {count} items")
        found: list[tuple[int, float]] = []
        for result in self.call("top", struct.pack("=q", count)):
            found += struct.iter_unpack("=qf", result)
        return sorted(found, key=lambda item: (-item[1], item[0]))[:count]

    @property
    def owners(self) -> int:
        """Among how many ranks it is divided."""
        return self._ranks

    def parts(self) -> list[Part]:
        """What this rank holds. For a world that has broken or has been left: nothing may change it meanwhile."""
        return [
            Part(part[0], number == 0, *part[1:])  # its own comes first
            for number, part in enumerate(self._native.parts())
        ]

    def abandon(self) -> None:
        """Nothing more is asked of it, and nobody is waited for: its world has ended, say."""
        self._is_over = True

    def close(self) -> None:
        """Ends the table, once all that this rank has asked for is done. Collective over its process set.

        Errors of single operations are told by their handles only. Does nothing for a table that was closed or
        :meth:`restored`.
        """
        if not self._is_over:
            self._native.close()
            self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    def _begin(
        self,
        begin: Callable[[], _native.Handle],
        references: object,
        ticks: bool = False,
    ) -> Handle[None]:
        handle = Handle(lambda: [begin()], lambda _: None, references)
        if ticks:
            self._clock += 1
        return handle


class Table(OpenTable):
    """Elements of float32 that are divided over the ranks of a process set; zeros to begin with.

    Each rank owns a part and serves it while its script computes; no rank is special. Every rank may read and add
    whenever it likes. Opening and closing are collective: all ranks give the same arguments.

    ``size``: number of elements. ``rule``: what an addition does: ``"sum"``, or ``"adagrad"`` with the ``parameters``
    learning rate and epsilon (Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1), or one
    that a C++ library has registered with ``rueda::register_update_rule()``. ``bounds``: where each rank's part begins,
    and the end; by default as even as possible. ``order="ring"``: one addition of each rank is a step; they are added
    up in the order of the ring, so that the bits are those of a ring allreduce. ``replicated``: each part is held by
    the next rank as well, and an addition is done when both have it; see :meth:`restored`.

    Raises, on every rank, :class:`rueda.MismatchError` where arguments differ, and
    :class:`rueda.InvalidArgumentError` for those that make no sense, such as bounds that leave an element without
    an owner, or that need more memory than a host has, with the sizes.

    Example::

        >>> with rueda.server.Table("weights", 10) as table:
        ...     if rueda.rank() == 0:
        ...         table.put(np.arange(10)).result()
        ...     rueda.barrier()
        ...     table.add(np.ones(10), ticks=True).result()
        ...     weights = table.get(min_clock=1).result()
        >>> float(weights[3]) == 3 + rueda.size()
        True
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        rule: str = "sum",
        parameters: Sequence[float] = (),
        bounds: Sequence[int] = (),
        order: Order = "as_they_come",
        replicated: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._options: dict[str, Any] = {
            "rule": rule,
            "parameters": parameters,
            "order": order,
            "replicated": replicated,
        }
        self.size = size

        def arguments() -> tuple[Any, ...]:
            if order not in ("as_they_come", "ring"):
                raise Refusal(f"Table(): order={order!r} is none of 'as_they_come', 'ring'")
            return (
                whole("size", size),
                0,
                0.0,
                0.0,
                0,
                numbers("bounds", bounds, whole),
                str(rule),
                numbers("parameters", parameters, real),
                order == "ring",
                bool(replicated),
            )

        native = open_native(name, process_set, arguments)
        super().__init__(native, name, process_set)

    @property
    def bounds(self) -> list[int]:
        """Where the part of each rank of the process set begins, and the end of the last."""
        return self._native.bounds

    def get(
        self,
        out: Floats | None = None,
        begin: int = 0,
        count: int | None = None,
        min_clock: int = 0,
    ) -> Handle[Floats]:
        """Elements ``[begin, begin + count)``, by default all, as a new array or into ``out``.

        What comes from one owner is of one moment: it has each addition whole or not at all. ``min_clock``: waits
        until every rank has ticked so often, or has finished (Ho et al., "More effective distributed ML via a stale
        synchronous parallel parameter server", NIPS 2013): with ``clock - s`` no rank is more than s + 1 steps ahead of
        another. ``out``: contiguous, of float32; it must stay until the handle has completed.
        """
        if out is None:
            wanted = self.size - begin if count is None else count
            if wanted < 0:
                raise InvalidArgumentError(
                    f"table '{self.name}': get() of {wanted} elements from {begin} on, of {self.size}"
                )
            out = np.empty(wanted, np.float32)
        elif count is not None and count != out.size:
            raise InvalidArgumentError(
                f"table '{self.name}': get() of {count} elements into out= with {out.size}"
            )
        target = writeable(out)
        begun = _native_get(self._native, target, begin, min_clock)
        return Handle(lambda: [begun()], lambda _: target, target)

    def put(self, values: npt.ArrayLike, begin: int = 0) -> Handle[None]:
        """These are the elements from ``begin`` on; what the rule keeps of them stays."""
        source = readable(values)
        return self._begin(lambda: self._native.put(source.ctypes.data, source.size, begin), source)

    def add(
        self,
        delta: npt.ArrayLike,
        begin: int = 0,
        factor: float = 1.0,
        by_staleness: bool = False,
        ticks: bool = False,
    ) -> Handle[None]:
        """Adds, by the table's rule, ``factor`` times ``delta`` to the elements from ``begin`` on.

        ``by_staleness``: each owner divides the factor by 1 + staleness, see :meth:`staleness` (Jiang et al.,
        "Heterogeneity-aware distributed parameter servers", SIGMOD 2017). ``ticks``: this rank has done a step with it.
        ``delta`` must not be written before the handle has completed. Never waits for what an owner computes.
        """
        source = readable(delta)
        return self._begin(
            lambda: self._native.add(
                source.ctypes.data, source.size, begin, factor, by_staleness, ticks
            ),
            source,
            ticks,
        )

    def restored(self, process_set: ProcessSet = global_process_set) -> Table:
        """A table of the present world with what is left of this one, after :func:`rueda.recover`. Collective.

        Of each part that somebody still holds, the copy with the most additions is taken. Raises, on every rank,
        :class:`rueda.PeerLostError` where nobody holds some part: without ``replicated`` that is so whenever a rank is
        lost, with it where two neighbours are. What the rule keeps (Adagrad's sums) comes along, and so do clocks.
        """
        table = Table(self.name, self.size, process_set=process_set, **self._options)
        hand_over(self, table, table.put_part, process_set)
        return table

    def put_part(self, part: Part) -> list[Handle[None]]:
        """What a rank held of another table of this size and rule, with what the rule keeps."""
        put = [self.put(part.values, part.begin)]
        if part.state.size:
            put.append(
                self._begin(
                    lambda: self._native.put_state(
                        part.state.ctypes.data, part.state.size, part.begin, part.values.size
                    ),
                    part,
                )
            )
        return put


def _native_get(
    native: _native.Table, target: Floats, begin: int, min_clock: int
) -> Callable[[], _native.Handle]:
    return lambda: native.get(target.ctypes.data, target.size, begin, min_clock)


def readable(values: npt.ArrayLike) -> Floats:
    """As a contiguous array of float32, which is the caller's where that is one."""
    return np.ascontiguousarray(values, np.float32)


def writeable(out: Floats) -> Floats:
    """Raises InvalidArgumentError where values cannot be written straight into it."""
    if out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgumentError(
            "out= is to be a contiguous array of float32 that may be written"
        )
    return out


def _doubles(results: Sequence[bytes]) -> list[float]:
    return [float(struct.unpack("=d", result)[0]) for result in results]
