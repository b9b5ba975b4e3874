"""Any torch optimizer, combined with a strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from rueda.arguments import whole_number
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.process_sets import ProcessSet, global_process_set, takes_part
from rueda.torch.compiling import never_compiled
from rueda.torch.compression_state import COMPRESSION_STATE
from rueda.torch.equiv import recorder as equiv
from rueda.torch.gradients import new_prefix
from rueda.torch.layered import laid_over, load_in_place, note_step, require_known
from rueda.torch.left_out import (
    STRATEGY_STATE,
    compression_matters,
    marked,
    require_whole,
    strategy_matters,
    unmarked,
)
from rueda.torch.model_tensors import tensors_of
from rueda.torch.optimizer import Distributed, names_of
from rueda.torch.reductions import allreduce
from rueda.torch.reproducible import Reproducible
from rueda.torch.shards import is_cut, require_same_parts
from rueda.torch.state import broadcast_optimizer_state
from rueda.torch.strategies.agreed import agree, layout_of, require_same
from rueda.torch.strategies.alike import begin_alike
from rueda.torch.strategies.beginning import Beginning
from rueda.torch.strategies.closed import Closed
from rueda.torch.strategies.names import trained_in, uncompiled, with_known_names
from rueda.torch.strategies.new_gradients import NewGradients
from rueda.torch.strategies.optimizer_state import (
    average_state,
    entry_names,
    take_rest,
)
from rueda.torch.strategies.parsing import strategy_of
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy
from rueda.trial_step import is_trial_step

__all__ = ["Wrapped", "wrap"]

Loss = torch.Tensor | float
_NOT_OF_MODEL = (
    "the optimizer has parameters that are not the model's: {}; create it from model.parameters() of the model that "
    "you wrap"
)


@never_compiled
class Wrapped(torch.optim.Optimizer):
    """The methods that wrap() adds on top of the class of its optimizer."""

    _rueda_replica: Replica
    _rueda_strategy: Strategy
    _rueda_steps_per_epoch: int | None
    _rueda_takes_step: bool | None  # what before_step() returned, if synchronize() has called it
    _rueda_beginning: Beginning  # of the strategy
    _rueda_new: NewGradients | None  # detects new gradients since then, if the strategy cannot

    def step(self, closure: Callable[[], Loss] | None = None) -> Any:
        """The optimizer's step, with the strategy's work before and after it.

        ``closure``: as for the optimizer. If the strategy averages gradients, the loss is averaged, too, so that an
        optimizer that decides by the loss decides the same on all ranks.
        """
        if is_trial_step():
            return super().step()
        replica, strategy = self._rueda_replica, self._rueda_strategy
        if closure is not None and not strategy.takes_closure:
            raise UnsupportedError(f"{strategy.describe()} takes no closure")
        if not strategy.reduces_gradients:
            replica.require_trained()
        require_known(
            self.param_groups, replica.known, "wrap() an optimizer that has all parameters"
        )
        self._rueda_beginning.end()
        note_step(self)
        result = None
        takes_step = True
        if closure is not None:
            result = super().step(lambda: self._evaluated(closure))  # type: ignore[arg-type,return-value]
        else:
            self.synchronize()
            takes_step, self._rueda_takes_step = bool(self._rueda_takes_step), None
            if takes_step:
                strategy.before_update()
                super().step()
        replica.batches += 1
        if takes_step:
            replica.steps += 1
            strategy.after_step()
        if self._rueda_steps_per_epoch and replica.batches % self._rueda_steps_per_epoch == 0:
            strategy.after_epoch()
        equiv.note_step()
        return result

    def _evaluated(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        strategy = self._rueda_strategy
        strategy.before_step()
        strategy.before_update()
        if not strategy.reduces_gradients_now():
            return loss
        local = (
            loss.detach()
            if isinstance(loss, torch.Tensor)
            else torch.tensor(loss, dtype=torch.float64, device="cpu")
        )
        average = allreduce(local, process_set=self._rueda_replica.process_set)
        return average if isinstance(loss, torch.Tensor) else float(average)

    def synchronize(self) -> None:
        """Waits until the gradients are those that step() will use, so that they can be clipped."""
        if self._rueda_is_due():
            self._rueda_beginning.end()
            if self._rueda_new is not None:
                self._rueda_new.have_come = False
            self._rueda_takes_step = self._rueda_strategy.before_step()

    def _rueda_is_due(self) -> bool:
        """Whether the strategy has yet to process the current gradients."""
        watched = self._rueda_new is not None and self._rueda_new.have_come
        return (
            self._rueda_takes_step is None
            or watched
            or bool(self._rueda_strategy.has_new_gradients())
        )

    def _rueda_begin(self, strategy: Strategy) -> None:
        """Installs a strategy that has started."""
        if self._rueda_new is not None:
            self._rueda_new.close()
        watches = strategy.reduces_gradients and strategy.has_new_gradients() is None
        parameters = self._rueda_replica.originals.values()
        self._rueda_new = NewGradients(parameters) if watches else None
        self._rueda_strategy = strategy
        self._rueda_beginning = Beginning(strategy)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether the optimizer unscales gradients itself, which torch's GradScaler.step() asks first.

        Raises InvalidArgumentError while gradients have yet to be averaged: each rank would decide by its own
        gradients whether to take the step, and unscale them before they are averaged.
        """
        strategy = self._rueda_strategy
        strategy.before_scaler()
        if strategy.reduces_gradients_now() and self._rueda_is_due():
            raise InvalidArgumentError(
                "GradScaler.step() was called before gradients were averaged over the ranks: call synchronize() first, "
                "before scaler.unscale_() and scaler.step()"
            )
        inherited = getattr(super(), "_step_supports_amp_scaling", False)
        return bool(vars(self).get("_step_supports_amp_scaling", inherited))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = supports

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients."""
        self._rueda_takes_step = None
        self._rueda_strategy.before_zero_grad()
        super().zero_grad(set_to_none)

    def end_epoch(self) -> None:
        """Tells the strategy that an epoch has ended; for wrap() without ``steps_per_epoch``. Collective."""
        self._rueda_strategy.after_epoch()

    def consolidate(self) -> None:
        """Gives the models of all ranks the same parameters: the current result of the training.

        Collective. Call it before the model is evaluated or saved, and at the end of the training. Within a period it
        is an exchange like those at the period's end, and the training continues from there. Batches that
        ``accumulate`` has added up for its next step are kept for that step. If an exchange has succeeded on some ranks
        only, as when a rank is lost meanwhile, the strategy starts anew from the mean of the parameters.

        Raises, on every rank, :class:`rueda.MismatchError` if ranks have taken different numbers of steps, unless the
        strategy lets them; and like the first step if weights were loaded since wrap().
        """
        self._rueda_beginning.require()
        strategy, replica = self._rueda_strategy, self._rueda_replica
        progress = []
        if strategy.needs_equal_steps():
            # Under a name of its own, so that a rank that is still in step() is not taken for one that has come here.
            progress = self._rueda_progress_of_ranks("consolidate")
            counts = [str(steps) for steps, *_ in progress]
            advice = "; switch() goes on from the mean of the ranks"
            require_same("number of steps", replica.process_set.ranks, counts, advice)
        if len(set(progress)) > 1:  # an exchange has succeeded on some ranks only
            Strategy.consolidate(strategy)
            strategy.complete_exchanges()
            strategy.start(replica)
        else:
            strategy.consolidate()

    def close(self, *, drop_incomplete: bool = False) -> None:
        """Ends the training with this optimizer: consolidates and releases the strategy's resources. Collective.

        Otherwise parameter tables, hooks and background work last as long as the process, which matters if many
        optimizers follow each other. The model keeps its parameters, and state_dict() gives the state of the
        consolidated training, which can be loaded into a new optimizer, and whose memory is released with this one;
        step(), load_state_dict() and the like then raise :class:`rueda.InvalidArgumentError`. Does nothing the second
        time.

        Raises as consolidate(), and :class:`rueda.InvalidArgumentError` if ``accumulate`` has batches whose step is
        yet to come: take it first, or drop them with ``drop_incomplete``.
        """
        old = self._rueda_strategy
        if isinstance(old, Closed):
            return
        if not drop_incomplete:
            old.before_switch()
        self.consolidate()
        if drop_incomplete:
            old.drop_incomplete()
        saved = self._rueda_strategy_state()
        old.stop()
        self._rueda_begin(Closed(old, saved))

    @property
    def strategy(self) -> Strategy:
        """The current strategy."""
        return self._rueda_strategy

    def switch(
        self,
        strategy: Strategy | str | None = None,
        *,
        mode: str | None = None,
        frequency: str | int | None = None,
        drop_incomplete: bool = False,
    ) -> None:
        """Continues with another strategy, given as for wrap(). Collective.

        All ranks start it with equal parameters, see :meth:`consolidate`, and with the mean of their optimizers' state,
        where a rank without state of a parameter, as it has had no gradient of it, counts as zeros. A parameter's step
        count comes from the first rank with state of it; learning rates and the like from the first with a step.
        If ranks have taken different numbers of steps where they must not, or an exchange has succeeded on some of them
        only, parameters are averaged nevertheless. Raises as wrap(); the training then continues with the current
        strategy.

        Also raises :class:`rueda.InvalidArgumentError` if ``accumulate`` has batches whose step is yet to come: take it
        first, or drop them with ``drop_incomplete``.
        """
        replica, old = self._rueda_replica, self._rueda_strategy

        def prepare() -> tuple[Strategy, dict[str, str]]:
            self._rueda_beginning.require()
            if not drop_incomplete:
                old.before_switch()
            new = _prepared(strategy_of(strategy, mode, frequency), replica)
            trained = [name for name, each in replica.originals.items() if each.requires_grad]
            return new, {
                "strategy": new.describe(),
                "parameters that require gradients": ", ".join(trained),
            }

        new = agree(f"{replica.prefix}/switch", replica.process_set, prepare)
        if old.needs_equal_steps() and len(set(self._rueda_progress_of_ranks("progress"))) > 1:
            Strategy.consolidate(old)  # its own may be an exchange on some ranks only
            old.complete_exchanges()
        else:
            old.consolidate()
        if not old.ranks_stay_equal:
            take_rest(replica, average_state(replica))
        old.stop()
        replica.begin(batches=self._rueda_batches_of_epoch())
        self._rueda_takes_step = None  # the new strategy has not been asked
        new.start(replica)
        self._rueda_begin(new)

    def _rueda_progress_of_ranks(self, what: str) -> list[tuple[int, ...]]:
        """How many steps each rank has taken, and in which its exchanges last succeeded. Collective.

        ``what``: the operation's name.
        """
        replica = self._rueda_replica
        own = (replica.steps, *self._rueda_strategy.exchanged_at())
        gathered = replica.gather(torch.tensor([own], device="cpu"), what)
        return [tuple(each) for each in gathered.tolist()]

    def _rueda_batches_of_epoch(self) -> int:
        """The batches of the current epoch, which continues with the next strategy: the maximum over ranks.

        Ranks may have taken different numbers of steps, but an epoch must end in the same step on all.
        """
        if self._rueda_steps_per_epoch is None:
            return 0
        replica = self._rueda_replica
        counts = replica.gather(torch.tensor([replica.batches], device="cpu"), "batches")
        return int(counts.max()) % self._rueda_steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with the state of this rank's strategy; after close(), with that of its end."""
        state: dict[str, Any] = super().state_dict()
        strategy = self._rueda_strategy
        added = strategy.saved if isinstance(strategy, Closed) else self._rueda_strategy_state()
        needed = [STRATEGY_STATE] if strategy_matters(added[STRATEGY_STATE]) else []
        if compression_matters(added.get(COMPRESSION_STATE)):
            needed.append(COMPRESSION_STATE)
        return marked(state | added, needed)

    def _rueda_strategy_state(self) -> dict[str, Any]:
        """What state_dict() adds to the optimizer's own state."""
        replica, strategy = self._rueda_replica, self._rueda_strategy
        kept = {
            "strategy": strategy.describe(),
            "steps": replica.steps,
            "batches": replica.batches,
            "trained": replica.trained,
            "kept": strategy.state_dict(),
            "ranks_stay_equal": strategy.ranks_stay_equal,
        }
        state: dict[str, Any] = {STRATEGY_STATE: kept}
        compression = strategy.compression_state()
        if compression is not None:
            state[COMPRESSION_STATE] = compression
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state; the strategy starts anew from the state of an optimizer without a strategy.

        Load the model first. The strategy goes on with the parameters that required gradients when it started, before
        the state was saved, whether they do now or not. Raises :class:`rueda.InvalidArgumentError` for the state of
        another strategy or of other parameters, for one of torch's get_state_dict() that lacks what the strategy
        keeps, and after close().

        Collective for strategies in pairs and over a table (:attr:`Strategy.loads_together`): a rank that has no state
        to load must tell the others by other means before they call this. If one rank's state is invalid, all raise
        :class:`rueda.InvalidArgumentError`; load another state before the next step.
        """
        rest = unmarked(dict(state_dict))
        kept = rest.pop(STRATEGY_STATE, None)
        compression = rest.pop(COMPRESSION_STATE, None)
        replica, strategy = self._rueda_replica, self._rueda_strategy
        if isinstance(strategy, Closed):
            strategy.refuse()
        load_optimizer = partial(super().load_state_dict, rest)
        known = replica.originals.keys()

        def prepare() -> tuple[tuple[int, int, list[str] | None], dict[str, str]]:
            require_whole(state_dict, *self._rueda_own_keys())
            if kept is not None and kept["strategy"] != strategy.describe():
                raise InvalidArgumentError(
                    f"the state belongs to {kept['strategy']}, but this is {strategy.describe()}: wrap() with the "
                    f"state's strategy, load it, then switch()"
                )
            begun: tuple[int, int, list[str] | None] = (0, 0, None)
            if kept is not None:
                begun = int(kept["steps"]), int(kept["batches"]), trained_in(kept, known)
            load_in_place(self, load_optimizer)
            return begun, {}

        if strategy.loads_together:
            begun = agree(f"{replica.prefix}/state is loaded", replica.process_set, prepare)
        else:
            begun, _ = prepare()
        replica.begin(*begun)
        self._rueda_takes_step = None
        strategy.start(replica)
        strategy.load_compression_state(with_known_names(compression, known))
        self._rueda_beginning = Beginning(strategy)
        if kept is not None:
            strategy._forget_exchanges()
            strategy.load_state_dict(with_known_names(kept["kept"], known))
            self._rueda_beginning.is_over = (
                True  # the copy fits the saved parameters, whenever those are loaded
            )

    def _rueda_own_keys(self) -> list[str]:
        """What a state needs of state_dict()'s own keys to continue a training with this strategy."""
        strategy = self._rueda_strategy
        compresses = strategy.compression_state() is not None
        goes_on_alone = strategy.ranks_stay_equal and not strategy.state_dict()
        keys = [] if goes_on_alone else [STRATEGY_STATE]
        return [*keys, COMPRESSION_STATE] if compresses else keys

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Always raises UnsupportedError: strategies keep state for each parameter from the start."""
        raise UnsupportedError("give the optimizer all its parameters before wrap()")

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a wrapped optimizer is not copied: copy the plain one, and wrap the copy on every rank"
        )


# torch wraps each class's step() to run the application's hooks; the optimizer's own class is already wrapped.
Wrapped.step.hooked = True  # type: ignore[attr-defined]


def wrap(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy | str | None = None,
    *,
    mode: str | None = None,
    frequency: str | int | None = None,
    steps_per_epoch: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer like ``optimizer`` that trains ``model`` on all ranks by a strategy. Collective.

    The one line that makes a training loop distributed: the loop keeps its zero_grad(), backward() and step(), on this
    rank's share of the data. All ranks start with the optimizer of the first, and with the parameters and buffers of
    its model; the extra state of modules stays, and so do buffers that are not persistent and differ in shape between
    ranks. The result is an instance of ``optimizer``'s class and shares its state and param_groups, so learning rate
    schedulers work as before; use it instead of ``optimizer`` from now on. Load weights before: with a strategy that
    keeps a copy of them, the first step raises :class:`rueda.InvalidArgumentError` on each rank where they have
    changed. docs/strategies.md helps to choose a strategy.

    - ``strategy``: a :class:`rueda.torch.strategies.Strategy`, or a text such as ``"local:8"``, ``"diloco:16"`` or
      ``"diloco:16,codec=int8"``. By default ``"sync"``: gradients are averaged in every step. In a run of
      `rueda equiv` the default is the strategy under test, and the model's state is recorded after each step.
    - ``mode`` and ``frequency``: instead of ``strategy``, as in Elephas: ``mode="synchronous"`` with
      ``frequency="batch"`` for ``"sync"``, ``"epoch"`` for ``"oneshot"``, or a number k of batches for ``"local:k"``;
      ``"asynchronous"`` for ``"downpour"`` and ``"hogwild"`` for itself, with that frequency as their window.
    - ``steps_per_epoch``: how many calls of step() are an epoch, for strategies that depend on epochs. Without it,
      call ``end_epoch()`` after each epoch.
    - ``process_set``: the ranks that train together; all by default. For a model that is sharded over ranks
      (``DTensor`` parameters of FSDP2 or tensor parallelism), the ranks that hold the same shard, see
      :class:`rueda.torch.parallel.Grid`.

    Besides the optimizer's own methods there are ``consolidate()``, which gives all ranks the same parameters before
    the model is evaluated or saved; ``switch(strategy)``, to continue with another; ``close()``, if many optimizers
    follow each other; ``synchronize()``, after which gradients can be clipped; ``end_epoch()``; and ``strategy``.
    ``state_dict()`` includes the strategy's state, which differs between ranks: every rank saves and loads its own.

    Raises, on every rank, :class:`rueda.MismatchError` if strategies, their parameters, or models differ between
    ranks; :class:`rueda.InvalidArgumentError` for an unknown or invalid strategy, an optimizer without the state that
    the strategy needs, parameters of the optimizer that are not in the model, or parameters that differ between ranks
    because another wrapped optimizer trains them (call its consolidate() first); and :class:`rueda.UnsupportedError`
    for parameters that the strategy does not support, or an optimizer whose state it cannot foresee. The world survives
    each of these errors.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy="local:8")
        >>> for batch in torch.ones(16, 4, 3):
        ...     optimizer.zero_grad()
        ...     model(batch).sum().backward()
        ...     optimizer.step()
        >>> optimizer.consolidate()
    """
    if not takes_part(process_set):
        raise InvalidArgumentError(f"this rank is not a member of {process_set!r}")

    def prepare() -> tuple[tuple[Strategy, Replica, int | None], dict[str, str]]:
        if isinstance(optimizer, Distributed | Reproducible | Wrapped):
            raise InvalidArgumentError("the optimizer is a distributed one already")
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgumentError(
                f"a {type(model).__name__} is not a model: call wrap(model, optimizer) with a torch.nn.Module"
            )
        period = steps_per_epoch
        if period is not None:
            period = whole_number("steps_per_epoch", period, 1)
        by_default = strategy is None and mode is None and frequency is None
        chosen = strategy_of(equiv.strategy() if by_default else strategy, mode, frequency)
        names = uncompiled(names_of(optimizer, model.named_parameters(), _NOT_OF_MODEL))
        replica = Replica(optimizer, {n: p for p, n in names.items()}, process_set, prefix)
        replica.sparse = {names[each] for each in _sparse_in(model) if each in names}
        settings = {
            "strategy": chosen.describe(),
            "number of steps per epoch": str(period),
            "optimizer": type(optimizer).__name__,
            **layout_of(tensors_of(model)),
            "parameters of the optimizer": ", ".join(replica.originals),
            "parameters that require gradients": ", ".join(replica.parameters),
            "parameters that are sharded over ranks": ", ".join(
                name for name, each in replica.originals.items() if is_cut(each)
            ),
        }
        return (_prepared(chosen, replica), replica, period), settings

    prefix = new_prefix(process_set, "strategy")
    chosen, replica, period = agree(f"{prefix}/wrap", process_set, prepare)
    require_same_parts(replica.originals.items(), f"{prefix}/parts", process_set)
    begin_alike(model, replica)
    broadcast_optimizer_state(optimizer, process_set.ranks[0], process_set)
    wrapped = laid_over(Wrapped, optimizer)
    wrapped._rueda_replica = replica
    wrapped._rueda_new = None
    wrapped._rueda_steps_per_epoch = period
    wrapped._rueda_takes_step = None
    replica.optimizer = wrapped
    chosen.start(replica)
    wrapped._rueda_begin(chosen)
    equiv.watch_wrapped(model)
    return wrapped


def _sparse_in(model: torch.nn.Module) -> set[torch.Tensor]:
    """The parameters of which a module says that their gradients are sparse, and that no other module has, too."""
    sparse: set[torch.Tensor] = set()
    others: set[torch.Tensor] = set()
    for module in model.modules():
        is_table = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
        found = sparse if is_table and module.sparse else others
        found.update(module.parameters(recurse=False))
    return sparse - others


def _check_devices(replica: Replica) -> None:
    gpu = next((each.device for each in replica.parameters.values() if each.is_cuda), None)
    for name, each in replica.parameters.items():
        if not each.is_cpu and each.device != gpu:
            raise UnsupportedError(
                f"'{name}' is on '{each.device}': strategies are for parameters in the CPU's memory and on one GPU"
            )


def _prepared(strategy: Strategy, replica: Replica) -> Strategy:
    """A copy of the strategy that fits the replica. Raises InvalidArgumentError or UnsupportedError."""
    _check_devices(replica)
    strategy.validate(replica)
    if strategy.state_needed:
        kept = entry_names(replica)
        for some in strategy.state_needed:
            if kept.isdisjoint(some):
                raise InvalidArgumentError(
                    f"{strategy.describe()} needs an optimizer that keeps {' or '.join(some)} for each parameter, and "
                    f"{type(replica.optimizer).__name__} keeps {', '.join(sorted(kept)) or 'nothing'}"
                )
    return replace(strategy)
