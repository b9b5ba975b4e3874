#!/usr/bin/env bash
# Measures on this machine's GPU what docs/gpu.md sets bars for. Without one it says so, and that is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! "${PYTHON:-python3}" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo 'There is no GPU that torch can use here: nothing was measured.'
  exit 0
fi
.ci/gpu-build.sh gpu_benchmarks
exec build/gpu/venv/bin/python benchmarks/gpu/measure.py --kernel-rates build/gpu/benchmarks/gpu/kernel_rates "$@"
