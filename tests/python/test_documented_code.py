"""Python code and names in the documentation: every module and name of Rueda's in it exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment

ROOT = Path(__file__).resolve().parents[2]

# One process per set of imports, as the imports of one block must not help another. `blocks` are
# texts of pages with their location, and `find()` returns complaints.
FINDER = """
import ast, importlib, importlib.util, os, pickle, sys, types
import torch, torch._dynamo, torch.distributed.checkpoint, torch.distributed.tensor

def is_missing(error):
    # what a page needs and this environment has not: jax.md's JAX
    return not isinstance(error, ModuleNotFoundError) and "needs" in str(error) or (
        (error.name or "").partition(".")[0] not in ("rueda", "") and importlib.util.find_spec(
            (error.name or "").partition(".")[0]) is None)

def imports_of(tree):
    # those of Rueda's modules, of which alone anything is asked
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = {ast.unparse(node) for node in found}
    return sorted(line for line in lines if line.split()[1].partition(".")[0] == "rueda")

def chains_of(tree):
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            yield node.id, parts[::-1]

def complaints_about(place, tree, names):
    for first, parts in chains_of(tree):
        if first not in names:
            if first in ("rueda", "rt"):
                yield f"{place}: {first} is not imported"
            continue
        found, so_far = names[first], first
        if not getattr(found, "__name__", "").startswith("rueda"):
            continue
        for part in parts:
            if not isinstance(found, (types.ModuleType, type)):
                break
            so_far += "." + part
            try:
                found = getattr(found, part)
            except ImportError as error:
                if not is_missing(error):
                    yield f"{place}: {so_far}: {error}"
                break
            except AttributeError as error:
                yield f"{place}: {so_far}: {error}"
                break

def check(lines, group):
    names = {}
    for line in lines:
        try:
            exec(line, names)
        except ImportError as error:
            if not is_missing(error):
                return [f"{place}: {line}: {error}" for place, _ in group]
            # the names that were to be bound: of no module here
            for alias in ast.parse(line).body[0].names:
                names.setdefault((alias.asname or alias.name).partition(".")[0], None)
    return [text for place, tree in group for text in complaints_about(place, tree, names)]

def find(blocks):
    groups = {}
    for place, source in blocks:
        tree = ast.parse(source)
        groups.setdefault(tuple(imports_of(tree)), []).append((place, tree))
    found = []
    for lines, group in groups.items():
        here, there = os.pipe()
        if (child := os.fork()) == 0:
            os.write(there, pickle.dumps(check(lines, group)))
            os._exit(0)
        os.close(there)
        with open(here, "rb") as pipe:
            data = pipe.read()
        assert os.waitpid(child, 0)[1] == 0, lines
        found += pickle.loads(data)
    return sorted(set(found))
"""


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[tuple[str, str]]:
    """Each block of Python on a page, with its location."""
    found = []
    for page in pages():
        inside: list[str] | None = None
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if inside is not None and line.startswith("```"):
                found.append((f"{page.name}:{number - len(inside) - 1}", "\n".join(inside)))
                inside = None
            elif inside is not None:
                inside.append(line)
            elif line == "```python":
                inside = []
    return found


def complaints(texts: list[tuple[str, str]]) -> list[str]:
    """Runs in a fresh process: a forked one would have Rueda's modules already."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{FINDER}\nfor text in find({texts!r}): print(text)"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


WRONG = [
    ("wrong a", "import rueda\nrueda.no_such_name()\nrueda.elastic.State(epoch=0)"),
    ("wrong b", "rueda.init()"),
    ("wrong c", "import rueda.torch as rueda\nrueda.elastic.steps(3)\nrueda.Compression.fp17"),
    ("wrong d", "import rueda.torch.c10d\nimport no_such_module\nno_such_module.f(rueda.size())"),
    ("wrong e", "import rueda\nrueda.torch.torchft.ProcessGroupRueda()"),
]


@pytest.fixture(scope="module")
def told() -> list[str]:
    return complaints([*blocks(), *WRONG])


@pytest.mark.timeout(900)
def test_what_pages_show_is_there_after_the_imports_that_they_show(told: list[str]) -> None:
    assert len(blocks()) > 20
    assert [text for text in told if not text.startswith("wrong")] == []


@pytest.mark.timeout(900)
def test_what_is_not_there_would_be_found(told: list[str]) -> None:
    assert [text for text in told if text.startswith("wrong")] == [
        "wrong a: rueda.no_such_name: module 'rueda' has no attribute 'no_such_name'",
        "wrong b: rueda is not imported",
        "wrong c: rueda.Compression.fp17: type object 'Compression' has no attribute 'fp17'",
        "wrong e: rueda.torch.torchft: module 'rueda.torch' has no attribute 'torchft'",
    ]


def sources() -> str:
    """All source text, with adjacent literals joined as the compiler and Python join them."""
    files = [
        path
        for folder in ("csrc", "launcher", "python/rueda")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".cpp", ".h", ".py"}
    ]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_messages_that_are_explained_are_those_that_are_printed() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = re.findall(r'^\| "([^"]+)"', page, re.MULTILINE)
    assert len(messages) > 12
    said = sources()
    assert [message for message in messages if message not in said] == []
