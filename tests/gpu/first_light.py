"""The GPU tests and measurements in the order in which they are worth most, each part one command of ten minutes.

    python tests/gpu/first_light.py core|torch|sanitizer|bench

``make test-gpu-core`` and the like run it. ``OUT`` is the folder of the results, build/gpu/results unless set;
``GPU_SECONDS`` the time until the deadline, 570 unless set; ``PYTHON`` the Python that has torch. With
``RUEDA_TEST_DEVICE=cpu`` it rehearses: tensors of the CPU, and the doubles of the CUDA driver and NCCL for the programs
in C++. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_steps import Step, Steps

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
PYTHON = str(BUILD / "venv" / "bin" / "python")
REHEARSAL = os.environ.get("RUEDA_TEST_DEVICE") == "cpu"
# Replace the driver and NCCL in a rehearsal.
DOUBLES = {
    "RUEDA_CUDA_LIBRARY": str(BUILD / "tests/doubles/cuda/libcuda.so.1"),
    "RUEDA_NCCL_LIBRARY": str(BUILD / "tests/doubles/nccl/libnccl.so.2"),
}


def built(*targets: str) -> list[Step]:
    """The first steps of each part; quick if another part has built it. Worlds need no programs."""
    build = str(ROOT / ".ci/gpu-build.sh")
    doubles = ["gpu_doubles"] if REHEARSAL and targets else []
    steps = [Step("build", [build], 400, required=True)]
    if targets:
        steps.append(Step("build the programs", [build, *targets, *doubles], 200))
    return steps


def machine() -> Step:
    """Records what everything runs on."""
    return Step("the machine", [PYTHON, str(ROOT / "tests/gpu/machine.py")], 60)


def program(name: str, path: str, limit: float) -> Step:
    """Runs a C++ program of the build."""
    # The program loads the system's driver; in a rehearsal that is the double.
    variables = {"LD_LIBRARY_PATH": str(BUILD / "tests/doubles/cuda")} if REHEARSAL else {}
    return Step(name, [str(BUILD / path)], limit, variables=variables, skip_mark="skipped: ")


def tests(name: str, limit: float, *which: str) -> Step:
    """Runs pytest with its own settings and without the machine's plug-ins."""
    return Step(
        name,
        [
            *(PYTHON, "-m", "pytest", "-c", "tests/gpu/first_light.ini", "--rootdir", "."),
            *(f"tests/gpu/{each}" for each in which),
        ],
        limit,
        variables={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def measurement(section: str, limit: float) -> Step:
    """Runs a section of benchmarks/gpu/measure.py."""
    command = [PYTHON, "benchmarks/gpu/measure.py", "--section", section]
    return Step(f"measure {section}", command, limit, variables=DOUBLES if REHEARSAL else {})


def core() -> Sequence[Step]:
    """What everything else depends on."""
    return [
        *built("gpu_hardware_tests", "nccl_overhead"),
        machine(),
        program("the kernels", "tests/cuda_hardware_test", 60),
        tests("collectives over NCCL", 90, "test_gpu_core.py::test_collectives_over_nccl"),
        tests("streams over NCCL", 90, "test_gpu_core.py::test_streams_over_nccl"),
        measurement("launch-thread", 100),
        tests("staged at two ranks", 150, "test_gpu_core.py::test_staged_at_two_ranks"),
        tests("persistent", 120, "test_gpu_core.py::test_persistent_operations"),
        tests(
            "bad input",
            120,
            "test_gpu_core.py::test_what_cannot_be_reduced",
            "test_gpu_core.py::test_nccl_refuses_a_shared_gpu",
        ),
        tests(
            "staged at one and four ranks",
            200,
            "test_gpu_core.py::test_staged_at_one_rank",
            "test_gpu_core.py::test_staged_at_four_ranks",
        ),
    ]


def torch() -> Sequence[Step]:
    """torch.distributed, training and LibTorch; last, what no machine is known to allow yet."""
    return [
        *built(),
        machine(),
        tests("torch.distributed", 200, "test_gpu_torch.py::test_torch_distributed"),
        tests(
            "training",
            200,
            "test_gpu_torch.py::test_training",
            "test_gpu_torch.py::test_training_staged_at_one_rank",
        ),
        tests("the drop-in for Horovod", 90, "test_gpu_torch.py::test_horovod"),
        tests(
            "strategies, checkpoints and lost ranks",
            150,
            "test_gpu_torch.py::test_strategies",
            "test_gpu_torch.py::test_as_on_cpu",
            "test_gpu_torch.py::test_lost_ranks",
        ),
        tests("LibTorch", 200, "test_gpu_libtorch.py"),
        tests("four ranks", 200, "test_gpu_torch.py::test_four_ranks"),
        tests("two ranks on one card over NCCL", 120, "test_gpu_multi_rank.py"),
    ]


def sanitizer() -> Sequence[Step]:
    """The slowest part: under NVIDIA's memory checker."""
    return [
        *built("gpu_hardware_tests"),
        machine(),
        tests("the kernels", 250, "test_gpu_sanitizer.py::test_kernels"),
        tests("a world of one rank", 300, "test_gpu_sanitizer.py::test_world_of_one_rank"),
    ]


def bench() -> Sequence[Step]:
    """The measurements for which docs/gpu.md sets bars."""
    return [
        *built("gpu_benchmarks"),
        machine(),
        measurement("overhead", 100),
        measurement("kernels", 80),
        measurement("staging", 100),
        measurement("training", 150),
        measurement("memory", 60),
        measurement("two-ranks", 120),
    ]


PARTS: dict[str, Callable[[], Sequence[Step]]] = {
    "core": core,
    "torch": torch,
    "sanitizer": sanitizer,
    "bench": bench,
}


def main() -> int:
    """See the module."""
    if len(sys.argv) != 2 or sys.argv[1] not in PARTS:
        print(__doc__, file=sys.stderr)
        return 2
    os.chdir(ROOT)
    name = sys.argv[1]
    out = Path(os.environ.get("OUT") or BUILD / "results")
    steps = Steps(name, out, float(os.environ.get("GPU_SECONDS", "570")))
    ok = steps.run(PARTS[name]())
    print(f"\n{steps.summary()}\n{out}/{name}.json and {name}.log have the rest", flush=True)
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
