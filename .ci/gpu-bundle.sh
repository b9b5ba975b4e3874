#!/usr/bin/env bash
# Collects in build/gpu-bundle what a GPU machine without a network may lack; .ci/gpu-build.sh takes it from there:
#
#   *.whl                  .ci/requirements/gpu.txt with what they need, for packages that its Python lacks
#   include/catch2/        Catch2's header
#   kernels-sm_90.fatbin   the kernels, where it has no nvcc, and a hash of the sources that they are made from
#
#   GPU_PYTHON   the version of that machine's Python, 3.12 unless set
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
version=${GPU_PYTHON:-3.12}
bundle=build/gpu-bundle
architecture=90
largest=$((60 * 1024)) # KiB

fail() {
  printf '.ci/gpu-bundle.sh: %s\n' "$*" >&2
  exit 1
}

# Where the preprocessor finds a header.
path_of() { printf '#include <%s>\n' "$1" | c++ -E -x c++ - 2>/dev/null | sed -n "s|^# 1 \"\\(/.*$1\\)\".*|\\1|p" | head -1; }

rm -rf "$bundle"
mkdir -p "$bundle/include/catch2"
catch2=$(path_of catch2/catch.hpp)
[[ -n $catch2 ]] || fail 'Catch2 2 is missing; on Debian, as root: apt-get install catch2'
cp "$catch2" "$bundle/include/catch2/"

compile_kernels() {
  cmake -S . -B build/gpu-kernels -G Ninja -DRUEDA_TESTS=OFF -DRUEDA_EXAMPLES=OFF -DRUEDA_MPI=OFF \
    -DRUEDA_CUDA_ARCHITECTURES=$architecture && cmake --build build/gpu-kernels --target rueda_kernels
}
compile_kernels >build/gpu-kernels.log 2>&1 || {
  cat build/gpu-kernels.log >&2
  fail 'the kernels cannot be compiled: nvcc 12.8 or newer is needed'
}
for ending in fatbin fatbin.sources; do
  cp "build/gpu-kernels/cuda/kernels.$ending" "$bundle/kernels-sm_$architecture.$ending"
done

platforms=()
for glibc in 28 27 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
"$python" -m pip download --quiet --disable-pip-version-check --dest "$bundle" --only-binary=:all: \
  --python-version "$version" --implementation cp "${platforms[@]}" -c <(grep -hE '^[a-z0-9_-]+==' .ci/requirements/*.txt) -r .ci/requirements/gpu.txt

size=$(du -sk "$bundle" | cut -f1)
((size < largest)) || fail "$bundle has $size KiB; a GPU machine may take no more than $largest"
printf '%s: kernels for sm_%s, %s wheels for Python %s and Catch2, %s KiB\n' \
  "$bundle" "$architecture" "$(find "$bundle" -name '*.whl' | wc -l)" "$version" "$size"
