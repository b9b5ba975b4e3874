#!/usr/bin/env bash
# Makes $VIRTUAL_ENV and installs Rueda into it. Does only what is missing: each step leaves a stamp that
# holds a hash of its inputs.
#
#   .ci/setup.sh demo   what `make demo` needs
#   .ci/setup.sh test   and what the tests and the checks need
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:?usage: .ci/setup.sh demo|test}
venv=${VIRTUAL_ENV:-$PWD/.venv}
python=${PYTHON:-python3}
export PATH=$venv/bin:$PATH
# The compiler by the name by which CMake finds it: ccache tells c++ from g++, and would compile everything twice.
export CXX=${CXX:-c++}
stamps=$venv/.rueda

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() {
  printf '.ci/setup.sh: %s\n' "$*" >&2
  exit 1
}

hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
is_done() { [[ -f $stamps/$1 && $(<"$stamps/$1") == "$2" ]]; }
set_done() { mkdir -p "$stamps" && echo "$2" >"$stamps/$1"; }

update_apt() {
  if [[ -z ${apt_is_updated:-} ]]; then
    apt-get -qq update
    apt_is_updated=1
  fi
}

# require WHY PACKAGE...: installs Debian packages, or says what to install.
require() {
  local why=$1
  shift
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    fail "$why. Install it first; on Debian, as root: apt-get install $*"
  fi
  say "$why: apt-get install $*"
  update_apt
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y "$@" >/dev/null
}

compiles() { printf '#include <%s>\n' "$1" | c++ -E -x c++ "${@:2}" - >/dev/null 2>&1; }

# Of what a build writes, how far it is: at most each ten seconds.
now_and_then() {
  local line next=$((SECONDS + 10))
  while IFS= read -r line; do
    if [[ $line =~ ^\ *(\[[0-9]+/[0-9]+\]) ]] && ((SECONDS >= next)); then
      echo "    ${BASH_REMATCH[1]}"
      next=$((SECONDS + 10))
    fi
  done
}

make_venv() {
  if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  # Only what this script has made may it remove; an empty folder need not be.
  if [[ -f $stamps/made ]]; then
    rm -rf "$venv"
  elif [[ -e $venv && -n $(ls -A "$venv" 2>&1) ]]; then
    fail "$venv exists and is no Python environment that works: remove it, or choose another folder with make VENV=FOLDER"
  fi
  command -v "$python" >/dev/null || require "no $python was found" python3 python3-venv python3-dev
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed for the pinned tools: make PYTHON=/path/to/python3"
  "$python" -c 'import ensurepip' 2>/dev/null || require "Python's ensurepip is missing" python3-venv
  say "creating $venv"
  set_done made "by .ci/setup.sh"
  "$python" -m venv "$venv"
}

find_build_tools() {
  command -v c++ >/dev/null || require "no C++ compiler was found" g++
  local headers
  headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -f $headers/Python.h ]] || require "Python's headers are missing" python3-dev
  if ! cmake --version 2>/dev/null | awk 'NR==1 {split($3, v, "."); exit !(v[1] > 3 || v[2] >= 22)}'; then
    "$venv/bin/pip" install --quiet 'cmake>=3.22,<5'
  fi
}

find_test_tools() {
  compiles catch2/catch.hpp || require "Catch2 2 is missing" catch2
  # Good to have: compiles again in seconds; networks of the tests' own.
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    command -v ccache >/dev/null || require "ccache is missing" ccache
    command -v ip >/dev/null || require "iproute2 is missing" iproute2
    command -v nft >/dev/null || require "nftables is missing" nftables || say "there is no nft: what needs it is skipped"
    command -v spin >/dev/null || require "spin is missing" spin || say "there is no spin: the model of membership is not checked"
    unpack_sshd || say "there is no sshd: what needs it is skipped"
  fi
}

# Not installed, which would start a server on this machine: the tests run it in networks of their own.
unpack_sshd() {
  if command -v sshd >/dev/null || [[ -x $venv/sshd/usr/sbin/sshd ]]; then return; fi
  say "unpacking sshd into $venv/sshd"
  update_apt
  rm -rf "$venv/sshd.new" && mkdir "$venv/sshd.new" && (
    cd "$venv/sshd.new"
    apt-get -qq -o APT::Sandbox::User=root download openssh-server libwrap0
    for package in *.deb; do dpkg-deb -x "$package" .; done
    rm -rf ./*.deb etc var
    [[ -x usr/sbin/sshd ]]
  ) && rm -rf "$venv/sshd" && mv "$venv/sshd.new" "$venv/sshd"
}

install_requirements() {
  local files=(.ci/requirements/demo.txt) hash
  if [[ $level == test ]]; then files+=(.ci/requirements/test.txt); fi
  hash=$(hash_of "${files[@]}")
  if is_done "requirements-$level" "$hash"; then return; fi
  say "installing .ci/requirements/$level.txt"
  # Python compiles what it imports, which is a small part of these packages.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile -r ".ci/requirements/$level.txt"
  set_done "requirements-$level" "$hash"
}

install_rueda() {
  local hash
  hash=$(find CMakeLists.txt pyproject.toml README.md LICENSE .ci/requirements/demo.txt csrc include python launcher benchmarks \
    -type f ! -name '*.pyc' ! -name '*.so' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
  if is_done rueda "$hash" && [[ -x $venv/bin/rueda ]]; then return; fi
  say "building Rueda"
  # The build folder stays, so that the next build compiles only what changed.
  mkdir -p build
  "$venv/bin/pip" install --verbose --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall \
    --config-settings=build-dir=build/wheel \
    --config-settings=cmake.define.RUEDA_WARNINGS_AS_ERRORS=ON . 2>&1 | tee build/wheel.log | now_and_then || {
    cat build/wheel.log >&2
    fail "Rueda could not be built: see above"
  }
  set_done rueda "$hash"
}

make_venv
find_build_tools
if [[ $level == test ]]; then find_test_tools; fi
install_requirements
install_rueda
