"""Saves checkpoints: the caller waits only while this rank's part is copied in memory; a thread writes it."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rueda import lifecycle
from rueda.arguments import whole_number
from rueda.checkpoint.agreement import WorldBeside, agree
from rueda.checkpoint.content import collect, described
from rueda.checkpoint.files import is_checkpoint
from rueda.checkpoint.folder import Checkpoint, absolute, temporary
from rueda.checkpoint.problems import CheckpointError, Problem, problem_of, raise_first
from rueda.checkpoint.snapshot import Entries, Snapshot, Snapshots
from rueda.checkpoint.strategies import fingerprint, require_same_parameters
from rueda.checkpoint.writing import finish, write_share
from rueda.errors import InvalidArgumentError, NotInitializedError, RuedaError
from rueda.errors import TimeoutError as RuedaTimeoutError

__all__ = ["PendingSave", "save", "wait_for_save"]

_log = logging.getLogger("rueda")


class PendingSave:
    """A checkpoint that is being written.

    Dropping it changes nothing: the checkpoint is still completed, even if the process ends normally meanwhile. Any
    thread may wait. If it fails and nobody asks for the result, the log says so. In a child that was forked before it
    has ended, nothing tells how it ends: done(), wait() and result() raise :class:`rueda.NotInitializedError` there.

    Example::

        >>> import tempfile
        >>> pending = rueda.checkpoint.save(tempfile.mkdtemp(), 0, extra={"epoch": 3})
        >>> pending.wait(timeout=60)
        True
        >>> pending.result().step
        0
    """

    def __init__(self, step: int, folder: Path) -> None:
        self.step = step
        self.folder = folder
        self._future: concurrent.futures.Future[Checkpoint] = concurrent.futures.Future()
        self._is_parents = False  # in a child that was forked before it has ended

    def done(self) -> bool:
        """Whether it is complete or has failed. Never blocks."""
        self._require_own()
        return self._future.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is complete or has failed, for at most ``timeout`` seconds; ``False`` if it is neither."""
        self._require_own()
        return bool(concurrent.futures.wait([self._future], timeout).done)

    def result(self, timeout: float | None = None) -> Checkpoint:
        """Waits, then returns the complete checkpoint.

        Raises :class:`CheckpointError` on every rank if it has failed, also if a rank was lost meanwhile (see its
        ``__cause__``). The previous checkpoint is then the latest, unless the text says that this one exists but may
        not survive a power failure. Raises :class:`rueda.TimeoutError` after ``timeout`` seconds.
        """
        if not self.wait(timeout):
            raise RuedaTimeoutError(
                f"the checkpoint of step {self.step} has not been completed within {timeout} seconds",
                reason="deadline",
            )
        return self._future.result()

    def _require_own(self) -> None:
        if self._is_parents:
            raise NotInitializedError(
                f"this process was forked while its parent was saving the checkpoint of step {self.step}: only the "
                f"parent is told how that ends"
            )


def save(
    folder: str | os.PathLike[str],
    step: int,
    *,
    extra: object = None,
    each_rank: object = None,
    keep: int | None = None,
    **state: Any,
) -> PendingSave:
    """Starts a checkpoint, which all ranks write together in the background; collective over the world.

    Returns when this rank has copied its part of the state in memory, so that training can continue; see
    :class:`PendingSave` for the rest. Each rank writes about the same number of bytes. Existing checkpoints of the same
    or a higher step are kept: the latest is the one that was completed last.

    - ``folder``: for all checkpoints of a training; every rank must reach it under the same path. Created if missing.
      Only one job at a time may write there: leftovers of killed jobs are removed.
    - ``step``: how many steps have been taken; not negative.
    - ``state``: what all ranks have in common, objects with ``state_dict()`` and ``load_state_dict()``, by names such
      as ``model`` and ``optimizer``. For modules' buffers (which may differ), their extra state and values other than
      tensors, rank 0's are saved. What compression has lost of gradients is saved for each rank, and so is what the
      strategy ``accumulate`` has added up for its next step.
    - ``extra``: any picklable object, from rank 0, such as an epoch.
    - ``each_rank``: any picklable object, from each rank, such as :func:`random_states`.
    - ``keep``: how many checkpoints to keep, including this one; older ones are removed once it is complete. All by
      default.

    If another save is in progress, waits for it first; only its own result says whether that succeeds.

    Raises on every rank :class:`rueda.InvalidArgumentError` for states that cannot be saved on one of them
    (:class:`rueda.UnsupportedError` for sharded and sparse tensors, for optimizers of :func:`rueda.torch.wrap` whose
    strategy lets the ranks' states differ, and for models while they differ by such a strategy),
    :class:`rueda.MismatchError` if ranks pass different folders, steps or states, :class:`rueda.PeerLostError` and
    other errors of collectives. Nothing has been written then. The result reports all later errors.

    Example::

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> model = torch.nn.Linear(3, 1)
        >>> for step in range(3):
        ...     pending = rueda.checkpoint.save(folder, step, model=model, keep=2)
        >>> pending.result().step
        2
        >>> [each.step for each in rueda.checkpoint.available(folder)]
        [1, 2]
    """
    global _saver
    if _saver is None:
        _saver = _Saver()
    return _saver.save(folder, step, state, extra, each_rank, keep)


def wait_for_save() -> None:
    """Returns once no save of this process is in progress."""
    if _saver is not None:
        _saver.wait()


@dataclass
class _Job:
    """A save in progress. ``written``: its folder until it is published."""

    pending: PendingSave
    written: Path
    rank: int
    ranks: int
    keep: int | None
    snapshot: Snapshot | Problem


class _Saver:
    """The saves of this process, one at a time."""

    def __init__(self) -> None:
        self._beside = WorldBeside()
        self._snapshots = Snapshots()
        self._last: PendingSave | None = None

    def wait(self) -> None:
        """Waits until the newest one has ended."""
        if self._last is not None:
            self._last.wait()

    def is_writing(self) -> bool:
        """Whether the newest one has yet to end."""
        return self._last is not None and not self._last.done()

    def leave_to_parent(self) -> None:
        """Called in a child that was forked while the newest one was in progress: its thread is the parent's."""
        assert self._last is not None
        self._last._is_parents = True

    def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        state: Mapping[str, Any],
        extra: object,
        each_rank: object,
        keep: int | None,
    ) -> PendingSave:
        """See :func:`save`."""
        rank, ranks = lifecycle.rank(), lifecycle.size()
        self.wait()
        problem: Exception | None = None
        values = 0
        details: dict[str, object] = {"call": "save", "step": step, "keep": keep}
        try:
            path = absolute(folder)
            details["folder"] = str(path)
            step = whole_number("step", step, 0)
            keep = None if keep is None else whole_number("keep", keep, 1)
            if rank == 0:
                _require_no_checkpoint(path)
            content = collect(state, each_rank, rank)
            details |= described(content)
            entries = Entries.of(content, extra, rank)
            values = fingerprint(state) if ranks > 1 else 0
        except Exception as error:  # every rank is told
            problem = error
        own = (secrets.randbits(63), int(not self._beside.is_usable()), values)
        told = agree(details, problem, own)
        require_same_parameters(state, [its for *_, its in told])
        if any(must_form for _, must_form, _ in told):
            self._beside.form()
        pending = PendingSave(step, path)
        snapshot: Snapshot | Problem
        try:
            snapshot = self._snapshots.take(content, entries, rank, ranks)
        except Exception as error:  # such as too little memory; reported like a full disk
            snapshot = problem_of(error, rank)
        job = _Job(pending, temporary(path, step, told[0][0]), rank, ranks, keep, snapshot)
        self._last = pending
        # Not a daemon: the interpreter waits for it before it ends.
        thread = threading.Thread(target=self._run, args=(job,), name="rueda-checkpoint")
        try:
            thread.start()
        except Exception as error:  # such as too many threads
            failed = CheckpointError(f"{_not_saved(step)}: rank {rank}: {error}", rank)
            failed.__cause__ = error
            self._beside.close(f"a checkpoint has failed: {error}")  # the others would wait
            _log.warning("%s", failed)
            pending._future.set_exception(failed)
        return pending

    # --- In the background

    def _run(self, job: _Job) -> None:
        future = job.pending._future
        try:
            complete = self._write(job)
        except BaseException as error:
            if not isinstance(error, CheckpointError):  # the others would wait for this rank
                self._beside.close(f"a checkpoint has failed: {type(error).__name__}: {error}")
            if job.rank == 0 or not isinstance(error, CheckpointError):  # all ranks raise that one
                _log.warning("%s", error)
            future.set_exception(error)
        else:
            future.set_result(complete)

    def _write(self, job: _Job) -> Checkpoint:
        what = _not_saved(job.pending.step)
        own: Any
        try:
            own = job.snapshot
            if isinstance(own, Snapshot):
                own = write_share(own, job.written, job.rank)
        except Exception as error:  # every rank is told
            own = problem_of(error, job.rank, job.written)
        every = self._exchange(own, "checkpoint.written", what)
        outcome: Any = None
        if job.rank == 0:
            outcome = finish(every, job.written, job.pending.step, job.keep)
        complete, problem = self._exchange(outcome, "checkpoint.published", what)[0]
        if complete is not None:
            what = f"{complete.path} is there, but may not survive a power failure"
        raise_first([each for each in [*every, problem] if isinstance(each, Problem)], what)
        assert isinstance(complete, Checkpoint)
        return complete

    def _exchange(self, value: object, name: str, what: str) -> list[Any]:
        try:
            return self._beside.exchange(value, name)
        except RuedaError as error:
            self._beside.close(f"a checkpoint has failed: {error}")
            raise CheckpointError(f"{what}: {error}", error.peer) from error


def _require_no_checkpoint(folder: Path) -> None:
    if is_checkpoint(folder):
        raise InvalidArgumentError(
            f"{folder} is a checkpoint itself: save into the folder of the run, such as {folder.parent}"
        )


def _not_saved(step: int) -> str:
    return f"the checkpoint of step {step} was not saved"


_saver: _Saver | None = None
_was_writing = False  # at the last fork


def _look_before_fork() -> None:
    """Asked before, since in a child the writing thread's locks may stay locked."""
    global _was_writing
    _was_writing = _saver is not None and _saver.is_writing()


def _start_anew_in_child() -> None:
    global _saver
    if _saver is not None and _was_writing:
        _saver.leave_to_parent()
    _saver = None


os.register_at_fork(before=_look_before_fork, after_in_child=_start_anew_in_child)
