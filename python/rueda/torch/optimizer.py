"""Wraps any torch optimizer so that it uses averaged gradients."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from rueda.compression import Codec
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.leaves import Leaves
from rueda.operations import Average, ReduceOp, Sum
from rueda.process_sets import ProcessSet, global_process_set, takes_part
from rueda.torch.agreement import PeriodicCheck
from rueda.torch.buckets import DEFAULT_BUCKET_BYTES, GradientBuckets
from rueda.torch.compiling import never_compiled
from rueda.torch.compression import (
    CompressionPolicy,
    Compressor,
    Rules,
    policy_of,
    require_no_momentum,
)
from rueda.torch.compression_state import COMPRESSION_STATE, CompressionState
from rueda.torch.deferred_updates import (
    DeferredUpdates,
    Update,
    cannot_defer,
    updates_each_alone,
)
from rueda.torch.gradient_groups import agree_on_groups
from rueda.torch.gradients import GradientReducer, ReducerOptions, new_prefix
from rueda.torch.layered import laid_over, load_in_place, note_step, require_known
from rueda.torch.left_out import (
    compression_matters,
    marked,
    refuse_strategy,
    require_whole,
    unmarked,
)
from rueda.torch.reductions import allreduce
from rueda.torch.reproducible import Reproducible, make_reproducible
from rueda.torch.shards import is_cut, require_same_parts
from rueda.torch.state import require_optimizer
from rueda.trial_step import is_trial_step

__all__ = ["Distributed", "DistributedOptimizer", "is_skipped", "names_of"]

Loss = torch.Tensor | float


@never_compiled
class Distributed(torch.optim.Optimizer):
    """The methods that DistributedOptimizer() adds on top of the class of its optimizer."""

    _rueda: GradientReducer
    _rueda_synchronizes: bool
    _rueda_deferred: DeferredUpdates
    _rueda_clears: bool | None  # set_to_none, if zero_grad() was called while updates were pending
    _rueda_check: PeriodicCheck
    _rueda_told: bool  # whether the user was told why step() waits

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, including what compression has lost of gradients so far on this rank."""
        self._rueda_deferred.finish()
        state: dict[str, Any] = super().state_dict()
        kept = self._rueda.compression_state()
        if kept is not None:
            state[COMPRESSION_STATE] = kept
        return marked(state, [COMPRESSION_STATE] if compression_matters(kept) else [])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state. Gradients in flight are discarded, so that a step can be repeated.

        Raises InvalidArgumentError for the state of an optimizer of wrap() whose strategy has something to lose, and
        for one of torch's get_state_dict() that lacks what compression has lost of gradients.
        """
        self._rueda_deferred.finish()
        refuse_strategy(state_dict)
        if self._rueda.options.policy is not None:
            require_whole(state_dict, COMPRESSION_STATE)
        self._rueda.give_up()
        rest = unmarked(dict(state_dict))
        self._rueda.load_compression_state(rest.pop(COMPRESSION_STATE, None))
        load_in_place(self, partial(super().load_state_dict, rest))

    def step(self, closure: Callable[[], Loss] | None = None) -> Any:
        """Waits for the gradients' reduction, then takes the optimizer's step.

        With ``overlap_forward`` both are deferred where possible: see DistributedOptimizer().

        ``closure`` may be called several times. Each time, its gradients are reduced and its loss is averaged over the
        ranks, so that an optimizer that decides by the loss decides the same everywhere. It must return a loss on all
        ranks or on none.
        """
        if is_trial_step():
            self._rueda_deferred.finish()
            return super().step()
        note_step(self)
        remedy = "use add_param_group() of the distributed optimizer, or make another"
        require_known(self.param_groups, self._rueda.known, remedy)
        result = self._step(closure)
        if self._rueda_check.is_due():
            self._rueda_deferred.finish()
            parameters = [p for group in self.param_groups for p in group["params"]]
            self._rueda_check.run(zip(self._rueda.names(), parameters, strict=True))
        return result

    def _step(self, closure: Callable[[], Loss] | None) -> Any:
        self._rueda_deferred.finish()
        if closure is not None:
            return super().step(lambda: self._reduced(closure))  # type: ignore[arg-type,return-value]
        if self._rueda_synchronizes and not self._rueda.synchronized:
            if self._defers():
                return self._defer()
            self.synchronize()
        if not is_skipped(self):
            self._rueda.require_finite()
            self._rueda.scaler_decides = False
        self._rueda.synchronized = False
        return super().step()

    def _defers(self) -> bool:
        reducer = self._rueda
        if not (reducer.options.overlap_forward and reducer.may_defer()):
            return False
        own = vars(self)
        has_hooks = own.get("_optimizer_step_pre_hooks") or own.get("_optimizer_step_post_hooks")
        scaled = own.get("grad_scale") is not None or own.get("found_inf") is not None
        why_not = "hooks of step() are registered" if has_hooks else cannot_defer()
        if why_not and not self._rueda_told:
            self._rueda_told = True
            warnings.warn(f"step() waits despite overlap_forward=True: {why_not}", stacklevel=3)
        return not (why_not or scaled)

    def _defer(self) -> None:
        # With the current learning rate, even if a scheduler changes it before the update is made.
        options = [{name: _kept(value) for name, value in g.items()} for g in self.param_groups]
        group_of = {
            parameter: number
            for number, group in enumerate(self.param_groups)
            for parameter in group["params"]
        }
        with torch._C.DisableTorchFunction():
            parts, finished = self._rueda.defer()

        def update(parameters: Iterable[torch.Tensor]) -> None:
            chosen: dict[int, dict[str, Any]] = {}
            for parameter in parameters:
                number = group_of[parameter]
                group = chosen.setdefault(number, {**options[number], "params": []})
                group["params"].append(parameter)
            with self._only(list(chosen.values())):
                super(Distributed, self).step()
                if self._rueda_clears is not None:
                    super(Distributed, self).zero_grad(self._rueda_clears)

        def make(parameters: list[torch.Tensor], receive: Callable[[], None]) -> None:
            receive()
            update(parameters)

        self._rueda_clears = None
        reduced = {parameter for parameters, _ in parts for parameter in parameters}
        update(parameter for parameter in group_of if parameter not in reduced)
        updates = [
            Update(parameters, partial(make, parameters, receive)) for parameters, receive in parts
        ]
        self._rueda_deferred.begin(updates, finished)

    @contextmanager
    def _only(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """Within the block, the optimizer has only these parameter groups."""
        kept, self.param_groups = self.param_groups, groups
        try:
            yield
        finally:
            self.param_groups = kept

    def synchronize(self) -> None:
        """Waits until every parameter's ``.grad`` is reduced, so that gradients can be clipped before step()."""
        self._rueda_deferred.finish()
        self._rueda.synchronize()

    def finish_updates(self) -> None:
        """With ``overlap_forward``, makes the updates that step() has deferred; raises their errors."""
        self._rueda_deferred.finish()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the block, step() does not synchronize. After synchronize(), step() never repeats it."""
        self._rueda_synchronizes = False
        try:
            yield
        finally:
            self._rueda_synchronizes = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients; raises InvalidArgumentError while they are being reduced."""
        in_flight = self._rueda.in_flight()
        if in_flight:
            raise InvalidArgumentError(
                f"zero_grad() was called after backward() and before step() or synchronize(), while "
                f"{len(in_flight)} gradients are being reduced, '{in_flight[0]}' among them"
            )
        self._rueda.forget_skipped()
        self._rueda.start_over()
        deferred = self._rueda_deferred
        if not deferred.are_left():
            return super().zero_grad(set_to_none)
        # The other parameters' gradients are cleared once they have been used.
        self._rueda_clears = set_to_none
        groups = [
            {**group, "params": [p for p in group["params"] if not deferred.awaits(p)]}
            for group in self.param_groups
        ]
        with self._only(groups), torch._C.DisableTorchFunction():
            super().zero_grad(set_to_none)
        return None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; its parameters are named by their position."""
        self._rueda_deferred.finish()
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        for position, parameter in enumerate(self.param_groups[number]["params"]):
            self._rueda.add(parameter, _position(number, position))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes the number of backward passes per step."""
        _check_passes(passes)
        self._rueda_deferred.finish()
        self._rueda.passes = passes
        self._rueda.start_over()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler checks first in its step(): whether the optimizer unscales gradients itself.

        Raises InvalidArgumentError while gradients are being reduced. They would be unscaled meanwhile, and each rank
        would decide on its own whether to take the step.
        """
        reducer = self._rueda
        in_flight = [] if reducer.synchronized else reducer.in_flight()
        waits = self._rueda_synchronizes and not reducer.synchronized and reducer.is_member
        if waits or in_flight:
            which = f", '{in_flight[0]}' among them," if in_flight else ""
            raise InvalidArgumentError(
                f"GradScaler.step() was called before gradients{which} were reduced: call synchronize() first, before "
                f"scaler.unscale_() and scaler.step()"
            )
        reducer.scaler_decides = True
        inherited = getattr(super(), "_step_supports_amp_scaling", False)
        return bool(vars(self).get("_step_supports_amp_scaling", inherited))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = supports

    def gradient_buckets(self) -> GradientBuckets:
        """How gradients are kept: which are in which bucket, or why none is. Settled at the end of the first step."""
        return self._rueda.buckets()

    def __copy__(self) -> Any:
        """Raises InvalidArgumentError: a copy would reduce the gradients of the same parameters once more."""
        raise InvalidArgumentError(
            "a shallow copy of a DistributedOptimizer would reduce the same gradients once more: use "
            "copy.deepcopy((model, optimizer)), or state_dict()"
        )

    def __reduce__(self) -> Any:
        """A deep copy is distributed as well, with its own names: every rank must make it, in the same order."""
        self._rueda_deferred.finish()
        kind = type(self)
        layer, base = kind.__bases__
        reducer = self._rueda
        return _restored, (
            layer,
            base,
            self.__getstate__(),
            reducer.names(),
            reducer.options,
            reducer.passes,
            reducer.compression_state(),
        )

    def _reduced(self, closure: Callable[[], Loss | None]) -> Loss | None:
        with torch.enable_grad():
            loss = closure()
        if self._rueda_synchronizes:
            self.synchronize()
        self._rueda.require_finite()
        process_set = self._rueda.options.process_set
        if loss is None or not takes_part(process_set):
            return loss
        local = (
            loss.detach()
            if isinstance(loss, torch.Tensor)
            else torch.tensor(loss, dtype=torch.float64, device="cpu")
        )
        average = allreduce(local, op=Average, process_set=process_set)
        return average if isinstance(loss, torch.Tensor) else float(average)


# torch wraps each class's step() to run the application's hooks; the class below has been wrapped already.
Distributed.step.hooked = True  # type: ignore[attr-defined]


def DistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Compressor | CompressionPolicy | Codec | str | Rules | None = None,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    gradient_as_bucket_view: bool | None = None,
    bucket_bytes: int | None = None,
    groups: int | Iterable[Iterable[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    overlap_forward: bool = False,
    check_every: int = 0,
    reproducible: bool = False,
    leaves: int | Leaves | None = None,
    seed: int = 0,
    leaf_threads: int = 1,
    named_buffers: Iterable[tuple[str, torch.Tensor]] = (),
    layer: type[Distributed] = Distributed,
) -> Any:
    """Returns an optimizer like ``optimizer`` whose step() uses the gradients of all ranks.

    Each gradient is reduced as soon as backward() has computed it, while backward() continues. The result is an
    instance of ``optimizer``'s class and shares its state and param_groups. So state_dict(), load_state_dict() and
    learning rate schedulers, including existing ones, work as before. Use it in place of ``optimizer`` from now on.

    - ``named_parameters``: usually ``model.named_parameters()``; names appear in errors and must be the same on every
      rank. By default parameters are named by their position.
    - ``compression``: by default gradients are sent uncompressed. A codec of :mod:`rueda.compression` or its name
      for all gradients, a mapping from name patterns to codecs for some, such as ``{"*.bias": None, "*": "int8"}``, or
      a :class:`CompressionPolicy`, which also sets a minimum size and error feedback; the core does this compression,
      on the CPU, but not of sparse gradients. Or one of :class:`Compression` or your own.
    - ``backward_passes_per_step``: the gradients of this many backward passes are summed in ``.grad``, then reduced. As
      in Horovod, they are summed over passes and averaged over ranks: divide the loss by the number of passes to
      average over both.
    - ``op``: Average (the default) or Sum, over the ranks.
    - ``gradient_predivide_factor`` f: with Average, divides by f before the sum and by size/f after it.
    - ``process_set``: the ranks that average; all ranks by default.
    - ``gradient_as_bucket_view``: whether gradients are packed into buckets, in memory that the ranks of the host
      share, and reduced together, on one host without a copy. By default they are, unless there is one rank and no GPU;
      but a CPU gradient of 16 MiB or more that is in no group is then reduced where autograd has put it, unless the
      ranks of one host may not access each other's memory. The same on every rank.
    - ``bucket_bytes``: the size at which a bucket is full; by default 8 MiB, and 25 MiB on a GPU.
    - ``groups``: gradients to reduce together, none before all of them are ready: lists of parameters, or a number of
      groups with about equally many parameters each. Each group has a bucket per dtype; without buckets it is a grouped
      allreduce. A parameter in no list is treated as without groups. The ranks compare their groups immediately, so all
      of them must create the optimizer.
    - ``sparse_as_dense``: reduces sparse gradients, as from ``Embedding(sparse=True)``, as dense ones and makes them
      sparse again. By default they use :func:`rueda.torch.sparse_allreduce`, which sends less if few rows are used, and
      come back coalesced. A rank without such a gradient contributes none, if it had a sparse one before.
    - ``overlap_forward``: step() does not wait. Each parameter is updated when it is used next, for example by its
      layer in the next forward pass, while gradients of later layers are still in flight; those that are needed
      first go first (see ``priority`` of :func:`rueda.torch.allreduce_async`). The parameters become the same, bit by
      bit, as without. Only for the torch optimizers that update each element from its own gradient. Any torch function,
      method or attribute access that uses a parameter sees it updated, such as ``state_dict()`` or a norm or average of
      weights, and so does ``.grad``, but only in the thread that calls step(). Call ``finish_updates()`` after step()
      before another thread, TorchScript, a transformation of torch.func, or a NumPy array or view made earlier reads a
      parameter's memory, before a model is compiled, and before you read ``optimizer.state``. An error of a reduction
      is raised at that use; other parameters are updated. Clear gradients with ``optimizer.zero_grad()``, since
      ``model.zero_grad()`` waits. step() waits as usual with a closure, after synchronize(), with hooks of step(), in
      the first step, in hooks of backward(), with torch.compile() and within ``torch.device(...)``.
    - ``check_every``: each time this many steps have been taken, which all ranks count alike, the parameters of all
      ranks are compared bit by bit, see :func:`check_agreement`. If less than half of the ranks differ, they get the
      majority's parameters, with a warning that names rank, tensor and element; otherwise :class:`DivergenceError` is
      raised. 0, the default, compares nothing.
    - ``reproducible``: the parameters get the same bits regardless of the number of ranks. The global batch consists of
      ``leaves``, the same number in every run. The loop goes through those of this rank,
      ``for leaf in optimizer.leaves():``, and calls backward() once for each. Gradients are averaged over the leaves
      (docs/reproducible.md). ``seed``: for randomness within leaves. ``leaf_threads``: the number of threads with which
      torch computes a leaf, since its kernels divide their sums among threads, and launchers give a rank fewer threads
      the more ranks there are. ``named_buffers``: usually ``model.named_buffers()``, those that forward() changes, as
      in BatchNorm; they are averaged over the leaves as well. Only ``process_set`` and ``bucket_bytes`` of the other
      options can be combined with it. Parameters must be on the CPU.
    - ``layer``: for compatible APIs, a subclass with the methods that go on top of those of ``optimizer``.

    For a parameter that is sharded over ranks (``DTensor`` of FSDP2 or tensor parallelism), the part that this rank
    holds is reduced, separately. So ``process_set`` must be the ranks that hold the same part, as in
    ``rueda.torch.parallel.Grid(replicate=2, shard=2).process_set("replicate")``; this call is then collective.

    With buckets, each ``.grad`` is replaced by a tensor in its bucket at the end of the first step, and whenever
    backward() has made a new one, as it does after ``zero_grad()``; after ``zero_grad(set_to_none=False)`` it adds to
    the existing one. Every other use of ``.grad`` works as before. Gradients that cannot be in a bucket are reduced
    separately: all of them with a compressor of your own, those with a codec, sparse ones, and those of parameters that
    are added later or change. ``optimizer.gradient_buckets()`` says which and why.

    A parameter without a gradient on this rank contributes zeros, since it may have one elsewhere; its ``.grad`` is
    never ``None`` after a step.

    Besides the optimizer's own methods there are ``finish_updates()``, see above; ``synchronize()``, which waits for
    the gradients so that they can be clipped; ``skip_synchronize()``, a context in which step() does not;
    ``set_backward_passes_per_step(n)``; and ``gradient_buckets()``.
    zero_grad() between backward() and step(), and more backward passes than agreed, raise
    :class:`rueda.InvalidArgumentError`. So does step() on a rank on which a gradient was written, resized or replaced
    while it was being reduced; the other ranks cannot know, and take their step.

    Gradients are being reduced from backward() on: anything else that reads or writes them must come after
    synchronize(). With a ``GradScaler``, call it before ``scaler.unscale_()`` and ``scaler.step()``, so that all ranks
    decide by the same gradients whether to take the step; ``scaler.step()`` without it raises
    :class:`rueda.InvalidArgumentError`::

        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)  # where gradients are clipped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    If a codec finds a NaN, an infinity or a number that it cannot represent in a gradient, the gradient is NaN on all
    ranks after synchronize(). So a scaler skips the step, and what was kept for later gradients is reset; step() raises
    :class:`rueda.InvalidArgumentError` with the ``reason`` ``"not_finite"``.

    Raises :class:`rueda.InvalidArgumentError` (a ValueError) for repeated or missing names and invalid options,
    :class:`rueda.UnsupportedError` if an option does not support sharded parameters, and :class:`rueda.MismatchError`
    if ranks hold different parts of them. The first step raises it if ranks have given different codecs or policies.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.synchronize()
        >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        >>> optimizer.step()
    """
    if isinstance(optimizer, (Distributed, Reproducible)):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already")
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op={op!r}: gradients are averaged or summed")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor works with op=rueda.Average only")
    if not gradient_predivide_factor > 0:
        raise InvalidArgumentError(
            f"gradient_predivide_factor={gradient_predivide_factor} is not positive"
        )
    _check_passes(backward_passes_per_step)
    if check_every < 0:
        raise InvalidArgumentError(f"check_every={check_every} is negative")
    if bucket_bytes is not None and bucket_bytes < 1:
        raise InvalidArgumentError(f"bucket_bytes={bucket_bytes} is less than 1")
    names = names_of(optimizer, named_parameters)
    cut = next((name for parameter, name in names.items() if is_cut(parameter)), None)
    for option, given in (("reproducible", reproducible), ("overlap_forward", overlap_forward)):
        if given and cut is not None:
            raise UnsupportedError(f"{option}=True: '{cut}' is sharded over ranks (DTensor)")
    if reproducible:
        excluded = {
            "compression": compression is not None,
            "backward_passes_per_step": backward_passes_per_step != 1,
            "op": op != Average,
            "gradient_predivide_factor": gradient_predivide_factor != 1.0,
            "gradient_as_bucket_view": gradient_as_bucket_view is not None,
            "groups": groups is not None,
            "sparse_as_dense": sparse_as_dense,
            "overlap_forward": overlap_forward,
            "check_every": check_every != 0,
            "layer": layer is not Distributed,
        }
        for option, given in excluded.items():
            if given:
                raise InvalidArgumentError(f"reproducible=True excludes {option}")
        if leaves is None:
            raise InvalidArgumentError(
                "reproducible=True needs leaves, such as leaves=8, the same in every run"
            )
        if leaf_threads < 1:
            raise InvalidArgumentError(f"leaf_threads={leaf_threads} is less than 1")
        prefix = new_prefix(process_set)
        return make_reproducible(
            optimizer,
            names,
            prefix,
            leaves,
            seed,
            leaf_threads,
            named_buffers,
            process_set,
            bucket_bytes or DEFAULT_BUCKET_BYTES["cpu"],
        )
    if leaves is not None:
        raise InvalidArgumentError("leaves= needs reproducible=True")
    if overlap_forward and not updates_each_alone(type(optimizer)):
        raise InvalidArgumentError(
            f"overlap_forward=True: {type(optimizer).__name__} is not known to update each parameter by its own "
            f"gradient alone"
        )
    if overlap_forward and optimizer.defaults.get("differentiable"):
        raise InvalidArgumentError("overlap_forward=True excludes differentiable=True")
    if cut is not None and takes_part(process_set):
        require_same_parts(
            ((name, parameter) for parameter, name in names.items()),
            "parts of parameters",
            process_set,
        )
    compressor, policy = policy_of(compression)
    require_no_momentum(policy, optimizer.param_groups)

    options = ReducerOptions(
        compressor,
        op,
        gradient_predivide_factor,
        process_set,
        gradient_as_bucket_view,
        bucket_bytes,
        sparse_as_dense,
        agree_on_groups(groups, names, process_set),
        policy,
        overlap_forward,
        check_every,
    )
    return _distributed(layer, optimizer, names, options, backward_passes_per_step)


def _distributed(
    layer: type[Distributed],
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    options: ReducerOptions,
    passes: int,
) -> Any:
    """Builds the result of DistributedOptimizer(), with the methods of ``layer``."""
    distributed = laid_over(layer, optimizer)
    reducer = GradientReducer(options, passes)
    distributed._rueda = reducer
    distributed._rueda_synchronizes = True
    distributed._rueda_deferred = deferred = DeferredUpdates()
    if options.overlap_forward:
        weakref.finalize(distributed, deferred.release).atexit = False
    distributed._rueda_told = False
    distributed._rueda_check = PeriodicCheck(options.check_every, options.process_set)
    reducer.before_gradients = deferred.finish
    for parameter, name in names.items():
        reducer.add(parameter, name)
    reducer.form_groups()
    return distributed


def _restored(
    layer: type[Distributed],
    base: type[torch.optim.Optimizer],
    state: dict[str, Any],
    names: Iterable[str],
    options: ReducerOptions,
    passes: int,
    compression: CompressionState | None = None,
) -> Any:
    """The inverse of __reduce__()."""
    optimizer = base.__new__(base)
    optimizer.__setstate__(state)
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    named = dict(zip(parameters, names, strict=True))
    distributed = _distributed(layer, optimizer, named, options, passes)
    distributed._rueda.load_compression_state(compression)
    return distributed


def is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler has told an optimizer that unscales on its own to change nothing in this step."""
    not_finite = getattr(optimizer, "found_inf", None)
    return not_finite is not None and bool(not_finite)


def _kept(option: Any) -> Any:
    """A group's option with its current value."""
    return option.clone() if isinstance(option, torch.Tensor) else option


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step={passes} is less than 1")


def _position(group: int, position: int) -> str:
    return f"group{group}.parameter{position}"


def names_of(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    lacking: str = "named_parameters lacks parameters of the optimizer: {}",
) -> dict[torch.Tensor, str]:
    """The name of each of the optimizer's parameters; raises InvalidArgumentError for missing and repeated ones.

    ``lacking``: the error's text about missing ones, with a place for their list.
    """
    require_optimizer(optimizer)
    positions = {
        parameter: _position(number, position)
        for number, group in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return positions
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidArgumentError(
            "named_parameters must be pairs (name, parameter), as from model.named_parameters()"
        )
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if repeated:
        raise InvalidArgumentError(f"named_parameters has names twice: {', '.join(repeated)}")
    names = {parameter: name for name, parameter in pairs}
    missing = [
        f"{position} of shape {list(parameter.shape)}"
        for parameter, position in positions.items()
        if parameter not in names
    ]
    if missing:
        raise InvalidArgumentError(lacking.format(", ".join(missing)))
    return {parameter: names[parameter] for parameter in positions}
