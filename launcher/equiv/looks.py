"""Records looks at the runs in a folder. Each look is another chance for a wrong verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..errors import LaunchError
from ..result_files import write_file
from .plan import Plan, Planned, Way

__all__ = ["LOOKS_FILE", "note_looks", "read_looks"]

LOOKS_FILE = "looks.json"


def note_looks(folder: Path, plan: Plan, question: str = "") -> Mapping[Way, int]:
    """Returns the number of earlier looks at each way's runs, and records this look.

    Looks differ in the number of seeds, in the number of ways that share the error probability, and in the
    ``question``: metric, margin and confidence. A repeated look gets the same number as the first time.
    Raises LaunchError if the file cannot be read or written.
    """
    path = folder / LOOKS_FILE
    looks = read_looks(folder)
    look = f"{plan.seeds} seeds, {len(plan.candidates)} ways {question}".rstrip()
    before = {}
    for way in plan.candidates:
        seen = looks.setdefault(_key(plan, way), [])
        if look not in seen:
            seen.append(look)
        before[way] = seen.index(look)
    write_file(path, json.dumps(looks, indent=2) + "\n")
    return before


def _key(plan: Plan, way: Way) -> str:
    """Identifies a way's and the reference's runs. Stays the same if only the number of seeds changes."""
    told = [asdict(plan.settings(Planned(each, 0))) for each in (plan.reference, way)]
    return f"{way.folder} {hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}"


def read_looks(folder: Path) -> dict[str, list[str]]:
    """The looks recorded in the folder. Raises LaunchError if the file cannot be read."""
    path = folder / LOOKS_FILE
    try:
        found = json.loads(path.read_text())
        return {str(key): [str(each) for each in looks] for key, looks in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LaunchError(
            f"'{path}', which counts the looks at these runs, is unreadable ({error}): remove it or change --out"
        ) from error
