"""Tables of elements: parameters divided over the ranks, for NumPy arrays."""

from __future__ import annotations

import math
import operator
import os
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
from rueda.server.clock import Clock
from rueda.server.handing_over import hand_over
from rueda.server.opening import (
    Floats,
    check,
    data,
    extent,
    factor_of,
    flag,
    numbers,
    of_call,
    open_native,
    readable,
    real,
    text,
    whole,
    writeable,
)
from rueda.server.part import Part

__all__ = ["OpenTable", "Order", "Table"]

Order = Literal["as_they_come", "ring"]
_MAX_SIZE = 2**50
_FINISHED = 2**63 - 1  # the clock of a rank that takes no more steps


class OpenTable:
    """The common part of tables of elements and of rows."""

    def __init__(self, native: _native.Table, name: str, process_set: ProcessSet) -> None:
        self._native = native
        self._name = name
        self._ranks = process_set.size()
        self._rank = process_set.rank()
        self._clock = Clock()
        self._is_over = False
        self._process = os.getpid()
        self.world_ranks = list(process_set.ranks)  # of the world in which it was opened
        self.generation = 0  # how often its contents have been handed over from table to table

    @property
    def name(self) -> str:
        """The name under which its ranks opened it."""
        return self._name

    def about(self, call: str) -> str:
        """What an error about one of this table's calls begins with."""
        return f"table '{self._name}': {call}()"

    @property
    def clock(self) -> int:
        """The number of steps that this rank has reported as done.

        A report counts from the call on, and no longer once it has ended with an error: a step that was refused has not
        been done.
        """
        return self._clock.now()

    def tick(self) -> Handle[None]:
        """Reports a step as done; values that others get for this clock include its earlier additions."""
        return self._begin(self._native.tick, None, ticks=True)

    def finish(self) -> Handle[None]:
        """Reports that this rank takes no more steps, so that nobody waits for it."""
        return self._begin(self._native.finish, None)

    def restart(self) -> Handle[None]:
        """Resets this rank's clock to 0.

        If all ranks do so, between two barriers, they continue as equals whatever their clocks were.
        """
        handle = self._begin(lambda: self._native.restart(0), None)
        self._clock.set(0)
        return handle

    def clocks(self) -> list[int]:
        """For each rank of the process set, the number of steps that it has reported to this rank as an owner.

        The largest 64-bit integer for a rank that has finished.
        """
        self._require_this_process()
        return self._native.clocks()

    @property
    def rank(self) -> int:
        """This rank within the process set."""
        return self._rank

    def go_on(self, clock: int) -> None:
        """Sets this rank's clock, or finishes it: ``clock`` is a value from :meth:`clocks` of a previous table."""
        if clock == _FINISHED:
            self.finish().result()
            return
        self._begin(lambda: self._native.restart(clock), None).result()
        self._clock.set(clock)

    def staleness(self) -> dict[int, int]:
        """How many additions of this rank, each to one owner, had which staleness.

        Staleness is the number of additions that an owner has counted between the values that this rank last got from
        it and this rank's addition. 64 stands for 64 and more.
        """
        self._require_this_process()
        counts = self._native.staleness()
        return {staleness: count for staleness, count in enumerate(counts) if count}

    def seen(self) -> list[int]:
        """For each rank of the process set, its part's additions when this rank last got values of it."""
        self._require_this_process()
        return self._native.seen()

    def call(self, function: str, arguments: bytes = b"") -> list[bytes]:
        """Runs a function at each owner and returns what each computes from its part, by rank of the process set.

        ``function``: one of Rueda's, or one that a C++ library has registered with
        ``rueda::register_shard_function()`` on every rank. Raises :class:`rueda.InvalidArgumentError` with its text if
        the function is unknown or has failed.
        """
        call = self.about("call")
        named = of_call(call, text, "function", function)
        return self._native.call(named, of_call(call, data, "arguments", arguments))

    def min(self) -> float:
        """The smallest value; infinity if there is none. Computed by the owners, like all that follow."""
        return float(np.min(_doubles(self.call("min"))))

    def max(self) -> float:
        """The largest value; minus infinity if there is none."""
        return float(np.max(_doubles(self.call("max"))))

    def sum(self) -> float:
        """The sum of all values."""
        return sum(_doubles(self.call("sum")))

    def norm(self) -> float:
        """The Euclidean norm of all values."""
        return math.sqrt(sum(_doubles(self.call("sum_of_squares"))))

    def top(self, count: int) -> list[tuple[int, float]]:
        """The elements with the largest magnitudes, or the rows with the largest norms, each with that value.

        The largest first; among equal ones, the one with the smallest number. NaN is larger than any number.
        """
        count = of_call(self.about("top"), whole, "count", count)
        if count < 0:
            raise InvalidArgumentError(f"{self.about('top')}: count={count} is negative")
        found: list[tuple[int, float]] = []
        for result in self.call("top", struct.pack("=q", count)):
            found += struct.iter_unpack("=qf", result)
        return sorted(found, key=_largest_first)[:count]

    @property
    def owners(self) -> int:
        """The number of ranks over which the table is divided."""
        return self._ranks

    def parts(self) -> list[Part]:
        """What this rank holds. For a world that has broken or was left: nothing may change it meanwhile."""
        return [
            Part(part[0], number == 0, *part[1:])  # its own part comes first
            for number, part in enumerate(self._native.parts())
        ]

    def abandon(self) -> None:
        """Makes no more requests and waits for nobody, as when the table's world has ended."""
        self._is_over = True

    def close(self) -> None:
        """Closes the table, once all of this rank's requests are done. Collective over its process set.

        Errors of single operations are reported by their handles only. Does nothing for a table that was closed or
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
        begun: list[_native.Handle] = []

        def submit() -> list[_native.Handle]:
            begun.append(begin())
            if ticks:
                self._clock.count(begun[0])
            return begun

        return Handle(submit, lambda _: None, references, begun=begun)

    def _require_this_process(self) -> None:
        """Raises :class:`rueda.NotInitializedError` in a child made by fork()."""
        if os.getpid() != self._process:
            self._native.parts()  # raises it, as everything that asks the core for more than numbers


class Table(OpenTable):
    """float32 elements divided over the ranks of a process set; initially zeros.

    Each rank owns a part and serves it while its script computes; no rank is special. Every rank may read and add at
    any time. Opening and closing are collective: all ranks must pass the same arguments.

    ``size``: number of elements, at least 1. ``rule``: what an addition does: ``"sum"``, or ``"adagrad"`` with the
    ``parameters`` learning rate and epsilon (Dean et al., "Large scale distributed deep networks", NIPS 2012, section
    4.1), or one that a C++ library has registered with ``rueda::register_update_rule()``. ``bounds``: where each rank's
    part begins, and the end; by default as even as possible. ``order="ring"``: a step is one addition from each rank;
    these are summed in ring order, so that the bits are those of a ring allreduce. ``replicated``: the next rank also
    holds each part, and an addition is done when both have it; see :meth:`restored`.

    Raises, on every rank, :class:`rueda.MismatchError` if arguments differ, and
    :class:`rueda.InvalidArgumentError` for invalid ones, such as bounds that leave an element without an owner, or for
    a table that needs more memory than a host has, with the sizes. An argument of a wrong type, here or in a method, is
    an :class:`rueda.InvalidArgumentError`, too, which names it. A table without a name (``None`` or ``""``) raises it
    on the rank that opens it.

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

        def arguments() -> tuple[Any, ...]:
            if order not in ("as_they_come", "ring"):
                raise Refusal(f"Table(): order={order!r} is not one of 'as_they_come', 'ring'")
            return (
                extent("size", size, _MAX_SIZE),
                0,
                0.0,
                0.0,
                0,
                numbers("bounds", bounds, whole),
                text("rule", rule),
                numbers("parameters", parameters, real),
                order == "ring",
                flag("replicated", replicated),
            )

        native = open_native(name, process_set, arguments)
        super().__init__(native, name, process_set)
        self.size = operator.index(size)

    @property
    def bounds(self) -> list[int]:
        """Where the part of each rank of the process set begins, and the end of the last one."""
        return self._native.bounds

    def get(
        self,
        out: Floats | None = None,
        begin: int = 0,
        count: int | None = None,
        min_clock: int = 0,
    ) -> Handle[Floats]:
        """Elements ``[begin, begin + count)``, by default all, as a new array or into ``out``.

        The values from one owner are a consistent snapshot: they include each addition completely or not at all.
        ``min_clock``: waits until every rank has ticked that often or has finished (Ho et al., "More effective
        distributed ML via a stale synchronous parallel parameter server", NIPS 2013); with ``clock - s``, no rank is
        more than s + 1 steps ahead of another. ``out``: contiguous, float32; must stay until the handle has completed.
        """
        try:
            if out is None:
                wanted = self.size - begin if count is None else count
                if not 0 <= wanted <= self.size:
                    raise InvalidArgumentError(
                        f"{self.about('get')} of {wanted} elements from {begin} on, of {self.size}"
                    )
                target = np.empty(wanted, np.float32)
            else:
                target = writeable(self.about, "get", out)
                if count is not None and count != target.size:
                    raise InvalidArgumentError(
                        f"{self.about('get')} of {count} elements into out= with {target.size}"
                    )
            begun = _native_get(self._native, target, begin, min_clock)
            return Handle(lambda: [begun()], lambda _: target, target)
        except TypeError:
            number = 0 if count is None else count
            check(
                self.about("get"),
                begin=(whole, begin),
                count=(whole, number),
                min_clock=(whole, min_clock),
            )
            raise

    def put(self, values: npt.ArrayLike, begin: int = 0) -> Handle[None]:
        """Sets the elements from ``begin`` on; the rule's state for them is unchanged."""
        source = readable(self.about, "put", "values", values)
        try:
            return self._begin(
                lambda: self._native.put(source.ctypes.data, source.size, begin), source
            )
        except TypeError:
            check(self.about("put"), begin=(whole, begin))
            raise

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
        "Heterogeneity-aware distributed parameter servers", SIGMOD 2017). ``ticks``: also reports a step as done.
        ``delta`` must not be written before the handle has completed. Never waits for an owner's computation. Raises
        :class:`rueda.InvalidArgumentError`, on this rank only, for a ``factor`` that is not finite in float32.
        """
        source = readable(self.about, "add", "delta", delta)
        factor = factor_of(self.about, factor)
        try:
            return self._begin(
                lambda: self._native.add(
                    source.ctypes.data, source.size, begin, factor, by_staleness, ticks
                ),
                source,
                ticks,
            )
        except TypeError:
            check(
                self.about("add"),
                begin=(whole, begin),
                by_staleness=(flag, by_staleness),
                ticks=(flag, ticks),
            )
            raise

    def restored(self, process_set: ProcessSet = global_process_set) -> Table:
        """A table in the current world with what remains of this one, after :func:`rueda.recover`. Collective.

        Of each part, the copy with the most additions is used. Raises :class:`rueda.PeerLostError` on every rank if no
        rank holds some part any more: without ``replicated`` that is so after any loss of a rank, with it if two
        neighbours are lost. The rule's state (Adagrad's sums) and clocks are restored, too. Raises
        :class:`rueda.MismatchError` on every rank if a rank was lost so that this method returned a table on some of
        the ranks only, and they go on from different ones.
        """
        table = Table(self.name, self.size, process_set=process_set, **self._options)
        hand_over(self, table, table.put_part, process_set)
        return table

    def put_part(self, part: Part) -> list[Handle[None]]:
        """Puts what a rank held of another table of this size and rule, including the rule's state."""
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


def _largest_first(item: tuple[int, float]) -> tuple[bool, float, int]:
    """The place of a number of an element and its value: compared with any number, NaN is neither less nor equal."""
    index, value = item
    if math.isnan(value):
        return False, 0, index
    return True, -value, index


def _doubles(results: Sequence[bytes]) -> list[float]:
    return [float(struct.unpack("=d", result)[0]) for result in results]
