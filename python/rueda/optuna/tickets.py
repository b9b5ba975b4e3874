"""A counter of the trials still to begin, from which leaders draw at their own pace."""

from __future__ import annotations

import contextlib
import threading

from rueda.errors import RuedaError
from rueda.optuna.words import receive_word, send_word
from rueda.process_sets import ProcessSet

__all__ = ["Tickets"]

_TAKE, _STOP, _DONE, _WITHDRAWN = range(4)
_REQUESTS, _ANSWERS = 0, 1  # tags


class Tickets:
    """One ticket per trial, which the first leader hands out in a separate thread.

    Leaders wait in point-to-point messages, without a time limit: a collective would be reported as stalled while
    another leader runs a long trial.
    """

    def __init__(self, leaders: ProcessSet, count: int | None) -> None:
        self._leaders = leaders
        self._office = leaders.ranks[0]
        self._thread: threading.Thread | None = None
        if leaders.rank() == 0:
            self._thread = threading.Thread(
                target=self._work, args=(count,), name="rueda-optuna-tickets", daemon=True
            )
            self._thread.start()

    def take(self) -> bool:
        """Whether there is one more trial to begin."""
        self._request(_TAKE)
        return self._answer() == 1

    def stop(self) -> None:
        """Ends the tickets for all leaders."""
        self._request(_STOP)

    def wait_for_all(self) -> None:
        """Returns when all leaders have called this."""
        self._request(_DONE)
        self._answer()
        if self._thread is not None:
            self._thread.join()

    def withdraw(self) -> None:
        """For a leader that ends early: stops the tickets, and the others do not wait for it.

        The first leader serves the others until they have ended.
        """
        # If the world is broken or the first leader is gone, the others notice it themselves.
        with contextlib.suppress(RuedaError):
            self._request(_STOP)
            self._request(_WITHDRAWN)
            if self._thread is not None:
                self._thread.join()

    def _request(self, what: int) -> None:
        send_word(what, self._office, self._leaders, _REQUESTS)

    def _answer(self) -> int:
        return receive_word(self._office, self._leaders, _ANSWERS)[0]

    def _reply(self, leader: int, word: int) -> None:
        send_word(word, leader, self._leaders, _ANSWERS)

    def _work(self, count: int | None) -> None:
        # All leaders, including this rank's, notice a broken world themselves.
        with contextlib.suppress(RuedaError):
            self._serve(count)

    def _serve(self, count: int | None) -> None:
        left = float("inf") if count is None else count
        running = set(self._leaders.ranks)
        done = []
        while running:
            word, leader = receive_word(None, self._leaders, _REQUESTS)
            if word in (_DONE, _WITHDRAWN):
                running.remove(leader)
                if word == _DONE:
                    done.append(leader)
            elif word == _STOP:
                left = 0
            else:
                self._reply(leader, int(left > 0))
                left = max(0, left - 1)
        for leader in done:
            self._reply(leader, 1)
