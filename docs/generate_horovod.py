"""Writes docs/horovod.md: compares rueda.horovod with the documented signatures of Horovod.

python docs/generate_horovod.py           writes the page
python docs/generate_horovod.py --check   fails when the page is out of date, or a signature differs
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import rueda.horovod
import rueda.horovod.torch as hvd
from rueda import _native
from rueda.horovod.settings import UNUSED
from rueda.horovod.torch.optimizer import HorovodDistributed
from rueda.launcher.horovod_flags import FLAGS

HERE = Path(__file__).parent
PAGE = HERE / "horovod.md"
# Methods of what DistributedOptimizer() returns.
CLASSES = {"DistributedOptimizer": HorovodDistributed}
# APIs for others than PyTorch. They are not imported here; tests/engines compares their signatures.
MODULES = ("tensorflow", "keras", "spark", "ray")


class Row(NamedTuple):
    """One function or name, and how Rueda's compares."""

    name: str
    signature: str
    verdict: str
    note: str


def resolve(name: str) -> Any:
    """What Rueda has under a dotted name, or ``None``."""
    first, _, rest = name.partition(".")
    if name in MODULES:
        return importlib.util.find_spec(f"rueda.horovod.{name}")
    if name == "run":
        return rueda.horovod.run
    found = CLASSES[first] if rest and first in CLASSES else getattr(hvd, first, None)
    for part in filter(None, rest.split(".")):
        found = getattr(found, part, None)
    return found


def documented(signature: str) -> list[tuple[str, str, Any]]:
    """Parameters as (kind, name, default), where a default that is a name stands for what hvd has."""
    arguments = ast.parse(f"def _{signature[signature.index('(') :]}: pass").body[0].args  # type: ignore[attr-defined]
    missing: list[Any] = [inspect.Parameter.empty]
    defaults = missing * (len(arguments.args) - len(arguments.defaults)) + [
        resolve(ast.unparse(node))
        if isinstance(node, ast.Name | ast.Attribute)
        else ast.literal_eval(node)
        for node in arguments.defaults
    ]
    rows = [("", each.arg, default) for each, default in zip(arguments.args, defaults, strict=True)]
    if arguments.kwarg:
        rows.append(("**", arguments.kwarg.arg, missing[0]))
    return [row for row in rows if row[1] != "self"]


def actual(function: Any) -> list[tuple[str, str, Any]]:
    """The same of what Rueda has."""
    kinds = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    parameters = inspect.signature(function).parameters.values()
    return [(kinds.get(p.kind, ""), p.name, p.default) for p in parameters if p.name != "self"]


def compare(line: str, notes: dict[str, dict[str, str]]) -> Row:
    """One line of the documented signatures."""
    is_attribute = line.startswith("@")
    name = line.lstrip("@").partition("(")[0]
    found = resolve(name)
    note = next((notes[kind][name] for kind in notes if name in notes[kind]), "")
    if found is None:
        return Row(name, line.lstrip("@"), "not available", note)
    if not is_attribute:
        wanted, has = documented(line), actual(found)
        extra = has[len(wanted) :]
        optional = all(default is not inspect.Parameter.empty or kind for kind, _, default in extra)
        if has[: len(wanted)] != wanted or not optional:
            return Row(name, line, f"differs: `{inspect.signature(found)}`", note)
    kind = "better" if name in notes["better"] else "same"
    return Row(name, line.lstrip("@"), kind, note)


@functools.cache
def sections() -> list[tuple[str, list[Row]]]:
    """All comparisons, by section."""
    notes = json.loads((HERE / "horovod_notes.json").read_text())
    result: list[tuple[str, list[Row]]] = []
    for line in (HERE / "horovod_signatures.txt").read_text().splitlines():
        if line.startswith("## "):
            result.append((line[3:], []))
        elif line and not line.startswith("#"):
            result[-1][1].append(compare(line, notes))
    known = {row.name for _, rows in result for row in rows}
    strangers = [name for kind in notes.values() for name in kind if name not in known]
    assert not strangers, f"horovod_notes.json speaks of {strangers}"
    return result


def problems() -> list[str]:
    """Signatures that differ, and what is not there without a reason."""
    return [
        f"{row.name}: {row.verdict}"
        for _, rows in sections()
        for row in rows
        if row.verdict.startswith("differs") or (row.verdict == "not available" and not row.note)
    ]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def parity() -> str:
    """The tables of functions."""
    parts = []
    for title, rows in sections():
        cells = [[f"`{row.name}`", row.verdict, row.note] for row in rows]
        parts.append(f"### {title}\n\n" + table(["", "Rueda's", ""], cells))
    return "\n".join(parts)


def variables() -> str:
    """The table of HOROVOD_* variables."""
    rows = [
        [f"`{row['horovod']}`", f"`{row['environment']}`"]
        for row in _native.option_table()
        if row["horovod"]
    ]
    rows.append(["`HOROVOD_STALL_CHECK_DISABLE`", "`RUEDA_STALL_WARNING=0`, `RUEDA_STALL_ERROR=0`"])
    rows += [
        [f"`{name}`", f"no effect: {why}" if why else "accepted"] for name, why in UNUSED.items()
    ]
    return table(["variable", "here"], sorted(rows))


def flags() -> str:
    """The table of horovodrun's flags."""
    rows = []
    for flag in FLAGS:
        here = f"`{flag.help.rstrip('.')}`" if flag.help else "accepted"
        if flag.ignored:
            here = f"no effect: {flag.ignored}"
        if flag.refused:
            here = f"refused: {flag.refused}"
        rows.append([", ".join(f"`{name}`" for name in flag.names.split()), here])
    return table(["flag", "here"], rows)


def page() -> str:
    """The whole page."""
    text = (HERE / "horovod_page.md").read_text()
    counts = [row.verdict for _, rows in sections() for row in rows]
    there = sum(verdict in ("same", "better") for verdict in counts)
    parts = {
        "count": f"{there} of {len(counts)}",
        "parity": parity(),
        "variables": variables(),
        "flags": flags(),
    }
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part.rstrip("\n"))
    return text


def main() -> None:
    """See the module's docstring."""
    if problems():
        sys.exit("\n".join(problems()))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        sys.exit(f"{PAGE} is out of date: run `make docs`")


if __name__ == "__main__":
    main()
