"""Cuts a stream of bytes into lines."""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class LineAssembler:
    """Collects chunks and returns whole lines, each with its line end.

    A lone carriage return ends a line, because progress bars use it to redraw. A line longer than
    `longest` is returned in pieces, so that memory stays bounded. All but the last have no line end.
    """

    def __init__(self, longest: int = 1 << 20) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Adds a chunk. Returns the lines that it completes."""
        text = self._rest + chunk
        lines = []
        start = 0
        # What was left has no line end, except for a carriage return of which only the next byte says what it is.
        for end in _LINE_END.finditer(text, max(0, len(self._rest) - 1)):
            lines.append(text[start : end.end()])
            start = end.end()
        self._rest = text[start:]
        if len(self._rest) >= self._longest:
            piece = self._rest.removesuffix(b"\r")  # the line's end may be \r\n
            self._rest = self._rest[len(piece) :]
            lines += [piece] if piece else []
        return lines

    def finish(self) -> list[bytes]:
        """Returns the last line, with a line end added if the writer left it out."""
        rest, self._rest = self._rest, b""
        if not rest:
            return []
        return [rest if rest.endswith((b"\n", b"\r")) else rest + b"\n"]
