"""All collectives, written once for every array library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from rueda import _native, dtypes
from rueda.adapter import Adapter, Refusal, View, change_among
from rueda.aliases import are_apart, repeated
from rueda.arguments import (
    factor_of,
    label_of,
    priority_of,
    reduction_of,
    root_of,
    rows_of,
    shown,
    text_of,
)
from rueda.compression import Codec, Feedback, codec_of
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle, combine
from rueda.operations import ReduceOp
from rueda.process_sets import ProcessSet, identify

__all__ = [
    "NO_WIRE",
    "Collectives",
    "changed_in_flight",
    "part_name",
    "refuse",
    "replaced_in_flight",
    "written_in_flight",
]

# Elements are sent in their own type. Otherwise: the number of the type in which float32 and float64 are sent.
NO_WIRE = -1

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class _Members(Generic[A]):
    """The members of a grouped operation, as columns for the engine, and what is needed afterwards."""

    targets: list[A]
    inputs: list[int]
    outputs: list[int]
    shapes: Sequence[tuple[int, ...]]
    dtypes: list[int]
    devices: list[int]
    stream: int
    follow: Callable[[Sequence[_native.Handle]], None] | None
    references: object
    require_unchanged: Callable[[str | None], None]  # given the group's name, once it is done


def part_name(name: str | None, number: int) -> str | None:
    """The name of one of several tensors that share a name; ``None`` if they have no name."""
    return None if name is None else f"{name}.{number}"


def refuse(
    name: str | None, process_set: ProcessSet, refusal: Refusal, group_size: int = 0
) -> Handle[None]:
    """Takes part in the operation ``name`` by making it fail: every rank's handle raises an error with the reason.

    ``group_size``: the number of tensors of a grouped operation, otherwise 0.
    """
    begin = partial(
        _native.refuse,
        label_of(name),
        identify(process_set),
        str(refusal),
        refusal.unsupported,
        group_size,
        refusal.reason,
    )
    return _handle(begin, lambda _: None, None)


def changed_in_flight(what: str, change: str) -> InvalidArgumentError:
    """The error for an array that changed after it was submitted. Only this rank raises it: others cannot know."""
    return InvalidArgumentError(
        f"{what} {change} while it was in flight, and the operation used its previous memory: "
        f"wait for the handle first"
    )


def _changed(name: str | None, change: str) -> InvalidArgumentError:
    return changed_in_flight(repr(name) if name else "an array without a name", change)


def written_in_flight(name: str) -> InvalidArgumentError:
    """The error for a gradient that was written while being reduced in place. Only this rank raises it, too."""
    return InvalidArgumentError(
        f"the gradient of '{name}' was modified while it was being reduced, so its values are undefined: "
        f"call synchronize() before you clip, unscale or clear gradients. If DistributedDataParallel reduces it as "
        f"well, use only one of the two"
    )


def replaced_in_flight(name: str) -> InvalidArgumentError:
    """The error for a gradient in whose place another tensor, or ``None``, was put. Only this rank raises it, too."""
    return InvalidArgumentError(
        f"the gradient of '{name}' was replaced while it was being reduced, so what was to become of the new one is "
        f"unknown: call synchronize() before you set .grad. If DistributedDataParallel reduces it as well, use only "
        f"one of the two"
    )


class Collectives(Generic[A]):
    """Submits operations on arrays of one library.

    A tensor that cannot be used is refused on behalf of this rank, so that every rank raises the error; nothing here
    raises because of a tensor.

    ``blocking``: the caller waits for the handle immediately. On the CPU, the operation is then performed in this
    thread until signals must be checked, and no other thread wakes up for it.
    """

    def __init__(self, adapter: Adapter[A]) -> None:
        self._adapter = adapter

    def allreduce(
        self,
        array: object,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool = False,
        wire: int = NO_WIRE,
        compression: Codec | str | None = None,
        feedback: Feedback | None = None,
        priority: int = 0,
    ) -> Handle[A]:
        try:
            codec, fraction, seed = codec_of(compression)
            source, view, target, output = self._source_and_target(array, in_place)
            arguments = (
                view.pointer,
                output.pointer,
                view.shape,
                view.dtype,
                text_of(name),
                reduction_of(op),
                factor_of(prescale),
                factor_of(postscale),
                identify(process_set),
                wire,
                view.device,
                view.stream,
                codec,
                fraction,
                feedback.residual if feedback else 0,
                feedback.seed if feedback else seed,
                feedback.velocity if feedback else 0,
                feedback.momentum if feedback else 0.0,
                priority_of(priority),
            )
        except Refusal as refusal:
            return refuse(name, process_set, refusal)  # type: ignore[return-value]  # never returns
        references = (source, target, view.owner, output.owner, feedback)

        def finish(_: object) -> A:
            self._require_unchanged(source, view, name)
            return target

        return Handle(lambda: (_native.allreduce(*arguments),), finish, references, view.follow)

    def allreduce_leaves(
        self,
        partials: object,
        target: A,
        leaf_ranks: Sequence[int],
        own: int,
        name: str | None,
        op: ReduceOp,
        postscale: float,
        process_set: ProcessSet,
        priority: int = 0,
    ) -> Handle[A]:
        """Reduces into ``target``, which may be the first of this rank's ``own`` partial sums."""
        try:
            source, view = self._adapter.read(partials)
            target, output = self._adapter.write(target)
            if not view.shape or view.shape[0] != own:
                raise Refusal(
                    f"an array of shape {list(view.shape)} was given, and this rank's leaves have {own} partial "
                    f"sums of {len(leaf_ranks)} leaves, so that its first extent must be {own}"
                )
            if output.shape != view.shape[1:] or output.dtype != view.dtype:
                raise Refusal(
                    f"the output has the shape {list(output.shape)} and the partial sums have "
                    f"{list(view.shape[1:])} each, or another dtype"
                )
            arguments = (
                view.pointer,
                output.pointer,
                view.shape[1:],
                view.dtype,
                text_of(name),
                reduction_of(op),
                1.0,
                factor_of(postscale),
                identify(process_set),
                NO_WIRE,
                view.device,
                view.stream,
                0,
                0.0,
                0,
                0,
                0,
                0.0,
                priority_of(priority),
                list(leaf_ranks),
            )
        except Refusal as refusal:
            return refuse(name, process_set, refusal)  # type: ignore[return-value]  # never returns

        def finish(_: object) -> A:
            self._require_unchanged(source, view, name)
            return target

        references = (source, target, view.owner, output.owner)
        return Handle(lambda: (_native.allreduce(*arguments),), finish, references, view.follow)

    def grouped_allreduce(
        self,
        arrays: Iterable[object],
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool = False,
        wire: int = NO_WIRE,
        compression: Codec | str | None = None,
        feedback: Sequence[Feedback] = (),
        priority: int = 0,
    ) -> Handle[list[A]]:
        group = _group_of(arrays)

        def submit() -> Handle[list[A]]:
            codec, fraction, seed = codec_of(compression)
            members = self._usual_members(group, in_place) or self._members(group, in_place)
            begin = partial(
                _native.grouped_allreduce,
                members.inputs,
                members.outputs,
                members.shapes,
                members.dtypes,
                text_of(name),
                reduction_of(op),
                factor_of(prescale),
                factor_of(postscale),
                identify(process_set),
                wire,
                members.devices,
                members.stream,
                codec,
                fraction,
                [each.residual for each in feedback],
                feedback[0].seed if feedback else seed,
                [each.velocity for each in feedback],
                feedback[0].momentum if feedback else 0.0,
                priority_of(priority),
            )

            def finish(_: object) -> list[A]:
                members.require_unchanged(name)
                return members.targets

            references = (members.references, feedback)
            return Handle(lambda: [begin()], finish, references, members.follow)

        return _submitted(submit, name, process_set, len(group))

    def _members(self, group: Sequence[object], in_place: bool) -> _Members[A]:
        """Of any arrays. Raises Refusal."""
        members = [self._source_and_target(array, in_place) for array in group]
        used = [(view, output) for _, view, _, output in members]
        spares = []
        for number in repeated([view for view, _ in used]) if in_place else ():
            # Other ranks may have separate memory there, so a copy takes part; the result is that of the first.
            spare, view = self._adapter.write(self._adapter.copy(members[number][0]))
            spares.append(spare)
            used[number] = view, view
        views = [view for view, _ in used]
        # The views on a GPU, if any: a rank uses one GPU, and one stream is current.
        placed = next((view for view in views if view.device >= 0), None)

        def require_unchanged(name: str | None) -> None:
            for number, (source, view, _, _) in enumerate(members):
                self._require_unchanged(source, view, part_name(name, number))

        return _Members(
            [target for _, _, target, _ in members],
            [view.pointer for view in views],
            [output.pointer for _, output in used],
            [view.shape for view in views],
            [view.dtype for view in views],
            [view.device for view in views],
            placed.stream if placed else 0,
            placed.follow if placed else None,
            (members, spares),
            require_unchanged,
        )

    def _usual_members(self, arrays: Sequence[object], in_place: bool) -> _Members[A] | None:
        """Of arrays that can be used in place and do not overlap; ``None`` to examine each. Raises Refusal."""
        group = cast("Sequence[A]", arrays)  # the adapter checks the types
        views = self._adapter.usual_views(group, in_place)
        if views is None or (in_place and not are_apart(views.pointers, views.sizes)):
            return None
        targets, outputs = group, views
        if not in_place:
            targets = [self._adapter.empty_like(array) for array in group]
            made = self._adapter.usual_views(targets, True)
            if made is None:
                return None
            outputs = made

        def require_unchanged(name: str | None) -> None:
            if (found := change_among(self._adapter, group, views)) is not None:
                number, change = found
                raise _changed(part_name(name, number), change)

        return _Members(
            list(targets),
            views.pointers,
            outputs.pointers,
            views.shapes,
            views.dtypes,
            [views.device] * len(group),
            views.stream,
            views.follow,
            (group, targets, views.owners, outputs.owners),
            require_unchanged,
        )

    def reducescatter(
        self,
        array: object,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        splits: Iterable[int] | None,
        process_set: ProcessSet,
        blocking: bool = False,
    ) -> Handle[A]:
        def submit() -> Handle[A]:
            source, view = self._adapter.read(array)
            begun = _begun(blocking)
            begin = partial(
                _native.reduce_scatter,
                view.pointer,
                view.shape,
                view.dtype,
                text_of(name),
                reduction_of(op),
                factor_of(prescale),
                factor_of(postscale),
                rows_of(splits),
                identify(process_set),
                view.device,
                view.stream,
                begun=begun,
            )
            finish = self._output_of(source, view, name)
            return _handle(begin, finish, (source, view.owner), view.follow, begun)

        return _submitted(submit, name, process_set)

    def allgather(
        self, array: object, name: str | None, process_set: ProcessSet, blocking: bool = False
    ) -> Handle[A]:
        def submit() -> Handle[A]:
            source, view = self._adapter.read(array)
            begun = _begun(blocking)
            begin = partial(
                _native.allgather,
                view.pointer,
                view.shape,
                view.dtype,
                text_of(name),
                identify(process_set),
                view.device,
                view.stream,
                begun=begun,
            )
            finish = self._output_of(source, view, name)
            return _handle(begin, finish, (source, view.owner), view.follow, begun)

        return _submitted(submit, name, process_set)

    def broadcast(
        self,
        array: object,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
        in_place: bool = False,
        blocking: bool = False,
    ) -> Handle[A]:
        def submit() -> Handle[A]:
            target, view = self._adapter.write(array if in_place else self._adapter.copy(array))
            begun = _begun(blocking)
            begin = partial(
                _native.broadcast,
                view.pointer,
                view.shape,
                view.dtype,
                root_of(root_rank),
                text_of(name),
                identify(process_set),
                view.device,
                view.stream,
                begun=begun,
            )

            def finish(_: object) -> A:
                self._require_unchanged(target, view, name)
                return target

            return _handle(begin, finish, (target, view.owner), view.follow, begun)

        return _submitted(submit, name, process_set)

    def grouped_allgather(
        self, arrays: Iterable[object], name: str | None, process_set: ProcessSet
    ) -> Handle[list[A]]:
        handles = [
            self.allgather(array, part_name(name, number), process_set)
            for number, array in enumerate(_group_of(arrays))
        ]
        return combine(handles)

    def alltoall(
        self, array: object, name: str | None, process_set: ProcessSet, blocking: bool = False
    ) -> Handle[A]:
        def submit() -> Handle[A]:
            begun = _begun(blocking)
            source, view, begin = self._prepared_alltoall(array, None, name, process_set, begun)
            finish = self._output_of(source, view, name)
            return _handle(begin, finish, (source, view.owner), view.follow, begun)

        return _submitted(submit, name, process_set)

    def alltoall_with_counts(
        self,
        array: object,
        splits: Iterable[int] | None,
        name: str | None,
        process_set: ProcessSet,
        blocking: bool = False,
    ) -> Handle[tuple[A, A]]:
        """The result is the array and the number of rows that came from each rank."""

        def submit() -> Handle[tuple[A, A]]:
            begun = _begun(blocking)
            source, view, begin = self._prepared_alltoall(array, splits, name, process_set, begun)
            output = self._output_of(source, view, name)

            def finish(native: _native.Handle) -> tuple[A, A]:
                return output(native), self._adapter.from_integers(native.received_splits())

            return _handle(begin, finish, (source, view.owner), view.follow, begun)

        return _submitted(submit, name, process_set)

    def _prepared_alltoall(
        self,
        array: object,
        splits: Iterable[int] | None,
        name: str | None,
        process_set: ProcessSet,
        begun: list[_native.Handle] | None,
    ) -> tuple[A, View, Callable[[], _native.Handle]]:
        source, view = self._adapter.read(array)
        begin = partial(
            _native.alltoall,
            view.pointer,
            view.shape,
            view.dtype,
            rows_of(splits),
            text_of(name),
            identify(process_set),
            view.device,
            view.stream,
            begun=begun,
        )
        return source, view, begin

    def _source_and_target(self, array: object, in_place: bool) -> tuple[A, View, A, View]:
        if in_place:
            target, view = self._adapter.write(array)
            return target, view, target, view
        source, view = self._adapter.read(array)
        target, output = self._adapter.write(self._adapter.empty_like(source))
        return source, view, target, output

    def _require_unchanged(self, array: A, view: View, name: str | None) -> None:
        change = self._adapter.change_of(array, view)
        if change is not None:
            raise _changed(name, change)

    def _output_of(self, like: A, view: View, name: str | None) -> Callable[[_native.Handle], A]:
        def finish(native: _native.Handle) -> A:
            self._require_unchanged(like, view, name)
            memory, shape = native.output(dtypes.item_size(view.dtype))
            return self._adapter.from_memory(memory, shape, like)

        return finish


def _group_of(arrays: Iterable[object]) -> list[object]:
    """The members of a group. Without them the error is this rank's only: their number is part of what others await."""
    try:
        members = iter(arrays)
    except TypeError:
        raise InvalidArgumentError(
            f"{shown(arrays)} is not a group: pass a list of arrays"
        ) from None
    return list(members)


def _begun(blocking: bool) -> list[_native.Handle] | None:
    """The list in which an operation leaves its handle if its caller waits for it immediately."""
    return [] if blocking else None


def _handle(
    begin: Callable[[], _native.Handle],
    finish: Callable[[_native.Handle], T],
    references: object,
    follow: Callable[[Sequence[_native.Handle]], None] | None = None,
    begun: list[_native.Handle] | None = None,
) -> Handle[T]:
    """Starts an operation on one tensor; ``finish`` makes its result from the native handle."""
    return Handle(
        lambda: [begin()],
        lambda natives: finish(natives[0]),
        references,
        follow,
        () if begun is None else begun,
    )


def _submitted(
    submit: Callable[[], Handle[T]],
    name: str | None,
    process_set: ProcessSet,
    group_size: int = 0,
) -> Handle[T]:
    try:
        return submit()
    except Refusal as refusal:
        return refuse(name, process_set, refusal, group_size)  # type: ignore[return-value]  # never returns
