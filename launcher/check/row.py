"""One line of `rueda check`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A component: what was found, or why not and what to do about it."""

    name: str
    found: bool
    version: str = ""
    path: str = ""
    note: str = ""  # a remark about what was found
    why_not: str = ""
    what_to_do: str = ""

    def as_json(self) -> dict[str, object]:
        """The row in the JSON report, keyed there by its name."""
        return {
            "found": self.found,
            "version": self.version or None,
            "path": self.path or None,
            "note": self.note or None,
            "why_not": self.why_not or None,
            "what_to_do": self.what_to_do or None,
        }


def missing(name: str, why_not: str, what_to_do: str = "", path: str = "") -> Row:
    """A row for what was not found."""
    return Row(name, found=False, path=path, why_not=why_not, what_to_do=what_to_do)
