"""The architecture, checked: which layer may include what."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
PUBLIC = ROOT / "include" / "rueda"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layers() -> list[str]:
    """Returns the layers of csrc/CMakeLists.txt, lowest first."""
    match = re.search(r"set\(layers ([\w ]+)\)", (CSRC / "CMakeLists.txt").read_text())
    assert match
    return match[1].split()


def sources(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in {".h", ".cpp", ".cc", ".cu", ".inc"})


def includes(source: Path) -> list[str]:
    return [name for _, name in INCLUDE.findall(source.read_text())]


def layer_of(include: str) -> str | None:
    head = include.partition("/")[0]
    return head if head in layers() or head in {"mpi", "bindings", "jax"} else None


def upward_includes(layer: str, names: list[str]) -> list[str]:
    allowed = layers()[: layers().index(layer) + 1]
    return [name for name in names if layer_of(name) not in {None, *allowed}]


def test_every_folder_is_a_layer():
    folders = {p.name for p in CSRC.iterdir() if p.is_dir() and sources(p)}
    assert folders - {"mpi", "bindings", "jax"} <= set(layers())
    assert {"core", "reduce", "plan", "transport"} <= folders


def test_unit_tests_sit_in_folders_of_layers():
    """A test's folder is named after the folder it tests, in csrc/ or benchmarks/."""
    unit = ROOT / "tests" / "unit"
    folders = {source.parent.relative_to(unit) for source in unit.rglob("*_test.cpp")}
    assert {Path("core"), Path("plan"), Path("backend/gpu")} <= folders
    homes = {folder: (CSRC / folder, ROOT / "benchmarks" / folder) for folder in folders}
    assert not [f for f, home in homes.items() if f == Path() or not any(h.is_dir() for h in home)]


@pytest.mark.parametrize("layer", layers())
def test_no_include_points_upward(layer):
    found = {
        str(source.relative_to(ROOT)): upward
        for source in sources(CSRC / layer)
        if (upward := upward_includes(layer, includes(source)))
    }
    assert not found


def test_an_upward_include_would_be_found():
    assert upward_includes("core", ["core/status.h", "plan/ring_plan.h"]) == ["plan/ring_plan.h"]
    assert upward_includes("plan", ["core/status.h", "plan/ring_plan.h", "vector"]) == []


def test_the_mpi_plug_in_stands_below_the_coordinator():
    allowed = {None, "mpi", *layers()[: layers().index("membership") + 1]}
    for source in sources(CSRC / "mpi"):
        assert {layer_of(name) for name in includes(source)} <= allowed, source


def bypasses(names: list[str]) -> list[str]:
    """Returns includes that bindings may not use: all of csrc/ except core/ and api/bindings.h."""
    return [
        name for name in names if layer_of(name) not in {None, "core"} and name != "api/bindings.h"
    ]


def test_the_bindings_do_not_reach_below_the_api():
    for source in sources(CSRC / "bindings"):
        assert not bypasses(includes(source)), source
    assert bypasses(["api/bindings.h", "core/clock.h", "rueda/rueda.h", "errors.h"]) == []
    assert bypasses(["api/current_engine.h"]) == ["api/current_engine.h"]


def test_the_header_for_the_bindings_shows_nothing_of_the_engine():
    """Neither directly nor through its includes; otherwise the bindings could use the engine."""
    seen: set[str] = set()
    rest = ["api/bindings.h"]
    while rest:
        name = rest.pop()
        if name not in seen and layer_of(name) not in {None, "core"}:
            seen.add(name)
            rest += includes(CSRC / name)
    assert seen == {
        "api/bindings.h",
        "api/persistent_run.h",
        "backend/gpu_support.h",
        "membership/host.h",
        "reduce/fingerprint.h",
        "reduce/key_merge.h",
        "reduce/key_samples.h",
        "reduce/keyed_rows.h",
        "reduce/row_sums.h",
    }


def test_reduce_plan_transport_and_cuda_do_not_know_one_another():
    beside = {"reduce", "plan", "transport", "cuda"}
    for layer in beside:
        for source in sources(CSRC / layer):
            assert not {layer_of(name) for name in includes(source)} & (beside - {layer}), source


IMPURE = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|atomic|future|semaphore|latch|barrier|stop_token|iostream|"
    r"fstream|random|pthread\.h|sys/.*|netinet/.*|arpa/.*|netdb\.h|unistd\.h|poll\.h|fcntl\.h|signal\.h|"
    r"time\.h|ctime|mpi\.h|core/futex\.h|core/log\.h)$"
)
# core/clock.h only defines the type of a time point; reading the clock is forbidden.
READS_CLOCK = re.compile(
    r"\b(Clock|steady_clock|system_clock|high_resolution_clock)::now\b|\bgetenv\b"
)


def test_plan_is_pure():
    for source in sources(CSRC / "plan"):
        assert not [name for name in includes(source) if IMPURE.match(name)], source
        assert not READS_CLOCK.search(source.read_text()), source


def test_only_the_plug_in_knows_mpi():
    for source in sources(CSRC) + sources(ROOT / "include"):
        if source.parent != CSRC / "mpi":
            assert "mpi.h" not in includes(source), source


def test_cuda_h_is_included_in_one_place():
    """The layer's headers can be included without CUDA."""
    for source in sources(CSRC) + sources(PUBLIC):
        known = [n for n in includes(source) if re.match(r"(cuda|cuda_\w+|nccl)\.h$", n)]
        assert not known or source == CSRC / "cuda" / "driver_table.h", source
        if source.suffix == ".h":
            assert "cuda/driver_table.h" not in includes(source), source


def is_for_torch(header: Path) -> bool:
    """rueda/torch.h and its parts: only programs with LibTorch include them."""
    return header.is_relative_to(PUBLIC / "torch") or header == PUBLIC / "torch.h"


def test_nothing_but_the_torch_adapter_knows_torch():
    for source in sources(CSRC) + sources(PUBLIC):
        if not is_for_torch(source):
            known = [n for n in includes(source) if n.split("/")[0] in {"torch", "ATen", "c10"}]
            assert not known, source


def test_no_other_public_header_needs_the_one_for_torch():
    for source in sources(PUBLIC):
        if not is_for_torch(source):
            assert not [n for n in includes(source) if n.startswith("rueda/torch")], source


def test_public_headers_include_only_public_headers():
    for source in sources(ROOT / "include"):
        for mark, name in INCLUDE.findall(source.read_text()):
            assert mark == "<" or name.startswith("rueda/"), (source, name)


def test_the_ranks_of_the_bench_use_the_public_api_only():
    folder = ROOT / "benchmarks" / "worker"
    own = {source.name for source in sources(folder)}
    for source in sources(folder):
        foreign = [n for n in includes(source) if layer_of(n) is not None or n == "mpi.h"]
        assert not [name for name in foreign if name not in own], source


def test_public_headers_compile_by_themselves(compiler, tmp_path):
    import subprocess

    for header in sources(ROOT / "include"):
        if is_for_torch(header):
            continue  # test_libtorch.py compiles them if torch is installed
        unit = tmp_path / "unit.cpp"
        name = header.relative_to(ROOT / "include")
        unit.write_text(f"#include <{name}>\n#include <{name}>\n")
        subprocess.run(
            [
                *compiler,
                "-std=c++20",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                f"-I{ROOT / 'include'}",
                unit,
            ],
            check=True,
            timeout=120,
        )
