"""Tells a default group's keys in a store from those of earlier groups, which may have been of processes that are gone.

torchrun's agents keep one store for all attempts to run a job. A group of the current processes must not take what
those before them have left there for its own.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from rueda.torch.c10d.meeting import absent_from, given_up, missing_at
from rueda.torch.c10d.watched_store import is_there

__all__ = ["begin_generation"]

_SESSION = "rueda/session"
# The first and the longest pause between looks at the store; seconds.
_FIRST_PAUSE = 0.001
_MAX_PAUSE = 0.1


def begin_generation(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """The prefix of the keys of a default group, the same on all its ranks and never used before.

    Raises :class:`rueda.TimeoutError` where it has to wait for the others and they do not come within ``timeout``.
    """
    if _have_several_agents():
        return _agreed(store, rank, size, timeout)
    # The store counts how often each rank has begun a group over it, not the process.
    attempt = f"rueda/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return f"{attempt}/{store.add(f'{attempt}/begun/{rank}', 1)}/"


def _have_several_agents() -> bool:
    """Whether several agents of torchrun run the ranks. They count restarts differently.

    So not all ranks need have begun a group in an attempt that failed, and nothing that ranks can count is the same on
    all.
    """
    is_one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return "TORCHELASTIC_RUN_ID" in os.environ and not is_one_host


def _agreed(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Rank 0 opens a session, and confirms to the others that it has read the tokens that they have chosen just now.

    A session that does not confirm a rank's token is of earlier processes, even if another rank has this number there.
    """
    if rank == 0:
        return _open_session(store, size, timeout)
    token = secrets.token_hex(8)
    joined = ""
    deadline = time.monotonic() + timeout.total_seconds()
    pause = _FIRST_PAUSE
    while time.monotonic() < deadline:
        session = store.get(_SESSION).decode() if is_there(store, _SESSION) else ""
        prefix = f"rueda/{session}/"
        within = PrefixStore(prefix, store)
        if session != joined:
            within.set(f"token/{rank}", token)
            joined = session
        if session and is_there(within, "answer"):
            answer = json.loads(within.get("answer"))
            if answer["tokens"].get(str(rank)) == token:
                if answer["missing"]:
                    raise given_up(within, rank, size, answer["missing"], timeout)
                return prefix
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)
    # Rank 0 may be about to answer that others are missing.
    within = PrefixStore(f"rueda/{joined}/", store)
    raise given_up(
        within, rank, size, absent_from(within, "token", size) if joined else [0], timeout
    )


def _open_session(store: Store, size: int, timeout: timedelta) -> str:
    session = secrets.token_hex(8)
    prefix = f"rueda/{session}/"
    within = PrefixStore(prefix, store)
    within.set("token/0", "")
    store.set(_SESSION, session)
    keys = [f"token/{peer}" for peer in range(size)]
    missing = missing_at(within, keys, "token", size, timeout)
    tokens = {
        str(peer): within.get(key).decode() for peer, key in enumerate(keys) if peer not in missing
    }
    within.set("answer", json.dumps({"tokens": tokens, "missing": missing}))
    if missing:
        raise given_up(within, 0, size, missing, timeout)
    return prefix
