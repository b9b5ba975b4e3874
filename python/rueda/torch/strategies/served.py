"""The base of strategies whose ranks share parameters asynchronously through a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from rueda.errors import (
    InvalidArgumentError,
    PeerLostError,
    ShutdownError,
    TransportError,
    UnsupportedError,
)
from rueda.exchanges import barrier
from rueda.handles import Handle, transformed
from rueda.lifecycle import rank, world_number
from rueda.objects import allgather_object
from rueda.process_sets import global_process_set
from rueda.recovery import is_loss, recover
from rueda.server import Part, Table
from rueda.server.handing_over import hand_over
from rueda.torch.strategies.agreed import agree
from rueda.torch.strategies.named import Named
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy

__all__ = ["Served"]

_log = logging.getLogger("rueda")


@dataclass
class Served(Strategy):
    """Base of strategies that keep parameters in a table, a part on each rank, used without waiting for other ranks.

    All parameters, in the model's order, form one vector, the *centre*. ``pulled`` is the last value of it that this
    rank read. Ranks differ except after consolidate(), and runs are not bitwise reproducible. Ranks may take different
    numbers of steps. All parameters must be float32. Each rank uses twice their memory on the CPU, whatever their
    device: for ``pulled``, and for its part of the centre with transfers in flight.

    If a rank is lost while all ranks train together, in a world that :func:`rueda.recover` can recover, the remaining
    ranks continue in the next exchange. With ``replicated``, the next rank also keeps each part with its rule's state,
    and the clocks continue: no push is lost unless two neighbours are, and pushes go through their owners. Without it,
    a lost rank's part of the centre is restored from ``pulled`` of the remaining rank with the most steps, and later
    pushes to that part are lost; a warning says so. Either way, each rank calls :meth:`rebase`, which by default drops
    its local steps since the last pull. If the application has called recover() itself, the next exchange continues
    likewise.

    Example::

        >>> from dataclasses import dataclass
        >>> from rueda.torch.strategies import Served
        >>> @dataclass
        ... class HalfWay(Served):  # to what the others have come to
        ...     def after_step(self):
        ...         pushed = self.push(0.5 * (self.parameters() - self.pulled))
        ...         self.set_parameters(self.pull())
        ...         pushed.result()
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy=HalfWay())
    """

    replicated: bool = field(default=False, kw_only=True, repr=False)

    takes_closure: ClassVar[bool] = False  # ranks may evaluate it a different number of times
    loads_together: ClassVar[bool] = True

    def validate(self, replica: Replica) -> None:
        if not isinstance(self.replicated, bool):
            raise InvalidArgumentError(
                f"replicated={self.replicated!r} of {type(self).__name__} is neither True nor False"
            )
        for name, each in replica.parameters.items():
            if each.dtype != torch.float32:
                raise UnsupportedError(
                    f"{type(self).__name__} is for parameters of float32, and '{name}' is {each.dtype}"
                )

    def rule(self) -> tuple[str, tuple[float, ...]]:
        """The rule that applies an addition to the centre, and its parameters; see :class:`rueda.server.Table`."""
        return "sum", ()

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._end_table()
        self.pulled = self.parameters()
        self._size = self.pulled.numel()
        self.table, self._world = self._new_table(), world_number()
        self._whole_tables = 0  # how often a complete table has replaced the current one
        self._next_table: Table | None = None  # that this rank is filling with what it holds
        self._consolidated = self._consolidated_by_any = 0
        self._put_part(self.pulled[slice(*self._part())])

    def kept_parameters(self) -> Named | None:
        return dict(self.in_parts(self.pulled))

    def _end_table(self) -> None:
        table: Table | None = getattr(self, "table", None)
        if table is None:
            return
        if self._is_of_this_world():
            table.close()
        else:
            table.abandon()

    def _is_of_this_world(self) -> bool:
        return self._world == world_number()

    def _new_table(self) -> Table:
        self._world_of_new = world_number()
        rule, parameters = self.rule()
        return Table(
            f"{self.replica.prefix}/centre",
            self._size,
            rule=rule,
            parameters=parameters,
            replicated=self.replicated,
            process_set=self.replica.process_set,
        )

    def _part(self) -> tuple[int, int]:
        """The begin and end of this rank's part of the centre."""
        rank = self.replica.process_set.rank()
        return self.table.bounds[rank], self.table.bounds[rank + 1]

    def _put_part(self, values: torch.Tensor, kept: torch.Tensor | None = None) -> None:
        """Writes this rank's part, with its rule's state. Collective: no rank reads before all have written."""
        begin = self._part()[0]
        if kept is None:
            self.table.put(values.numpy(), begin).result()
        else:
            both = values.numpy().tobytes(), kept.cpu().numpy().tobytes()
            _put(self.table, Part(self.table.rank, True, 0, begin, b"", *both))
        self._meet("begins")

    def _kept_by_rule(self) -> torch.Tensor | None:
        """The rule's state for this rank's part, such as Adagrad's sums. Afterwards no rank changes it in place."""
        begin, end = self._part()
        if begin == end:
            return None
        own = next((part for part in self.table.parts() if part.is_own), None)
        if own is None:
            raise TransportError(
                f"the state of the strategy cannot be saved: a rank ended or was stopped while it changed the state "
                f"of the rule {self.rule()[0]} for this rank's part of the parameters"
            )
        return torch.from_numpy(own.state.copy())

    def _meet(self, when: str) -> None:
        barrier(self.replica.process_set, f"{self.replica.prefix}/centre {when}")

    def parameters(self) -> torch.Tensor:
        """This rank's parameters as a new vector on the CPU, like all vectors here."""
        elements = sum(each.numel() for each in self.replica.parameters.values())
        vector = torch.empty(elements, dtype=torch.float32, device="cpu")
        parameters = self.replica.parameters
        for name, part in self.in_parts(vector):
            part.copy_(parameters[name].detach())
        return vector

    def in_parts(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter's name with its part of such a vector: a view of the parameter's shape."""
        parameters = self.replica.parameters
        parts = torch.split(vector, [each.numel() for each in parameters.values()])
        for (name, each), part in zip(parameters.items(), parts, strict=True):
            yield name, part.view(each.shape)

    @torch.no_grad()
    def set_parameters(self, vector: torch.Tensor) -> None:
        """The inverse of :meth:`parameters`."""
        parameters = self.replica.parameters
        for name, part in self.in_parts(vector):
            parameters[name].copy_(part)

    def push(self, delta: torch.Tensor, **options: Any) -> Handle[None]:
        """Begins to add to the centre; ``options`` as for :meth:`rueda.server.Table.add`."""
        return self.table.add(delta.numpy(), **options)

    def pull(self, min_clock: int = 0) -> torch.Tensor:
        """Reads the centre, including all of this rank's earlier pushes, into ``pulled`` and returns that."""
        self.table.get(self.pulled.numpy(), min_clock=min_clock).result()
        return self.pulled

    def attempt(self, exchange: Callable[[], None]) -> None:
        """Calls ``exchange``; if a rank is lost, recovers and calls it again with the remaining ranks.

        Raises :class:`rueda.PeerLostError` or :class:`rueda.ShutdownError` if the world cannot be recovered.
        """
        while True:
            world = world_number()
            try:
                if not self._is_of_this_world():
                    self._go_on()
                exchange()
                return
            except (PeerLostError, ShutdownError) as error:
                of_world = self.replica.process_set is global_process_set
                if world != world_number() and of_world:
                    continue  # the application has called recover() meanwhile
                if not (of_world and is_loss(error)):
                    raise
                recover()

    def _go_on(self) -> None:
        """Continues in the new world with what the remaining ranks hold of the centre."""
        name = f"{self.replica.prefix}/centre goes on"
        told: list[tuple[int, int, int]] = allgather_object(
            (self.replica.steps, self._consolidated, self._whole_tables), name
        )
        steps = [each for each, _, _ in told]
        first = steps.index(max(steps))
        self._consolidated_by_any = max(each for _, each, _ in told)
        # If a rank was lost while all filled a table, they use that table only if some rank knew it to be complete,
        # and may have added to it. Otherwise all use the table before it.
        whole = max(each for _, _, each in told)
        if whole > self._whole_tables and self._next_table is not None:
            self._take_next_table()
        self._next_table = None
        if self.replicated and self._restore():
            self.rebase()
            return
        table = self._next_table = self._new_table()
        if rank() == first:
            table.put(self.pulled.numpy()).result()
        self._meet("is what was pulled")
        for part in self.table.parts():
            _put(table, part)
        if rank() == first:
            lost = self.table.owners - len(told)
            _log.warning(
                "%s goes on without %d rank(s): their parts of the parameters are as rank %d pulled them in step "
                "%d, and later pushes to them are lost",
                self.describe(),
                lost,
                first,
                self.replica.steps,
            )
        self._meet("is whole again")
        self._take_next_table()
        self.rebase()

    def _restore(self) -> bool:
        """Restores the centre from replicas, and returns whether they were complete; the same on every rank."""
        table = self._next_table = self._new_table()
        try:
            hand_over(self.table, table, table.put_part, self.replica.process_set)
        except PeerLostError:
            return False  # if one more rank was lost, the next exchange raises
        self._take_next_table()
        return True

    def _take_next_table(self) -> None:
        """Replaces the table by the next one, which is complete."""
        assert self._next_table is not None
        self.table, self._next_table = self._next_table, None
        self._world = self._world_of_new
        self._whole_tables += 1

    def rebase(self) -> None:
        """Called after ranks were lost: this rank continues from the current centre, without its local steps."""
        self.set_parameters(self.pull())

    def pull_async(self) -> Handle[torch.Tensor]:
        """Begins to read the centre into new memory."""
        return transformed(self.table.get(), torch.from_numpy)

    def needs_equal_steps(self) -> bool:
        return False

    def consolidate(self) -> None:
        number = self._consolidated + 1
        self.attempt(lambda: self._consolidate(number))
        self._consolidated = number

    def _consolidate(self, number: int) -> None:
        if self._consolidated_by_any >= number:
            # A rank was lost after others had completed this consolidation, which they do not repeat.
            self.set_parameters(self.pulled)
            return
        # Ranks that are still training must not wait for one that took fewer steps.
        self.table.finish().result()
        self._meet("is pushed to")
        self.set_parameters(self.pull())
        self.table.restart().result()
        self._meet("is consolidated")

    def stop(self) -> None:
        self._end_table()

    def state_dict(self) -> dict[str, Any]:
        begin, end = self._part()
        part = torch.empty(end - begin, dtype=torch.float32, device="cpu")
        self.table.get(part.numpy(), begin).result()
        state = {"centre": part, "pulled": self.pulled.clone(), "part": [begin, end]}
        return state if self.rule()[0] == "sum" else {**state, "kept_by_rule": self._kept_by_rule()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises :class:`rueda.InvalidArgumentError`, on every rank, if one has a state of another rank or model."""

        def prepare() -> tuple[None, dict[str, str]]:
            if state["pulled"].shape != self.pulled.shape:
                raise InvalidArgumentError(
                    f"the state belongs to other parameters: they have {state['pulled'].numel()} elements, and those "
                    f"here {self._size}"
                )
            if tuple(state["part"]) != self._part():
                raise InvalidArgumentError(
                    f"the state belongs to another rank, or another number of ranks: it has elements "
                    f"{state['part']} of the centre, and this rank owns {list(self._part())}"
                )
            return None, {}

        agree(f"{self.replica.prefix}/centre is loaded", self.replica.process_set, prepare)
        self.pulled.copy_(state["pulled"])
        self._put_part(state["centre"].cpu(), state.get("kept_by_rule"))


def _put(table: Table, part: Part) -> None:
    for handle in table.put_part(part):
        handle.result()
