"""The list of mutations can be read and names existing tests. `make mutants` tries them."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "mutants"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    pytest.importorskip("tomllib")
    spec = importlib.util.spec_from_file_location("mutants_run", FOLDER / "run.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses looks there
    spec.loader.exec_module(module)
    return module


def cases_of(program: str) -> set[str]:
    """Returns the filters that a program accepts."""
    if program.startswith("check_"):
        text = (ROOT / "tests/parallel/python" / program).read_text()
        return set(re.findall(r"^def (check_\w+)", text, re.MULTILINE))
    if program.endswith(".py"):
        text = (ROOT / "tests/python" / program).read_text()
        return set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    (source,) = (ROOT / "tests/unit").rglob(f"{program}.cpp")
    text = source.read_text()
    return set(re.findall(r'TEST_CASE\(\s*"([^"]+)"', text))


def test_every_mutation_names_a_test_that_exists(run: ModuleType) -> None:
    mutants = run.read_list(FOLDER / "mutants.toml")
    assert len(mutants) > 40
    for mutant in mutants:
        assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, mutant.name
        assert mutant.old != mutant.new, mutant.name
        assert mutant.test.filter in cases_of(mutant.test.program), mutant.name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[mutant]]\nname = 'x'", "missing"),
        ("[[mutation]]", "mutant"),
        ("[[mutant]", "TOMLDecodeError"),
    ],
)
def test_a_list_that_makes_no_sense(
    run: ModuleType, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(run.ListError, match=complaint):
        run.read_list(tmp_path / "list.toml")


def test_what_becomes_of_mutations(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Uses a tree of one function and its test."""
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "WORK", tmp_path / "work")

    def package(tree: object) -> None:
        shutil.copytree(tmp_path / "python", tree._python)  # type: ignore[attr-defined]

    monkeypatch.setattr(run.Tree, "package", package)
    source = tmp_path / "python/rueda/sums.py"
    for path, text in (
        (source, "def total(values):\n    return sum(values, 0)\n"),
        (
            tmp_path / "tests/python/test_sums.py",
            "from pathlib import Path\n\n"
            "def test_total():\n"
            "    here = {}\n"
            "    exec((Path(__file__).parents[2] / 'python/rueda/sums.py').read_text(), here)\n"
            "    assert here['total']([1, 2]) == 3\n\n"
            "def test_wrong():\n"
            "    assert False\n",
        ),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setattr(
        run, "tracked", lambda: [source.relative_to(tmp_path), Path("tests/python/test_sums.py")]
    )
    rows = [
        ("killed", "sum(", "max(", "test_total"),
        ("survives", ", 0)", ")", "test_total"),
        ("absent", "product", "sum", "test_total"),
        ("ambiguous", "values", "value", "test_total"),
        ("fails anyway", "sum(", "max(", "test_wrong"),
    ]
    (tmp_path / "list.toml").write_text(
        "".join(
            f"[[mutant]]\nname = {name!r}\nfile = 'python/rueda/sums.py'\nold = {old!r}\nnew = {new!r}\n"
            f"program = 'test_sums.py'\nfilter = {test!r}\n"
            for name, old, new, test in rows
        )
    )
    assert run.main([str(tmp_path / "list.toml"), "--jobs", "2"]) == 1
    table = capsys.readouterr().out
    for line in (
        "killed        killed  ",
        "survives      survived",
        "absent        does not apply: its text occurs 0 times",
        "ambiguous     does not apply: its text occurs 2 times",
        "fails anyway  its test fails without it",
        "1 of 5 mutations killed",
    ):
        assert line in table
    assert run.main([str(tmp_path / "list.toml"), "--only", "kill*", "--names"]) == 0
    assert capsys.readouterr().out == "killed\n"
    assert run.main([str(tmp_path / "list.toml"), "--only", "other"]) == 2
    assert source.read_text() == "def total(values):\n    return sum(values, 0)\n"
