"""Puts the lines of several ranks one after another into one stream."""

from __future__ import annotations

from collections.abc import Sequence

_LINE_ENDS = (b"\n", b"\r")


class Interleaving:
    """One stream of the launcher, to which its ranks' lines go.

    A line that is too long to keep comes in pieces (lines.py): the first gets the prefix, the others follow without. If
    another rank, or the launcher itself, writes between them, that begins on a line of its own. So does the rest of the
    long line then, with the prefix again, which says whose it is.
    """

    def __init__(self) -> None:
        self._unfinished: int | None = None  # the rank whose last line here has no end yet

    def add(self, rank: int, prefix: bytes, pieces: Sequence[bytes]) -> bytes:
        """The text to write for the next pieces, of which there is at least one, of a rank's output."""
        continues = self._unfinished == rank
        text = b"" if continues else self.end_line()
        for piece in pieces:
            text += piece if continues else prefix + piece
            continues = not piece.endswith(_LINE_ENDS)
        self._unfinished = rank if continues else None
        return text

    def end_line(self) -> bytes:
        """The text to write before anything that begins on a line of its own."""
        is_unfinished, self._unfinished = self._unfinished is not None, None
        return b"\n" if is_unfinished else b""
