"""The handshake in which the launchers of two nodes prove to each other that they know the job's secret.

Four lines of JSON over TCP. Neither side sends the secret. The words are random, so recorded lines cannot be replayed::

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
# Seconds for the four lines.
WITHIN = 10.0
_FORM = "rueda nodes"
_VERSION = 1


class Stranger(Exception):
    """The peer does not know the secret, or is not a launcher of this kind."""


def key_of(secret: str, identity: Sequence[str]) -> bytes:
    """The key that the launchers of one job share, from its secret and from what distinguishes it from other jobs."""
    return _mac(secret.encode(), ["rueda nodes", *identity])


def secret_of_ranks(key: bytes, word: str) -> str:
    """The secret that the ranks of one run of the job prove to each other. It is never sent."""
    return _mac(key, ["ranks", word]).hex()


class First:
    """Node 0's side of one handshake."""

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
        """Checks the other's proof and returns its facts. Raises Stranger."""
        words = _read(line)
        facts = _text(words, "facts")
        expected = _proof(self._key, "other", [*self._words, facts])
        if not hmac.compare_digest(_text(words, "proof"), expected):
            raise Stranger
        return _read(facts.encode())

    @staticmethod
    def admit() -> bytes:
        """The last line to an admitted node."""
        return _line({"admitted": True})

    @staticmethod
    def refuse(why: str) -> bytes:
        """The last line to a refused node."""
        return _line({"refused": why})


class Other:
    """The other node's side."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._word = secrets.token_hex(16)

    def hello(self) -> bytes:
        """The first line."""
        return _line({_FORM: _VERSION, "word": self._word})

    def prove(self, line: bytes, facts: dict[str, Any]) -> bytes:
        """Checks node 0's proof and returns the line with this node's facts and proof. Raises Stranger."""
        words = _read(line)
        both = [self._word, _text(words, "word")]
        if not hmac.compare_digest(_text(words, "proof"), _proof(self._key, "first", both)):
            raise Stranger
        text = json.dumps(facts)
        return _line({"facts": text, "proof": _proof(self._key, "other", [*both, text])})

    @staticmethod
    def refusal(line: bytes) -> str:
        """Why this node is refused; "" if it is admitted. Raises Stranger."""
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
