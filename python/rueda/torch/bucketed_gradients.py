"""Gradients that are reduced bucket by bucket, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rueda import _native, lifecycle
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.torch.bucket_agreement import Agreement, agree
from rueda.torch.buckets import NOT_WANTED, Bucket, GradientBuckets, Slot
from rueda.torch.separate_gradients import MISFIT, Reduction, Watched, WhenReduced

__all__ = ["BucketedGradients"]


class BucketedGradients:
    """The buckets that the ranks have agreed on, if any. ``prefix`` begins the names of their operations.

    ``has_priorities``: whether buckets that the next forward pass needs first are reduced first.
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
        self._spare: list[Bucket] = []  # of the world before, until it is decided about others
        self._watched: dict[int, Watched] = {}  # by the id of the slot
        self._agreed = Agreement(why_not="the first step is not over")
        self._world: int | None = None  # in which the use of buckets was decided

    def describe(self) -> GradientBuckets:
        """How gradients are kept at present."""
        return GradientBuckets(
            tuple(bucket.names for bucket in self._buckets),
            tuple(bucket.flat.nbytes for bucket in self._buckets),
            dict(self._agreed.left_out) if self._buckets else {},
            "" if self._buckets else self._agreed.why_not,
        )

    def exist(self) -> bool:
        """Whether any gradient is in a bucket."""
        return bool(self._buckets)

    def watched(self) -> list[Watched]:
        """The parameters whose gradients are in buckets, in the order in which these become ready."""
        return [self._watched[id(slot)] for bucket in self._buckets for slot in bucket.slots]

    def of_another_world(self) -> bool:
        """Whether the use of buckets was decided in another world than the current one.

        Matters even without buckets: ranks that have joined ask all others, which must answer.
        """
        return self._world not in (None, lifecycle.world_number())

    def start_over(self) -> None:
        """Waits for all gradients again."""
        for bucket in self._buckets:
            bucket.start_over()

    def take_in(self, slot: Slot, more_follow: bool = False) -> None:
        """Moves a gradient into its bucket.

        On a GPU this happens only when the bucket is submitted, unless more backward passes follow (``more_follow``)
        and add to it: otherwise there would be memory for all gradients in addition to the buckets.
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
        """Submits a bucket when each of its gradients is ready or cannot be."""
        if bucket.gathering is not None:
            bucket.gathering.take_in(bucket.slots, self._note_misfit)
        if bucket.misfit:
            why = f"a gradient no longer fits its bucket: {bucket.misfit}"
            bucket.handle = self._reduction.refuse(bucket.name, why, reason=MISFIT)
        else:
            bucket.note_submitted()
            bucket.handle = self._reduction.start(
                bucket.flat, bucket.name, priority=bucket.priority
            )

    def start_incomplete(self) -> None:
        """Submits all other buckets as they are; gradients that this rank lacks count as zeros."""
        for bucket in self._buckets:
            if bucket.handle is None:
                for slot in bucket.slots:
                    if self._watched[id(slot)].passes_left > 0:
                        if slot.parameter.grad is None:
                            _native.count_filled_gradient()
                        self._complete(slot)
                self.start(bucket)

    def in_flight(self) -> list[tuple[Bucket, Handle[object]]]:
        """All buckets with their handles, which belong to the caller from now on."""
        taken = []
        for bucket in self._buckets:
            handle, bucket.handle = bucket.handle, None
            assert handle is not None
            taken.append((bucket, handle))
        return taken  # type: ignore[return-value]  # the results are not looked at

    def taken(self) -> list[Handle[object]]:
        """The handles of the buckets in flight, which belong to the caller from now on."""
        handles = [bucket.handle for bucket in self._buckets if bucket.handle is not None]
        for bucket in self._buckets:
            bucket.handle = None
        return handles  # type: ignore[return-value]  # as above

    def receive(
        self,
        in_flight: Sequence[tuple[Bucket, Handle[object]]],
        when_reduced: WhenReduced | None = None,
    ) -> tuple[list[Exception], list[Watched]]:
        """Waits for buckets; returns the errors, and the parameters whose bucket did not fit on some rank.

        The gradients of such parameters are untouched on every rank. ``when_reduced`` is called with the parameters of
        each bucket that has been reduced.
        """
        errors: list[Exception] = []
        unfit: list[Watched] = []
        for bucket, handle in in_flight:
            # All are waited for, even after an error: none may change a gradient once synchronize() has returned.
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
                if when_reduced is not None:
                    when_reduced([slot.parameter for slot in bucket.slots])
        return errors, unfit

    def decide(
        self,
        watched: Sequence[Watched],
        order: Sequence[int],
        groups: Sequence[Sequence[int]],
        refusal: Callable[[], str],
        bytes_limit: int | None = None,
    ) -> bool:
        """Agrees with the other ranks on the buckets; false if some could not be asked.

        ``order``: numbers of parameters, in the order in which their gradients became ready. ``groups``: groups that
        get buckets of their own, the same on every rank. ``refusal`` returns why there are to be no buckets, as far as
        every rank knows without asking. ``bytes_limit``: gradients on the CPU of this size or more stay out.
        """
        why_not = refusal()
        if why_not:
            self.leave(why_not)
            self._spare = []
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
            self._spare,
        )
        if agreement is None:
            return False
        self.leave("")
        self._spare = []
        self._agreed = agreement
        self._buckets = agreement.buckets
        self._world = lifecycle.world_number()
        by_parameter = {each.parameter: each for each in watched}
        for bucket in self._buckets:
            for slot in bucket.slots:
                slot.take_in()
                slot.adopt()
                owner = by_parameter[slot.parameter]
                owner.slot = slot
                self._watched[id(slot)] = owner
            if self._has_priorities:
                bucket.priority = max(self._watched[id(slot)].priority() for slot in bucket.slots)
        return True

    def leave_world(self) -> None:
        """Like leave(), for a change of the world: layouts are counted from 0, as the model has not changed."""
        self._spare = self._buckets or self._spare
        self.leave("the world has changed")
        self._agreed.layouts = 0
        self._world = None

    def leave(self, why_not: str) -> None:
        """Reduces gradients separately from now on. They stay in their memory."""
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
