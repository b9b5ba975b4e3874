"""Extracts Python's tracebacks, and uncaught exceptions of C++, from standard error, line by line."""

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
    r"([\w.:]+[.:])?(PeerLostError|ShutdownError)\b(?!.*\bthis rank has shut down)|"
    # The same errors under other libraries' names.
    r"\S+?: (Horovod has been shut down\b|.*\bcannot complete: rank \d+ )"
)
# What libstdc++ prints of an uncaught exception; of a std::exception, a second line follows: its text.
_TERMINATED = re.compile(r"terminate called after throwing an instance of '(?P<name>.+)'$")
_WHAT = re.compile(r"  what\(\):(?:  (?P<text>.*))?$")
# What libc++ prints, in one line.
_TERMINATING = re.compile(
    r"libc\+\+abi(?:\.dylib)?: terminating (?:due to|with) uncaught exception of type "
    r"(?P<name>.+?)(?:: (?P<text>.*))?$"
)
# The C++ classes of Rueda's errors, as compilers name them, by their number in rueda/error.h.
_ERROR_OF = re.compile(r"\brueda::ErrorOf<\((?:rueda::)?ErrorCode\)(\d+)>")
_ERRORS = {
    1: "InvalidArgumentError",
    2: "UnsupportedError",
    3: "MismatchError",
    4: "DuplicateNameError",
    5: "StalledError",
    6: "TimeoutError",
    7: "PeerLostError",
    8: "ShutdownError",
    9: "NotInitializedError",
    10: "InitializationError",
    11: "TransportError",
    12: "InternalError",
}

# A traceback followed by more lines than this was handled by the program.
_LINES_AFTER_TRACEBACK = 20
# The text of an uncaught exception of C++ may include a stack trace. Only a script that goes on prints more than this.
_LINES_AFTER_TERMINATION = 200
# With more foreign lines than this inside, it was not a traceback.
_LINES_WITHIN_TRACEBACK = 20


class TracebackReader:
    """The last traceback, or uncaught exception of C++, of a process, if it may explain the process's end."""

    def __init__(self) -> None:
        self.exceptions: list[str] = []  # a chain, in the order of printing
        self.members: list[str] = []  # of an exception group, however deep
        self.is_termination = False  # by an exception of C++, with SIGABRT
        self._lacks_what = False  # its text may follow
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
        if self._lacks_what:
            return f"uncaught exception of type '{last}'"
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
        elif terminated := _TERMINATED.match(body) or _TERMINATING.match(body):
            self._terminate(**terminated.groupdict())
            return True
        elif self._lacks_what and (what := _WHAT.match(body)):
            self._add_what(what["text"] or "")
        elif _FRAME.match(body) and self._may_begin_without_header(depth):
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

    def _terminate(self, name: str, text: str | None = None) -> None:
        """An exception of C++ ends the process. `text`: None if it has none, or if it follows."""
        self._forget()
        self._within = self._is_ignored = self._is_chained = False
        self._lines_since = 0
        self.is_termination = True
        self._lacks_what = True
        self.exceptions.append(_ERROR_OF.sub(_name_of_error, name))
        if text is not None:
            self._add_what(text)

    def _add_what(self, text: str) -> None:
        """The text of an exception of C++, or its first line."""
        self._lacks_what = False
        self.exceptions[-1] = f"{self.exceptions[-1]}: {text.strip()}".rstrip()
        self._continues = self.exceptions[-1].endswith(":")

    def _may_begin_without_header(self, depth: int) -> bool:
        """Whether frames are those of a new exception. After one of C++, Python's faulthandler prints where it was."""
        return not (self._within or self.is_termination or self._ends_with_consequence(depth))

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
        self.is_termination = self._lacks_what = False
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
        limit = _LINES_AFTER_TERMINATION if self.is_termination else _LINES_AFTER_TRACEBACK
        if self._lines_since > limit:
            self._forget()


def _name_of_error(match: re.Match[str]) -> str:
    """The public name of one of Rueda's C++ errors, or the compiler's if the number is not known."""
    name = _ERRORS.get(int(match[1]))
    return match[0] if name is None else f"rueda::{name}"


def _is_exception(body: str) -> bool:
    match = _EXCEPTION.match(body)
    if match is None:
        return False
    # A single lower-case word may be any output.
    return bool(match["colon"]) or "." in body or not body[0].islower()
