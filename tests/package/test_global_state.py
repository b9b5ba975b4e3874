"""docs/architecture.md lists all global state: what can change and belongs to no object."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"

# --- C++. Sources are formatted: what begins in column 0 is at namespace scope.

NO_VARIABLE = (
    r"(?!(?:using|typedef|template|class|struct|enum|union|namespace|extern|friend|concept|requires|"
    r"constexpr|consteval|(?:inline|static) constexpr|static_assert)\b)"
)
NAME = r"([A-Za-z_][^;{}()=]*?[\s*&])(\w+)\s*(?:\[[^\]]*\])?\s*"
OF_A_NAMESPACE = re.compile(rf"^{NO_VARIABLE}{NAME}(?:=(?!=)|\{{|;)", re.MULTILINE)
WITHIN = rf"^[ \t]+(?=(?:inline )?(?:static|thread_local)\b(?! constexpr)){NAME}"
STATIC = re.compile(WITHIN + r"(?:=(?!=)|\{|;)", re.MULTILINE)
# In a header this declares a function.
STATIC_WITH_ARGUMENTS = re.compile(WITHIN + r"\([^;{}]*\);", re.MULTILINE)


def bare(source: str) -> str:
    """Removes comments, strings, preprocessor directives and template arguments."""
    source = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', source)
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    source = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", source, flags=re.MULTILINE)
    count = 1
    while count:
        source, count = re.subn(r"<[^<>;{}]*>", "", source)
    return source


def can_change(declaration: str) -> bool:
    """Returns False if the variable and what it points to are const."""
    plain = re.sub(r"\b(static|inline|thread_local|constinit)\s+", "", declaration).strip()
    return not re.match(r"const\b[^*&]*(\*\s*const|&)?$", plain)


def variables_of_cpp(source: str, is_header: bool = False) -> set[str]:
    """Returns the names of mutable variables with static or thread storage duration."""
    patterns = [OF_A_NAMESPACE, STATIC, *([] if is_header else [STATIC_WITH_ARGUMENTS])]
    found = [match for pattern in patterns for match in pattern.finditer(bare(source))]
    return {match[2] for match in found if match[2] != "operator" and can_change(match[1])}


# --- Python


def is_empty_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    containers = {"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter"}
    containers |= {"WeakSet", "WeakKeyDictionary", "WeakValueDictionary"}
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in containers


def variables_of_python(source: str) -> set[str]:
    """Returns globals that functions assign, containers that start empty, and caches."""
    tree = ast.parse(source)
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_empty_container(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {ast.unparse(target) for target in targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            wrappers = {ast.unparse(wrapper).partition("(")[0] for wrapper in node.decorator_list}
            if wrappers & {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}:
                found.add(node.name)
    return found


@cache
def found() -> dict[str, set[str]]:
    names = {}
    for folder in ("csrc", "include", "python", "launcher"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".inc"}:
                names[path] = variables_of_cpp(path.read_text(), path.suffix == ".h")
            elif path.suffix == ".py":
                names[path] = variables_of_python(path.read_text())
    return {str(path.relative_to(ROOT)): found for path, found in names.items() if found}


@cache
def listed() -> dict[str, set[str]]:
    section = PAGE.read_text().partition("### Global state")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w./]+)` \| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    return {path: set(re.findall(r"`(\w+)`", names)) for path, names in rows}


def test_all_global_state_is_listed() -> None:
    missing = {path: names - listed().get(path, set()) for path, names in found().items()}
    assert not {path: names for path, names in missing.items() if names}


def test_what_is_listed_exists() -> None:
    """Python objects that mutate internally are listed by hand: no pattern finds them."""
    gone = {}
    for path, names in listed().items():
        if path.endswith(".py"):
            tree = ast.parse((ROOT / path).read_text())
            assigned = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Name)}
            known = assigned | variables_of_python((ROOT / path).read_text())
        else:
            known = found().get(path, set())
        gone[path] = names - known
    assert len(gone) > 20
    assert not {path: names for path, names in gone.items() if names}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("std::atomic<int> count{0};", {"count"}),
        ("thread_local const Device* innermost = nullptr;", {"innermost"}),
        ("std::function<void(int)> action;", {"action"}),
        ("inline int shared = 1;", {"shared"}),
        ("int table[3] = {1, 2, 3};", {"table"}),
        ("std::map<std::string,\n         std::vector<int>>\n    table;", {"table"}),
        ("void f() {\n  static std::mutex mutex;\n}", {"mutex"}),
        ("void f() {\n  static auto& all = *new Map;\n}", {"all"}),
        ("void f() {\n  static auto* const all = new Map;\n}", {"all"}),
        ("void f() {\n  static Log log(level);\n}", {"log"}),
        ("struct S {\n  static int count;\n};", {"count"}),
        ("constexpr int limit = 3;", set()),
        ("inline constexpr int limit = 3;", set()),
        ("const std::string name = std::string(3, 'x');", set()),
        ("constinit const Row row{1};", set()),
        ('const char* const name = "x";', set()),
        ("void f() {\n  static const Table& chosen = choose();\n}", set()),
        ("bool operator==(const A& a, const B& b) { return a.x == b.x; }", set()),
        ("int f(int x) {\n  int y = x;\n  return y;\n}", set()),
        ("class A final : public B {\n  int x_ = 0;\n};", set()),
        ("struct A {\n  static A of(int x) { return A{x}; }\n};", set()),
        ("// int x = 3;\n#define X int y = 3;\n", set()),
        ("template <class T>\nusing X = Y<T>;\nextern const Row row;", set()),
    ],
)
def test_variables_are_found_in_cpp(source: str, names: set[str]) -> None:
    assert variables_of_cpp(source) == names


def test_a_static_function_of_a_header_is_no_variable() -> None:
    assert variables_of_cpp("struct A {\n  static A of(int x);\n};", is_header=True) == set()


def test_variables_are_found_in_python() -> None:
    source = """
import functools
_seen: dict[str, int] = {}
_waiting = collections.deque()
_table = {"a": 1}
LIMIT = 3
def f():
    global _worlds
    local = {}
@functools.cache
def g(): ...
"""
    assert variables_of_python(source) == {"_seen", "_waiting", "_worlds", "g"}
