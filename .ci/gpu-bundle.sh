#!/usr/bin/env bash
# Collects in build/gpu-bundle what a GPU machine without a network may lack: the wheels of
# .ci/requirements/gpu.txt with what they need, and Catch2's header. .ci/gpu-build.sh takes them from there.
#
#   GPU_PYTHON   the version of that machine's Python, 3.12 unless set
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
version=${GPU_PYTHON:-3.12}
bundle=build/gpu-bundle
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

platforms=()
for glibc in 28 27 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
"$python" -m pip download --quiet --disable-pip-version-check --dest "$bundle" --only-binary=:all: \
  --python-version "$version" --implementation cp "${platforms[@]}" -r .ci/requirements/gpu.txt

size=$(du -sk "$bundle" | cut -f1)
((size < largest)) || fail "$bundle has $size KiB; a GPU machine may take no more than $largest"
printf '%s: %s wheels for Python %s and Catch2, %s KiB\n' "$bundle" "$(ls "$bundle"/*.whl | wc -l)" "$version" "$size"
