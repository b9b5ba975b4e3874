"""The ranks' checks before the first trial: the same arguments, and one study."""

from __future__ import annotations

import operator
import time
import uuid
from random import SystemRandom
from typing import Any

from rueda.errors import InvalidArgumentError, TimeoutError
from rueda.lifecycle import rank, size
from rueda.objects import allgather_object, broadcast_object

__all__ = ["agree_on_arguments", "agree_on_study"]

MARK = "rueda.optuna"
"""The study's attribute by which ranks recognize that they share it."""

# The number of attempts, and the longest wait before the second attempt and before any attempt, in seconds.
_ATTEMPTS = 20
_FIRST_BACKOFF = 0.02
_MAX_BACKOFF = 1.0

_SHARE = (
    "open the same study on every rank, from a storage that all of them reach, such as "
    "optuna.storages.JournalStorage on a file of a shared file system"
)


def agree_on_arguments(
    n_trials: object, timeout: object, ranks_per_trial: object, problem: str
) -> None:
    """Raises :class:`rueda.InvalidArgumentError` on every rank if arguments are invalid on a rank or differ."""
    problem = problem or _wrong(n_trials, timeout, ranks_per_trial)
    shown = f"n_trials={n_trials!r}, timeout={timeout!r}, ranks_per_trial={ranks_per_trial!r}"
    everyone = allgather_object((problem, shown), "rueda.optuna.arguments")
    for number, (wrong, _) in enumerate(everyone):
        if wrong:
            raise InvalidArgumentError(f"rueda.optuna.optimize() on rank {number}: {wrong}")
    for number, (_, other) in enumerate(everyone):
        if other != everyone[0][1]:
            raise InvalidArgumentError(
                f"rueda.optuna.optimize() must get the same arguments on every rank: {everyone[0][1]} on "
                f"rank 0, {other} on rank {number}"
            )


def _wrong(n_trials: Any, timeout: Any, ranks_per_trial: Any) -> str:
    try:
        if isinstance(n_trials, bool) or isinstance(ranks_per_trial, bool):
            raise TypeError
        per_trial = operator.index(ranks_per_trial)
        count = None if n_trials is None else operator.index(n_trials)
        seconds = None if timeout is None else float(timeout)
    except (TypeError, ValueError):
        return (
            f"n_trials and ranks_per_trial are whole numbers, timeout is in seconds, not n_trials={n_trials!r}, "
            f"ranks_per_trial={ranks_per_trial!r}, timeout={timeout!r}"
        )
    if per_trial < 1 or size() % per_trial:
        return (
            f"{size()} ranks cannot be divided into trials of ranks_per_trial={per_trial}: start a multiple of that, "
            f"or choose a divisor of {size()}"
        )
    if count is not None and count < 1:
        return f"n_trials={count} would run no trial: pass 1 or more, or None for no limit"
    if seconds is not None and not seconds >= 0:
        return f"timeout={seconds} is not a time: pass seconds, or None for no limit"
    return ""


def agree_on_study(study: Any, ranks_per_trial: int) -> tuple[bool, bool]:
    """Returns whether this rank's study is not rank 0's and needs its trials, and whether any rank's study is not.

    Ranks share a study if each reads the random word that rank 0 writes to it. Raises
    :class:`rueda.InvalidArgumentError` on every rank if a study cannot be read or written, if directions differ, or if
    several trials run at a time without a common study; :class:`rueda.TimeoutError` on every rank if other jobs keep
    starting on the study, so that the ranks cannot tell.
    """
    name = getattr(study, "study_name", "")
    everyone = _compare(study)
    if everyone is None:
        raise TimeoutError(
            f"in {_ATTEMPTS} attempts, what rank 0 wrote to the study {name!r} was overwritten before all ranks had "
            "read it, because other jobs keep starting on this study: start them one after the other"
        )
    for number, (wrong, is_one, directed) in enumerate(everyone):
        if wrong:
            raise InvalidArgumentError(
                f"the study {name!r} cannot be used on rank {number} ({wrong}): {_SHARE}"
            )
        if not is_one and (number == 0 or ranks_per_trial < size()):
            raise InvalidArgumentError(
                f"the study of rank {number} is not in the same storage as rank 0's, which {size() // ranks_per_trial} "
                f"trials at a time require: {_SHARE}; a study in memory serves one trial at a time, with "
                f"ranks_per_trial={size()}"
            )
        if directed != everyone[0][2]:
            raise InvalidArgumentError(
                f"the studies' directions differ: {everyone[0][2]} on rank 0, {directed} on rank {number}: {_SHARE}"
            )
    return not everyone[rank()][1], any(not is_one for _, is_one, _ in everyone)


def _compare(study: Any) -> list[tuple[str, bool, Any]] | None:
    """For each rank, why it cannot use its study, whether the study is rank 0's, and its directions.

    If several jobs start on one study at once, one may overwrite another's word before all ranks have read it. ``None``
    if that has happened in every attempt.
    """
    for attempt in range(_ATTEMPTS):
        if rank() == 0 and attempt > 0:
            # Not from the generator that a program may have seeded.
            longest = min(_FIRST_BACKOFF * 2 ** (attempt - 1), _MAX_BACKOFF)
            time.sleep(SystemRandom().uniform(0, longest))
        word, everyone = _compare_once(study)
        if any(problem for problem, _, _ in everyone) or all(is_one for _, is_one, _ in everyone):
            return everyone
        overwritten = rank() == 0 and _is_overwritten(study, word)
        if not broadcast_object(overwritten, 0, "rueda.optuna.overwritten"):
            return everyone
    return None


def _compare_once(study: Any) -> tuple[str, list[tuple[str, bool, Any]]]:
    """The word that rank 0 wrote, and the result for :func:`_compare`."""
    word, problem = uuid.uuid4().hex, ""
    if rank() == 0:
        try:
            study.set_user_attr(MARK, word)
        except Exception as error:  # anything that the storage raises
            problem = f"{type(error).__name__}: {error}"
    word, problem = broadcast_object((word, problem), 0, "rueda.optuna.word")
    found, directions = None, None
    if not problem:
        try:
            found = study.user_attrs.get(MARK)
            directions = [direction.name for direction in study.directions]
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    return word, allgather_object((problem, found == word, directions), "rueda.optuna.study")


def _is_overwritten(study: Any, word: str) -> bool:
    """Whether rank 0's study now has another word; also true if it is unreadable, which the next attempt reports."""
    try:
        return bool(study.user_attrs.get(MARK) != word)
    except Exception:  # anything that the storage raises
        return True
