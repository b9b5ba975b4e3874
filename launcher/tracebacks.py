"""Extracts Python's tracebacks from standard error, line by line."""

from __future__ import annotations

import re

_COLOR = re.compile(r"\x1b\[[0-9;]*m")  # Python 3.13 colors tracebacks
# The margin of the lines of an exception group: "  | ", "  + ", "  +-+---- 1 ----".
_MARGIN = re.compile(r"(?P<indent>(?:  )+)(?:\+-)?[|+](?P<rule>-{3,}.*)?(?: (?P<body>.*))?$")
_GROUP_HEADER = "Exception Group Traceback (most recent call last):"
_HEADER = re.compile(r"(Exception Group )?Traceback \(most recent call last\):$")
_NEXT_MEMBER = re.compile(r"-+ (\d+|\.\.\.) -+$")
_FRAME = re.compile(r'\s*File ".*", line \d+')
_CHAINED = re.compile(
    r"The above exception was the direct cause of the following exception:$|"
    r"During handling of the above exception, another exception occurred:$"
)
_IGNORED = re.compile(r"Exception ignored in|--- Logging error ---")
# "ValueError: text", "pkg.f.<locals>.Failed", "KeyboardInterrupt"
_EXCEPTION = re.compile(r"(?P<name>[^\W\d]\w*(\.([^\W\d]\w*|<locals>))*)(?P<colon>:( .*)?)?$")
_GROUP = re.compile(r"[\w.]*ExceptionGroup: .*\(\d+ sub-exceptions?\)$")
# Exceptions raised because another rank failed, so never the first cause.
_CONSEQUENCE = re.compile(
    r"([\w.]+\.)?(PeerLostError|ShutdownError)\b(?!.*\bthis rank has shut down)|"
    # The same errors under other libraries' names.
    r"[\w.]+: (Horovod has been shut down\b|.*\bcannot complete: rank \d+ )"
)

# A traceback followed by more lines than this was handled by the program.
_LINES_AFTER_TRACEBACK = 20
# With more foreign lines than this inside, it was not a traceback.
_LINES_WITHIN_TRACEBACK = 20


class TracebackReader:
    """The last traceback of a process, if it may explain the process's end."""

    def __init__(self) -> None:
        self.exceptions: list[str] = []  # a chain, in the order of printing
        self.members: list[str] = []  # of an exception group, however deep
        self._within = False
        self._in_group = False
        self._is_ignored = False  # Python continues after this exception
        self._is_chained = False  # the next exception belongs to the last one
        self._foreign_lines = 0
        self._lines_since = 0
        self._continues = False  # the exception's text starts on the next line

    @property
    def text(self) -> str:
        """The exception in one line; "" if there is none."""
        if not self.exceptions:
            return ""
        last = self.exceptions[-1]
        if not self.members or not _GROUP.match(last):
            return last
        own = [member for member in self.members if not _CONSEQUENCE.match(member)]
        return f"{last}: {(own or self.members)[0]}"

    @property
    def is_consequence(self) -> bool:
        """Whether the exception was raised because another rank failed."""
        return any(map(_CONSEQUENCE.match, self.exceptions)) or (
            bool(self.members) and all(map(_CONSEQUENCE.match, self.members))
        )

    def see(self, line: str) -> bool:
        """Takes one line without its end. Returns whether it completes an exception."""
        depth, body = self._without_margin(_COLOR.sub("", line))
        if _IGNORED.match(body):
            self._is_ignored = True
        elif _CHAINED.match(body):
            self._is_chained = True
        elif _HEADER.match(body):
            self._begin(depth)
        elif _FRAME.match(body) and not self._within and not self._ends_with_consequence(depth):
            self._begin_within_text(depth)
        elif depth > 1 and _NEXT_MEMBER.match(body):
            self._within = True
        elif self._within:
            return self._see_within(body, depth)
        elif body.strip():
            self._see_after(body)
        return False

    def _without_margin(self, line: str) -> tuple[int, str]:
        """The line's depth in exception groups (0: in none), and its text without the margin."""
        match = _MARGIN.match(line)
        if match is not None and match["body"] == _GROUP_HEADER:
            self._in_group = True
        elif line and match is None:
            self._in_group = False
        if match is None or not self._in_group:
            return 0, line
        return len(match["indent"]) // 2, match["rule"] or match["body"] or ""

    def _begin(self, depth: int) -> None:
        self._within = True
        self._foreign_lines = 0
        if depth <= 1 and not self._is_chained and not self._is_ignored:
            self._forget()
        self._is_chained = False

    def _ends_with_consequence(self, depth: int) -> bool:
        """Whether frames without a header are part of a consequence's text: the traceback of the rank that failed."""
        return any(map(_CONSEQUENCE.match, self.members[-1:])) if depth > 1 else self.is_consequence

    def _begin_within_text(self, depth: int) -> None:
        """Frames without a header: a SyntaxError, or the text of an exception, which quotes the one that caused it."""
        if depth > 1 and not self._is_ignored:
            del self.members[-1:]
        self._begin(depth)

    def _forget(self) -> None:
        self.exceptions.clear()
        self.members.clear()
        self._continues = False

    def _see_within(self, body: str, depth: int) -> bool:
        if not _is_exception(body):
            self._foreign_lines += bool(body) and not body[0].isspace()
            self._within = self._foreign_lines <= _LINES_WITHIN_TRACEBACK
            return False
        self._within = False
        self._lines_since = 0
        if self._is_ignored:
            self._is_ignored = False
            return False
        body = body.rstrip()
        self._continues = body.endswith(":")
        (self.exceptions if depth <= 1 else self.members).append(body)
        return True

    def _see_after(self, body: str) -> None:
        if self._is_ignored:
            self._is_ignored = not _is_exception(body)
        if self._continues and self.exceptions:
            self.exceptions[-1] += " " + body.strip()
        self._continues = False
        self._lines_since += not body[0].isspace()  # indented lines still belong to the text
        if self._lines_since > _LINES_AFTER_TRACEBACK:
            self._forget()


def _is_exception(body: str) -> bool:
    match = _EXCEPTION.match(body)
    if match is None:
        return False
    # A single lower-case word may be any output.
    return bool(match["colon"]) or "." in body or not body[0].islower()
