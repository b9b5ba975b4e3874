"""A class has one job: it has a maximum of lines and functions, counted over all its files."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 500
MAX_FUNCTIONS = 30


@dataclass
class Size:
    lines: int = 0
    functions: int = 0

    def is_too_large(self) -> bool:
        return self.lines > MAX_LINES or self.functions > MAX_FUNCTIONS


def without_comments_and_texts(source: str) -> str:
    """Removes comments and strings, keeping the number of lines."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"\((.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    # A digit separator is not a quote.
    source = re.sub(r"(?<=\d)'(?=\d)", "", source)
    return re.sub(pattern, lambda m: "\n" * m[0].count("\n"), source, flags=re.DOTALL)


def end_of_block(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise ValueError("a brace is never closed")


def functions_of(body: str) -> list[str]:
    """Returns the functions declared in a class body, without those of nested classes."""
    body = re.sub(r"\boperator\s*(\(\)|\[\]|[^\w\s(]+)", "operator_", body)
    flat = ""
    at = 0
    while at < len(body):
        if body[at] == "{":
            at = end_of_block(body, at)
            flat += ";"
        else:
            flat += body[at]
            at += 1
    while flat != (flat := re.sub(r"<[^<>]*>", "", flat)):
        pass
    found = []
    for part in flat.split(";"):
        part = re.sub(r"\b(public|private|protected):(?!:)", "", part)
        part = re.sub(r"\[\[\w+\]\]|\balignas\([^)]*\)", "", part).strip()
        if re.match(r"(using|friend|typedef|struct|class|enum|union|static_assert|,)", part):
            continue
        if re.search(r"=\s*(delete|default)$", part):
            continue
        if name := re.match(r"[^=(]*?(~?\w+)\s*\(", part):
            found.append(name[1])
    return found


def sizes(files: dict[Path, str]) -> dict[str, Size]:
    """Returns lines, including out-of-class functions, and functions of all top-level classes."""
    found: dict[str, Size] = defaultdict(Size)
    for source in files.values():
        text = without_comments_and_texts(source)
        for head in re.finditer(
            r"^(?:class|struct) (?:alignas\([^)]*\) )?(\w+)\b(?!::)[^;{()=]*\{", text, re.MULTILINE
        ):
            end = end_of_block(text, head.end() - 1)
            found[head[1]].lines += text.count("\n", head.start(), end) + 1
            found[head[1]].functions += len(functions_of(text[head.end() : end - 1]))
    for source in files.values():
        text = without_comments_and_texts(source)
        # From a qualified name to the brace in column 0 that closes the function.
        for head in re.finditer(
            r"^(?![ }#\n])[^;{}=()]*?\b(\w+)::(?:\w+::)*~?\w+\(", text, re.MULTILINE
        ):
            if head[1] in found:
                end = text.find("\n}", head.end())
                found[head[1]].lines += text.count("\n", head.start(), end) + 2
    return dict(found)


def test_a_class_is_measured_over_all_its_files() -> None:
    files = {
        Path("a.h"): (
            "class A : public B {\n public:\n  A(int a) : a_(a), b_{a} {}\n  ~A() override;\n"
            "  A(const A&) = delete;\n  // not this one()\n  [[nodiscard]] bool is_it() const;\n"
            "  struct Inner {\n    void not_of_a();\n  };\n"
            "  bool operator==(const A&) const = default;\n  int operator()(int);\n"
            " private:\n  std::function<void(int)> told_ = nullptr;\n  int a_ = f(3);\n};\n"
        ),
        Path(
            "a.cpp"
        ): 'A::~A() {\n  text = "}";\n}\n\nbool A::is_it()\n    const {\n  return a_;\n}\n',
    }
    assert sizes(files) == {"A": Size(lines=16 + 3 + 4, functions=4)}


def test_no_class_is_too_large() -> None:
    files = {
        path: path.read_text()
        for folder in (ROOT / "csrc", ROOT / "include")
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".h", ".cpp"}
    }
    measured = sizes(files)
    assert len(measured) > 300
    too_large = {
        name: f"{size.lines} lines, {size.functions} functions"
        for name, size in measured.items()
        if size.is_too_large()
    }
    assert not too_large
