"""Conventions of the sources that no compiler checks."""

import ast
import difflib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_FOLDERS = [
    "csrc",
    "include",
    "python",
    "launcher",
    "examples",
    "benchmarks",
    "tests",
    "docs",
    "tools",
    "cmake",
]
SOURCE_SUFFIXES = {".h", ".cpp", ".py", ".pyi", ".md", ".sh", ".cmake", ".txt", ".in"}


def sources() -> list[Path]:
    return sorted(
        path
        for folder in SOURCE_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SOURCE_SUFFIXES and "__pycache__" not in path.parts
    )


def test_nothing_is_left_to_be_done():
    words = re.compile(
        r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert not found


def test_tensors_are_made_on_a_device_that_is_named():
    """Otherwise they land on the application's torch.set_default_device()."""
    makers = {"arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye"}
    makers |= {
        "full",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "range",
    }
    makers |= {"scalar_tensor", "sparse_coo_tensor", "sparse_csr_tensor", "tensor", "zeros"}
    found = []
    for path in sorted((ROOT / "python/rueda").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "torch"
                and node.func.attr in makers
                and all(keyword.arg != "device" for keyword in node.keywords)
            ):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found


def test_nothing_in_python_decides_by_the_text_of_an_error():
    looks = re.compile(
        r"\bin str\(\w+\)|"
        r"\bstr\(\w*(?:err|exc|fail|problem)\w*\)(?:\.(?:startswith|endswith|find|index)\b| [=!]=)|"
        r"re\.\w+\([^)]*str\(\w*(?:err|exc|fail|raised)\w*\)|\.args\[0\]"
    )
    assert looks.search("if 'late' in str(error):")
    assert looks.search("str(failure).startswith('late')")
    assert not looks.search("raise Refusal(str(error))")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("python", "launcher", "benchmarks/driver")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if looks.search(line)
    ]
    assert not found


def test_no_name_says_nothing():
    vague = {"manager", "helper", "helpers", "util", "utils", "common", "misc", "data"}
    found = [p for p in sources() if vague & {p.stem.lower(), p.parent.name.lower()}]
    assert not found
    class_name = re.compile(
        r"^\s*(?:class|struct)\s+(\w*(?:Manager|Helper|Util|Utils|Misc))\b", re.MULTILINE
    )
    assert not {
        m
        for p in sources()
        if p.suffix in {".h", ".cpp", ".py"}
        for m in class_name.findall(p.read_text())
    }


@pytest.mark.parametrize("header", sorted((ROOT / "csrc").rglob("*.h")), ids=lambda p: p.name)
def test_a_header_says_what_it_is_for(header):
    lines = header.read_text().splitlines()
    assert lines[0].startswith("//"), "begins with a comment"
    assert "#pragma once" in lines


def test_the_distributed_example_differs_by_fewer_than_ten_lines():
    examples = ROOT / "examples/python"
    single = (examples / "digits_single.py").read_text().splitlines()
    distributed = (examples / "digits.py").read_text().splitlines()
    diff = difflib.unified_diff(single, distributed, lineterm="", n=0)
    changed = [line for line in diff if re.match(r"[+-](?![+-]{2} )", line)]
    assert 0 < len(changed) < 10, "\n".join(changed)


def test_the_example_of_spark_differs_by_as_few_lines_as_its_page_says():
    examples = ROOT / "examples/python"
    before = (examples / "digits_tfos.py").read_text().splitlines()
    after = (examples / "digits_spark.py").read_text().splitlines()
    steps = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = sum(max(i2 - i1, j2 - j1) for what, i1, i2, j1, j2 in steps if what != "equal")
    told = re.search(r"(\d+) lines differ", (ROOT / "docs/spark.md").read_text())
    assert told
    assert changed == int(told[1]) < 10


def test_the_readme_shows_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*)(?: [\w-]+)*:", makefile, re.MULTILINE))
    targets |= {"asan", "tsan"}
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        shown = re.findall(
            r"^(?:\$ )?make ([a-z-]+)|`make ([a-z-]+)[^`]*`", page.read_text(), re.MULTILINE
        )
        missing = {a or b for a, b in shown} - targets
        assert not missing, page
    assert "make demo" in (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_pages_name_files_that_exist():
    """Checks paths such as `csrc/plan/ring_plan.h` in the documentation."""
    heads = "csrc|include|python|launcher|benchmarks|tests|docs|examples|tools|cmake|requirements"
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for path in re.findall(rf"`((?:{heads})/[\w./-]*)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_the_pages_name_tests_that_exist():
    """Checks functions such as `check_results_are_by_rank` in the documentation."""
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    tests = set(re.findall(r"^def ((?:check|test)_\w+)\(", written, re.MULTILINE))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        kinds = "check|test" if page.name == "engines.md" else "test"
        named = set(re.findall(rf"`((?:{kinds})_\w+)`", page.read_text()))
        assert named <= tests, page.name


def test_ci_runs_what_the_readme_shows():
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci/run").read_text()
    commands = re.findall(r"^make .*$", script, re.MULTILINE)
    assert commands
    for command in commands:
        for target in command.split()[1:]:
            assert f"make {target}" in readme
    for script in [ROOT / ".ci/run", *(ROOT / ".ci").glob("*.sh")]:
        subprocess.run(["bash", "-n", script], check=True)


def test_the_option_page_follows_the_table():
    import sys

    subprocess.run(
        [sys.executable, ROOT / "docs/generate_options.py", "--check"], check=True, timeout=60
    )


def test_the_index_of_names_follows_the_sources():
    import sys

    subprocess.run(
        [sys.executable, ROOT / "docs/generate_api.py", "--check"], check=True, timeout=60
    )


def test_the_comparison_with_horovod_is_up_to_date():
    """And every documented signature is unchanged."""
    import sys

    pytest.importorskip("torch")
    subprocess.run(
        [sys.executable, ROOT / "docs/generate_horovod.py", "--check"], check=True, timeout=120
    )
