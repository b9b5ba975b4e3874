"""Ranks compare a hash of the sources they were built from: another layout has another hash."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "csrc" / "cmake" / "rueda_build_identity.cmake"


def identity_of(folder: Path, *texts: str) -> str:
    files = [folder / f"{number}.h" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    output = folder / "identity.cpp"
    listed = "|".join(map(str, files))
    subprocess.run(
        ["cmake", f"-DFILES={listed}", f"-DOUTPUT={output}", "-P", str(SCRIPT)], check=True
    )
    (found,) = re.findall(r'return "([0-9a-f]{64})"', output.read_text())
    return found


def test_any_change_of_a_source_is_another_identity(tmp_path: Path) -> None:
    first = identity_of(tmp_path, "struct A { int a; };\n", "")
    assert identity_of(tmp_path, "struct A { int a; };\n", "") == first
    others = {
        identity_of(tmp_path, "struct A { long a; };\n", ""),
        identity_of(tmp_path, "struct A { int a; };\n", "struct B {};\n"),
        identity_of(tmp_path, "", "struct A { int a; };\n"),
    }
    assert len({first, *others}) == 4


def test_all_sources_of_the_library_are_hashed_and_nothing_of_its_bindings() -> None:
    rules = (ROOT / "build" / "release" / "build.ninja").read_text()
    (hashed,) = re.findall(r"-DFILES=([^\s\"]+)", rules)
    expected = {
        path
        for folder in ("csrc", "include/rueda")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".h", ".cpp"} and "bindings" not in path.relative_to(ROOT).parts
    }
    assert {Path(file) for file in hashed.split("|")} == expected
