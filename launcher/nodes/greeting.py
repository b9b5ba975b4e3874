"""How the launchers of two nodes show each other that they know the job's secret, before anything else is said.

Four lines of JSON over TCP. Neither sends the secret; the words are random, so what was heard once is of no use again::

    other                                            node 0
    {"rueda nodes": 1, "word": W}               →
                                                ←    {"word": V, "proof": of node 0}
    {"facts": F, "proof": of the other and F}   →
                                                ←    {"admitted": true} or {"refused": why}
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from typing import Any

from rueda.json_objects import read_object

MAX_LINE = 4096
# For the four lines; seconds.
WITHIN = 10.0
_FORM = "rueda nodes"
_VERSION = 1


class Stranger(Exception):
    """Who speaks does not know the secret, or is no launcher of this kind."""


def key_of(secret: str, identity: Sequence[str]) -> bytes:
    """What the launchers of one job know: of its secret, and of what tells it from other jobs."""
    return _mac(secret.encode(), ["rueda nodes", *identity])


def secret_of_ranks(key: bytes, word: str) -> str:
    """The secret that the ranks of one run of the job prove to each other; it is not sent."""
    return _mac(key, ["ranks", word]).hex()


class First:
    """Node 0's side of one conversation."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._words: list[str] = []

    def challenge(self, line: bytes) -> bytes:
        """The answer to the first line. Raises Stranger."""
        words = _read(line)
        if words.get(_FORM) != _VERSION:
            raise Stranger
        self._words = [_text(words, "word"), secrets.token_hex(16)]
        return _line({"word": self._words[1], "proof": _proof(self._key, "first", self._words)})

    def facts(self, line: bytes) -> dict[str, Any]:
        """What the other, which has proved itself, says of itself. Raises Stranger."""
        words = _read(line)
        facts = _text(words, "facts")
        expected = _proof(self._key, "other", [*self._words, facts])
        if not hmac.compare_digest(_text(words, "proof"), expected):
            raise Stranger
        return _read(facts.encode())

    @staticmethod
    def admit() -> bytes:
        """The last line, to one that is taken."""
        return _line({"admitted": True})

    @staticmethod
    def refuse(why: str) -> bytes:
        """The last line, to one that is not."""
        return _line({"refused": why})


class Other:
    """The side of another node."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._word = secrets.token_hex(16)

    def hello(self) -> bytes:
        """The first line."""
        return _line({_FORM: _VERSION, "word": self._word})

    def prove(self, line: bytes, facts: dict[str, Any]) -> bytes:
        """Says who this is to a node 0 that has proved itself. Raises Stranger."""
        words = _read(line)
        both = [self._word, _text(words, "word")]
        if not hmac.compare_digest(_text(words, "proof"), _proof(self._key, "first", both)):
            raise Stranger
        text = json.dumps(facts)
        return _line({"facts": text, "proof": _proof(self._key, "other", [*both, text])})

    @staticmethod
    def refusal(line: bytes) -> str:
        """Why this node is not taken; nothing where it is. Raises Stranger."""
        words = _read(line)
        return "" if words.get("admitted") is True else _text(words, "refused")


def _mac(key: bytes, parts: Sequence[str]) -> bytes:
    return hmac.new(key, json.dumps(list(parts)).encode(), hashlib.sha256).digest()


def _proof(key: bytes, side: str, parts: Sequence[str]) -> str:
    return _mac(key, [side, *parts]).hex()


def _line(words: dict[str, Any]) -> bytes:
    return json.dumps(words).encode() + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    try:
        return read_object(line)
    except ValueError:
        raise Stranger from None


def _text(words: dict[str, Any], name: str) -> str:
    text = words.get(name)
    if not isinstance(text, str) or not text.isascii():
        raise Stranger
    return text
