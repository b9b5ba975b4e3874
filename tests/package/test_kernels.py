"""Code compiled for more than the baseline CPU must not serve the rest of the library."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "csrc/reduce/kernels"
CMAKE = (ROOT / "csrc/cmake/rueda_instruction_sets.cmake").read_text()


def instruction_sets() -> list[str]:
    """Returns CMake's instruction sets for this machine's architecture."""
    branches = re.findall(r'MATCHES "([^"]+)"\)(.*?)(?=elseif|else\(\))', CMAKE, re.DOTALL)
    for pattern, branch in branches:
        if re.match(pattern, platform.machine()):
            match = re.search(r"set\(RUEDA_INSTRUCTION_SETS ([\w ]+)\)", branch)
            assert match
            return match[1].split()
    raise AssertionError(platform.machine())


def flags(instruction_set: str) -> list[str]:
    """Returns CMake's compiler flags for an instruction set."""
    match = re.search(rf"set\(flags_{instruction_set} ([^)]+)\)", CMAKE)
    return match[1].split() if match else []


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_kernels_define_nothing_outside_their_namespace(compiler, tmp_path, instruction_set):
    """Without optimization every inline function that is used becomes a symbol."""
    source = tmp_path / "kernels.cpp"
    source.write_text("".join(f'#include "{each}"\n' for each in sorted(KERNELS.glob("*.cpp"))))
    object_file = tmp_path / "kernels.o"
    subprocess.run(
        [
            *compiler,
            *["-std=c++20", "-O0", "-c", f"-DRUEDA_KERNELS={instruction_set}"],
            *flags(instruction_set),
            *[
                f"-I{folder}"
                for folder in (ROOT / "include", ROOT / "csrc", KERNELS / instruction_set)
            ],
            *["-o", object_file, source],
        ],
        check=True,
        timeout=300,
    )
    listing = subprocess.run(
        ["nm", "--defined-only", "--extern-only", "--demangle", object_file],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout
    symbols = [line.split(maxsplit=2)[2] for line in listing.splitlines() if line]
    assert symbols
    # DW.ref. symbols are pointers for exception handling, not code.
    own = [name for name in symbols if not name.startswith("DW.ref.")]
    assert not [name for name in own if f"rueda::{instruction_set}::" not in name]
