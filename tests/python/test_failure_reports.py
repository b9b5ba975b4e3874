"""A rank's exception on its way to other ranks: what arrives of it, whatever its class does."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass

import pytest
from rueda.errors import PeerLostError, RuedaError
from rueda.failures import Failure, report, without_constructor


class Diverged(Exception):
    def __init__(self, loss: float, step: int) -> None:
        super().__init__(f"diverged to {loss} in step {step}")
        self.step = step


class NoSuch(Exception):
    """Pickle calls its constructor without an error, and so has it say twice that it is missing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no {name}")


class WithCode(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class WithLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.place = 3


class Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class Missing(FileNotFoundError):
    def __init__(self, path: str, *, where: str) -> None:
        super().__init__(2, "No such file", path)
        self.where = where


class LostIt(PeerLostError):
    def __init__(self, peer: int, *, host: str) -> None:
        super().__init__(f"rank {peer} of {host} is gone", peer)
        self.host = host


class Unreducible(Exception):
    def __reduce__(self):
        raise RuntimeError("not for you")


@dataclass
class Data(Exception):
    loss: float
    step: int


def told(error: Exception) -> Failure:
    """What another rank gets."""
    try:
        raise error
    except Exception as raised:
        return pickle.loads(pickle.dumps(report(3, raised)))


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ValueError("a bad row"), {}),
        (OSError(2, "No such file", "a"), {"errno": 2, "filename": "a"}),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), {"object": b"\xff"}),
        (ImportError("none", name="x", path="y"), {"name": "x", "path": "y"}),
        (Diverged(3.5, 7), {"step": 7}),
        (NoSuch("sample"), {}),
        (WithCode(code=7), {"code": 7}),
        (WithLock("held"), {"place": 3}),
        (Missing("a", where="here"), {"errno": 2, "filename": "a", "where": "here"}),
        (LostIt(2, host="b"), {"peer": 2, "host": "b", "reason": None}),
        (Unreducible("said"), {}),
        (Data(0.5, 2), {"loss": 0.5, "step": 2}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_others_get_an_error_of_the_same_class_and_text(error: Exception, attributes: dict) -> None:
    failure = told(error)
    here = failure.here()
    assert type(here) is type(error)
    assert str(here) == str(error)
    assert here.args == error.args
    assert {name: getattr(here, name) for name in attributes} == attributes
    assert "on rank 3:\nTraceback" in str(here.__cause__)
    # As a leader of a team does, which passes on what it got.
    again = pickle.loads(pickle.dumps(failure)).here()
    assert (type(again), str(again)) == (type(error), str(error))


def test_the_rank_itself_keeps_the_error() -> None:
    class Local(Exception):
        pass

    for error in (Local("mine"), Diverged(3.5, 7), WithLock("held")):
        assert report(0, error).error is error


def test_what_cannot_be_sent_at_all_arrives_as_text_with_its_cause() -> None:
    class Local(Exception):
        pass

    for error, text in (
        (Local("told as text"), "Local: told as text"),
        (ValueError(threading.Lock()), "ValueError: <unlocked _thread.lock"),
    ):
        here = told(error).here()
        assert type(here) is RuedaError
        assert str(here).startswith(text)
        assert f"Traceback (most recent call last):\n{'':2}File" in str(here.__cause__)


def test_an_error_whose_text_raises_does_not_hide_itself() -> None:
    here = told(Wordless(1)).here()
    assert type(here) is Wordless
    assert here.args == (1,)
    assert "Wordless: <" in str(here.__cause__)

    class Local(Wordless):
        pass

    here = told(Local()).here()
    assert (type(here), str(here)) == (RuedaError, "Local")


def test_an_error_without_what_holds_it_back() -> None:
    error = WithLock("held")
    got = without_constructor(error)
    assert got is not None
    assert (type(got), str(got), got.__dict__) == (WithLock, "held", {"place": 3})
    assert error.lock
    assert without_constructor(ValueError(threading.Lock())) is None
