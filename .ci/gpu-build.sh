#!/usr/bin/env bash
# Builds in build/gpu what runs on a GPU, and puts the Python package into build/gpu/venv, which also sees the packages
# of the Python that has torch. What is missing comes from build/gpu-bundle (`make gpu-bundle`), else from pip's index.
#
#   .ci/gpu-build.sh TARGET...   gpu_tests, gpu_benchmarks
#
#   PYTHON   the Python that has torch, python3 unless set
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
build=$PWD/build/gpu
bundle=$PWD/build/gpu-bundle
venv=$build/venv
jobs=${JOBS:-$(nproc)}
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
  if [[ -x $venv/bin/python ]] && "$venv/bin/python" -c '' 2>/dev/null; then return; fi
  rm -rf "$venv"
  "$python" -m venv --without-pip "$venv"
  local own
  own=$(site_packages "$venv/bin/python")
  "$python" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))))' \
    >"$own/machine.pth"
}

site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

install_requirements() {
  local source=()
  if [[ -d $bundle ]]; then source=(--no-index --find-links "$bundle"); fi
  "$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-compile \
    "${source[@]}" -r .ci/requirements/gpu.txt ||
    fail "packages are missing: run 'make gpu-bundle' where there is a network, and bring build/gpu-bundle along"
}

configure() {
  local options=(
    -DCMAKE_BUILD_TYPE=Release -DRUEDA_MPI=OFF -DRUEDA_EXAMPLES=OFF -DRUEDA_TESTS=ON -DRUEDA_PYTHON=ON -DRUEDA_BENCHMARKS=ON
    -DPython_EXECUTABLE="$venv/bin/python" -Dpybind11_DIR="$("$venv/bin/python" -m pybind11 --cmakedir)"
  )
  if [[ -d $bundle ]]; then options+=(-DCATCH2_INCLUDE="$bundle/include"); fi
  cmake -S . -B "$build" -G Ninja "${options[@]}" >"$build/configure.log" ||
    { cat "$build/configure.log" && fail 'CMake cannot configure the build'; }
  grep -- '-- GPUs:' "$build/configure.log" || true
  if ! grep -q 'kernels by nvcc' "$build/configure.log"; then
    fail 'CUDA is missing: GPU tests need cuda.h and nvcc 12.8 or newer, on the PATH or through CUDA_PATH'
  fi
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
