"""The protocol between ranks and the store at which they meet, as in csrc/membership/rendezvous_store.h."""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass

# The maximum size of a frame before the rank has proved that it knows the secret, and after.
MAX_PENDING_FRAME = 4096
MAX_FRAME = 1 << 26

_HEADER = struct.Struct("=II")  # length of the payload, kind
_MESSAGE = 1
_WORDS = struct.Struct("=IIII")  # verb, rank, size, length of the key
_LENGTH = struct.Struct("=I")
_PURPOSE = "rueda rendezvous 2"
_WORD_LENGTH = 32


class Verb(enum.IntEnum):
    """The kinds of messages. The C++ header describes their contents."""

    HELLO = 0
    PUT = 1
    GET = 2
    BARRIER = 3
    MISSING = 4
    OK = 5
    LATER = 6
    ERROR = 7
    CHALLENGE = 8
    PROVE = 9
    LOST = 10


class Nonsense(Exception):
    """Data that does not follow the rendezvous protocol."""


@dataclass(frozen=True)
class Words:
    """A question or an answer. Which fields matter depends on the verb."""

    verb: Verb
    rank: int = 0
    size: int = 0
    key: bytes = b""
    value: bytes = b""

    def frame(self) -> bytes:
        """Its wire format."""
        head = _WORDS.pack(self.verb, self.rank, self.size, len(self.key))
        length = len(head) + len(self.key) + len(self.value)
        return b"".join((_HEADER.pack(length, _MESSAGE), head, self.key, self.value))

    @classmethod
    def take_from(cls, buffer: bytearray, limit: int) -> Words | None:
        """Removes and returns the first complete message, or None. Raises Nonsense."""
        if len(buffer) < _HEADER.size:
            return None
        length, kind = _HEADER.unpack_from(buffer)
        if kind != _MESSAGE or not _WORDS.size <= length <= limit:
            raise Nonsense
        end = _HEADER.size + length
        if len(buffer) < end:
            return None
        payload = bytes(buffer[_HEADER.size : end])
        del buffer[:end]
        verb, rank, size, key_length = _WORDS.unpack_from(payload)
        text = payload[_WORDS.size :]
        if verb > max(Verb) or key_length > len(text):
            raise Nonsense
        return cls(Verb(verb), rank, size, text[:key_length], text[key_length:])


def joined(*texts: bytes) -> bytes:
    """Packs several keys and values into one value."""
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))


def fresh_word() -> bytes:
    """Returns a random word."""
    return secrets.token_hex(_WORD_LENGTH // 2).encode()


def is_word(word: bytes) -> bool:
    """Whether a rank of this version may have sent the word."""
    return len(word) == _WORD_LENGTH


class Proofs:
    """The proofs that both sides exchange about a secret that neither sends."""

    def __init__(self, secret: str) -> None:
        self._key = _mac(secret.encode(), [_PURPOSE.encode()])

    def of_store(self, hello: Words, word: bytes) -> bytes:
        """The store's proof for a rank that has said `hello`. `word`: the store's."""
        return self._proof(b"store", hello, word)

    def of_rank(self, hello: Words, word: bytes) -> bytes:
        """The proof with which that rank must answer."""
        return self._proof(b"rank", hello, word)

    def _proof(self, side: bytes, hello: Words, word: bytes) -> bytes:
        parts = [side, str(hello.rank).encode(), str(hello.size).encode(), hello.key, word]
        return _mac(self._key, parts)


def _mac(key: bytes, parts: Sequence[bytes]) -> bytes:
    text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()
