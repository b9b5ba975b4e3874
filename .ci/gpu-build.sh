#!/usr/bin/env bash
# Builds in build/gpu what runs on a GPU, and puts the Python package into build/gpu/venv, which also sees the packages
# of the Python that has torch. What is missing comes from build/gpu-bundle (`make gpu-bundle`), else from pip's index.
#
#   .ci/gpu-build.sh TARGET...   gpu_hardware_tests, gpu_benchmarks, gpu_doubles
#
#   PYTHON   the Python that has torch, python3 unless set
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
build=$PWD/build/gpu
bundle=$PWD/build/gpu-bundle
venv=$build/venv
jobs=${JOBS:-$(nproc)}
# What GPU machines have; the kernels' PTX serves newer ones.
architectures=90
# Another environment must not decide what is seen.
unset PYTHONPATH
VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)') # where CMake looks for CUDA's wheels
export VIRTUAL_ENV

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() {
  printf '.ci/gpu-build.sh: %s\n' "$*" >&2
  exit 1
}

# A virtual environment's own flag, --system-site-packages, would not show the packages of another one, where torch may be.
make_venv() {
  if [[ -x $venv/bin/python && $(cat "$venv/made-by" 2>/dev/null) == "$VIRTUAL_ENV" ]]; then return; fi
  rm -rf "$venv"
  "$python" -m venv --without-pip "$venv"
  local own
  own=$(site_packages "$venv/bin/python")
  "$python" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))))' \
    >"$own/machine.pth"
  echo "$VIRTUAL_ENV" >"$venv/made-by"
}

site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The machine's own packages, where they are new enough; pip is asked only for what is missing.
install_requirements() {
  local missing source=()
  missing=$("$venv/bin/python" .ci/missing_packages.py .ci/requirements/gpu.txt)
  if [[ -z $missing ]]; then return; fi
  if [[ -d $bundle ]]; then source=(--no-index --find-links "$bundle"); fi
  # shellcheck disable=SC2086 # one word for each package
  "$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-compile \
    "${source[@]}" $missing ||
    fail "packages are missing: run 'make gpu-bundle' where there is a network, and bring build/gpu-bundle along"
}

configure() {
  local options=(
    -DCMAKE_BUILD_TYPE=Release -DRUEDA_MPI=OFF -DRUEDA_EXAMPLES=OFF -DRUEDA_TESTS=ON -DRUEDA_PYTHON=ON -DRUEDA_BENCHMARKS=ON
    # What a compiler of another machine warns about is no reason to stop there.
    -DRUEDA_WARNINGS_AS_ERRORS=OFF -DRUEDA_CUDA_ARCHITECTURES=$architectures
    -DPython_EXECUTABLE="$venv/bin/python" -Dpybind11_DIR="$("$venv/bin/python" -m pybind11 --cmakedir)"
  )
  if [[ -d $bundle/include ]]; then options+=(-DCATCH2_INCLUDE="$bundle/include"); fi
  local image=$bundle/kernels-sm_$architectures.fatbin
  if [[ -f $image ]] && ! has_nvcc; then options+=(-DRUEDA_CUDA_IMAGE="$image"); else options+=(-DRUEDA_CUDA_IMAGE=); fi
  cmake -S . -B "$build" -G Ninja "${options[@]}" >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log" && fail 'CMake cannot configure the build'; }
  grep -- '-- GPUs:' "$build/configure.log" || true
  if ! grep -qE 'kernels (by|from)' "$build/configure.log"; then
    fail "kernels are missing: GPU tests need cuda.h, and nvcc 12.8 or newer (on the PATH or through CUDA_PATH) or build/gpu-bundle"
  fi
}

# WITHOUT_NVCC=1 does as a machine that has none.
has_nvcc() {
  [[ -z ${WITHOUT_NVCC:-} ]] && { command -v nvcc || ls /usr/local/cuda/bin/nvcc "${CUDA_PATH:-/none}/bin/nvcc"; } >/dev/null 2>&1
}

# Links, so that a change of the Python sources needs nothing.
link_package() {
  local package
  package=$(site_packages "$venv/bin/python")/rueda
  rm -rf "$package"
  mkdir -p "$package/lib"
  ln -s "$PWD"/python/rueda/* "$build"/csrc/_native.*.so "$package/"
  ln -s "$PWD/launcher" "$package/launcher"
  ln -s "$PWD/benchmarks/driver" "$package/bench"
  ln -s "$build/csrc/librueda.so" "$package/lib/"
}

check_tools() {
  local tool headers
  for tool in cmake ninja c++; do command -v "$tool" >/dev/null || fail "$tool is missing"; done
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -f $headers/Python.h ]] || fail "Python's headers are missing: there is no $headers/Python.h"
}

mkdir -p "$build"
say "Python: $("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
check_tools
make_venv
install_requirements
configure
say "building $*"
cmake --build "$build" -j "$jobs" --target rueda rueda_native "$@"
link_package
