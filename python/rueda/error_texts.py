"""Texts of errors for other ranks."""

from __future__ import annotations

import re

__all__ = ["describe", "in_one_line"]

_TRACEBACK = "Traceback (most recent call last):"
# What Python writes below a line of source code: "    ~~~^^^^".
_MARKS = re.compile(r"\s*[~^][~^\s]*$")
_EXCEPTION = re.compile(r"[^\W\d][\w.]*: .")


def describe(kind: type[BaseException], value: BaseException) -> str:
    """An exception in one line, for other ranks to read.

    If its text ends with the traceback of another exception, as that of an error in a worker process of a
    ``DataLoader``, begins with that one, which says the most.

    Example::

        >>> describe(ValueError, ValueError("no such file"))
        'ValueError: no such file'
    """
    try:
        text = str(value)
    # An exception class of the application may be broken; ours must still get out.
    except Exception:
        text = ""
    start, quoted = _divided(text)
    if quoted:
        return f"{in_one_line(quoted)} (the end of: {kind.__name__}: {in_one_line(start)})"
    text = in_one_line(text)
    return f"{kind.__name__}: {text}" if text else kind.__name__


def in_one_line(text: str) -> str:
    r"""The lines of a text, joined by bars, without blank lines and the ``^^^^`` marks of tracebacks.

    What one rank sends to others must be one line: they print it within an exception of their own, where a traceback
    with its own lines would look like theirs. UTF-8 must be able to encode it, too: other characters are escaped.

    Example::

        >>> in_one_line("2 errors:\n  no name\n  no date\n")
        '2 errors: | no name | no date'
    """
    line = text if text.splitlines() in ([], [text]) else " | ".join(_lines_of(text))
    return line.encode(errors="backslashreplace").decode()


def _divided(text: str) -> tuple[str, str]:
    """What comes before the exception that a text's last traceback is of, and that exception; "" without one.

    An exception begins with the first line that is not indented, and may have more lines, as of notes.
    """
    lines = text.splitlines()
    headers = [n for n, line in enumerate(lines) if line.strip().endswith(_TRACEBACK)]
    for number in range(headers[-1] + 1 if headers else len(lines), len(lines)):
        if lines[number].strip() and not lines[number][0].isspace():
            if _EXCEPTION.match(lines[number]):
                return "\n".join(lines[:number]), "\n".join(lines[number:])
            break
    return text, ""


def _lines_of(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not any(line.endswith(_TRACEBACK) for line in lines):
        return lines
    return [line for line in lines if not _MARKS.match(line)]
