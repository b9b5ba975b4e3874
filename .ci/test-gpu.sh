#!/usr/bin/env bash
# All GPU tests: those over the doubles of CUDA and NCCL, the kernels on this machine's GPU, and worlds of one to four
# processes on it. Without a GPU the last two are skipped, with the reason, and the rest must still pass.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$PWD/build/gpu
jobs=${JOBS:-$(nproc)}
started=$SECONDS

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

.ci/gpu-build.sh gpu_tests
say "built after $((SECONDS - started)) s"

failed=()
say 'over the doubles, and the kernels on the GPU'
ctest --test-dir "$build" --output-on-failure -j "$jobs" -R '^unit\.(cuda|nccl|gpu)_' || failed+=('the unit tests')

say 'worlds of processes on the GPU'
"$build/venv/bin/python" -m pytest -p no:cacheprovider tests/gpu || failed+=(tests/gpu)

if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
say "all passed or were skipped, after $((SECONDS - started)) s"
