"""Gradients that are reduced together, bucket by bucket, where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rueda import _native, lifecycle
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.torch.bucket_agreement import Agreement, agree
from rueda.torch.buckets import NOT_WANTED, Bucket, GradientBuckets, Slot
from rueda.torch.separate_gradients import MISFIT, Reduction, Watched

__all__ = ["BucketedGradients"]


class BucketedGradients:
    """The buckets that the ranks have agreed on, if any. ``prefix`` begins the names of their operations.

    ``has_priorities``: whether those that the next forward pass needs first go first.
    """

    def __init__(
        self,
        prefix: str,
        reduction: Reduction,
        bucket_bytes: int | None,
        has_priorities: bool = False,
    ) -> None:
        self._prefix = prefix
        self._reduction = reduction
        self._bucket_bytes = bucket_bytes
        self._has_priorities = has_priorities
        self._buckets: list[Bucket] = []
        self._watched: dict[int, Watched] = {}  # by the id of the slot
        self._agreed = Agreement(why_not="the first step is not over")
        self._world: int | None = None  # in which it was decided on buckets, or against them

    def describe(self) -> GradientBuckets:
        """How gradients are kept now."""
        return GradientBuckets(
            tuple(bucket.names for bucket in self._buckets),
            tuple(bucket.flat.nbytes for bucket in self._buckets),
            dict(self._agreed.left_out) if self._buckets else {},
            "" if self._buckets else self._agreed.why_not,
        )

    def exist(self) -> bool:
        """Whether any gradient lies in a bucket."""
        return bool(self._buckets)

    def of_another_world(self) -> bool:
        """Whether it was decided on buckets, or against them, with other ranks than there are now.

        Also where there are none: those that have joined ask all others, and these have to answer.
        """
        return self._world not in (None, lifecycle.world_number())

    def start_over(self) -> None:
        """Waits for all gradients again."""
        for bucket in self._buckets:
            bucket.start_over()

    def take_in(self, slot: Slot, more_follow: bool = False) -> None:
        """Brings a gradient into its bucket.

        On a GPU not before the bucket is submitted, unless ``more_follow``, which are added to it: until then there
        would be memory for all gradients beside the buckets.
        """
        gathering = slot.bucket.gathering
        if gathering is not None:
            gathering.note()
            if not more_follow:
                return
        why_not = slot.take_in()
        if why_not:
            self._note_misfit(slot, why_not)

    def start(self, bucket: Bucket) -> None:
        """Submits a bucket of which all gradients are ready, or cannot be."""
        if bucket.gathering is not None:
            bucket.gathering.take_in(bucket.slots, self._note_misfit)
        if bucket.misfit:
            why = f"a gradient no longer fits its bucket: {bucket.misfit}"
            bucket.handle = self._reduction.refuse(bucket.name, why, reason=MISFIT)
        else:
            bucket.note_versions()
            bucket.handle = self._reduction.start(
                bucket.flat, bucket.name, priority=bucket.priority
            )

    def start_incomplete(self) -> None:
        """Submits all other buckets with what there is; gradients that this rank lacks count as zeros."""
        for bucket in self._buckets:
            if bucket.handle is None:
                for slot in bucket.slots:
                    if self._watched[id(slot)].passes_left > 0:
                        if slot.parameter.grad is None:
                            _native.count_filled_gradient()
                        self._complete(slot)
                self.start(bucket)

    def in_flight(self) -> list[tuple[Bucket, Handle[object]]]:
        """All buckets with their handles, which are the caller's from now on."""
        taken = []
        for bucket in self._buckets:
            handle, bucket.handle = bucket.handle, None
            assert handle is not None
            taken.append((bucket, handle))
        return taken  # type: ignore[return-value]  # the results are not looked at

    def taken(self) -> list[Handle[object]]:
        """The handles of those that are in flight, which are the caller's from now on."""
        handles = [bucket.handle for bucket in self._buckets if bucket.handle is not None]
        for bucket in self._buckets:
            bucket.handle = None
        return handles  # type: ignore[return-value]  # as above

    def receive(
        self, in_flight: Sequence[tuple[Bucket, Handle[object]]]
    ) -> tuple[list[Exception], list[Watched]]:
        """Waits for buckets; returns what went wrong, and the parameters whose bucket did not fit on some rank.

        The gradients of the latter are untouched on every rank.
        """
        errors: list[Exception] = []
        unfit: list[Watched] = []
        for bucket, handle in in_flight:
            # All are waited for, also after an error: none may change a gradient once synchronize() has returned.
            try:
                handle.result()
            except InvalidArgumentError as error:
                if error.reason == MISFIT:
                    unfit.extend(self._watched[id(slot)] for slot in bucket.slots)
                else:
                    errors.append(error)
            except Exception as error:
                errors.append(error)
            else:
                errors.extend(bucket.give_out())
        return errors, unfit

    def decide(
        self,
        watched: Sequence[Watched],
        order: Sequence[int],
        groups: Sequence[Sequence[int]],
        refusal: Callable[[], str],
        bytes_limit: int | None = None,
    ) -> bool:
        """Agrees with the other ranks where gradients are to lie; false where some could not be asked.

        ``order``: numbers of parameters, in which their gradients became ready. ``groups``: of which each is to have
        buckets of its own, the same on every rank. ``refusal`` tells why there are to
        be no buckets, as far as every rank knows by itself. ``bytes_limit``: gradients on the CPU of as much stay out.
        """
        why_not = refusal()
        if why_not:
            self.leave(why_not)
            self._world = lifecycle.world_number()
            return True
        agreement = agree(
            self._prefix,
            [(each.name, each.parameter) for each in watched],
            {each.name: f"it is compressed: {each.codec}" for each in watched if each.codec},
            order,
            groups,
            self._bucket_bytes,
            self._agreed.layouts,
            self._reduction.process_set,
            bytes_limit,
        )
        if agreement is None:
            return False
        self.leave("")
        self._agreed = agreement
        self._buckets = agreement.buckets
        self._world = lifecycle.world_number()
        by_parameter = {each.parameter: each for each in watched}
        for bucket in self._buckets:
            for slot in bucket.slots:
                slot.take_in()
                owner = by_parameter[slot.parameter]
                owner.slot = slot
                self._watched[id(slot)] = owner
            if self._has_priorities:
                bucket.priority = max(self._watched[id(slot)].priority() for slot in bucket.slots)
        return True

    def leave_world(self) -> None:
        """As leave(), since the world has changed: layouts are counted anew, for the model has not changed."""
        self.leave("the world has changed")
        self._agreed.layouts = 0
        self._world = None

    def leave(self, why_not: str) -> None:
        """Lets gradients be reduced by themselves from now on. They stay where they are."""
        for watched in self._watched.values():
            watched.slot = None
        self._watched = {}
        self._buckets = []
        self._agreed = Agreement(why_not=why_not, layouts=self._agreed.layouts)

    def _complete(self, slot: Slot) -> None:
        if slot.parameter.requires_grad:
            self.take_in(slot)
        else:
            self._note_misfit(slot, NOT_WANTED)

    def _note_misfit(self, slot: Slot, why_not: str) -> None:
        slot.bucket.misfit = f"that of '{self._watched[id(slot)].name}' {why_not}"
