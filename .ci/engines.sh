#!/usr/bin/env bash
# Makes .engines/<engine>, a Python environment for each tests/engines/<engine>/requirements.txt, or for those that are
# named. Does only what is missing: each environment holds a stamp, a hash of what it was made from.
#
#   .ci/engines.sh            all
#   .ci/engines.sh optuna     this one
#
# Rueda is not installed but linked from $VIRTUAL_ENV, so that an engine's tests always run the Rueda that all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VIRTUAL_ENV:-$PWD/.venv}
# Rueda's own dependencies, in the versions of .ci/requirements/demo.txt, whose torch is the one for engines that need one.
needs=(click numpy rich)
pins=.ci/requirements/demo.txt

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() {
  printf '.ci/engines.sh: %s\n' "$*" >&2
  exit 1
}

# Of what pip writes, what it is at: at most each ten seconds.
now_and_then() {
  local line next=$((SECONDS + 10))
  while IFS= read -r line; do
    if [[ $line =~ ^(Collecting|Installing)\ (.{1,60}) ]] && ((SECONDS >= next)); then
      echo "    ${BASH_REMATCH[0]}"
      next=$((SECONDS + 10))
    fi
  done
}

site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))'; }

make_environment() {
  local engine=$1 folder=$2 requirements=$3 hash started=$SECONDS
  hash=$({ "$venv/bin/python" -VV && printf '%s\n' "${needs[@]}" "$folder" && cat "$requirements" "$pins"; } | sha256sum)
  if [[ -f $folder/.rueda && $(<"$folder/.rueda") == "$hash" ]]; then return; fi
  say "$engine: installing $requirements into $folder"
  # Anew: pip leaves what an earlier list of requirements has installed.
  rm -rf "$folder"
  "$venv/bin/python" -m venv --without-pip "$folder"
  # Python compiles what it imports, which is a small part of these packages.
  "$venv/bin/pip" --python "$folder/bin/python" install --no-compile --disable-pip-version-check --progress-bar off \
    -c "$pins" -r "$requirements" "${needs[@]}" 2>&1 |
    tee "$folder/pip.log" | now_and_then || {
    cat "$folder/pip.log" >&2
    fail "$requirements could not be installed: see above"
  }
  echo "$hash" >"$folder/.rueda"
  say "$engine: installed after $((SECONDS - started)) s, $(du -sh "$folder" | cut -f1)"
}

link_rueda() {
  local folder=$1 from to part
  from=$(site_packages "$venv")
  to=$(site_packages "$folder")
  # A version that is there no more must not be found beside the one that is.
  rm -rf "$to"/rueda "$to"/rueda-*.dist-info
  for part in "$from"/rueda "$from"/rueda-*.dist-info; do
    [[ -e $part ]] || fail "there is no Rueda in $venv: .ci/setup.sh demo installs it"
    ln -s "$part" "$to/"
  done
}

[[ -x $venv/bin/python ]] || fail "there is no Python environment in $venv: .ci/setup.sh demo makes it"
engines=("$@")
if ((!$#)); then
  for requirements in tests/engines/*/requirements.txt; do engines+=("$(basename "$(dirname "$requirements")")"); done
fi
for engine in "${engines[@]}"; do
  requirements=tests/engines/$engine/requirements.txt
  [[ -f $requirements ]] || fail "there is no $requirements"
  folder=$PWD/.engines/$engine
  make_environment "$engine" "$folder" "$requirements"
  link_rueda "$folder"
  "$folder/bin/python" -c 'import rueda; rueda.init' || fail "$folder cannot import Rueda: see above"
done
say "${#engines[@]} of .engines are ready: ${engines[*]}"
