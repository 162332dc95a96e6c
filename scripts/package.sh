#!/usr/bin/env bash
# Builds the sdist, builds the wheel from it, checks the metadata for a package index, and installs
# the wheel into new environments, for each supported Python version on this machine: once with the
# newest and once with the lowest allowed versions of the requirements, without development packages
# and PySpark. In each environment, a program subscribes to an emulator.
#
#   scripts/package.sh [DIRECTORY]      default: dist; it must not contain another build
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
dist=${1:-dist}
if [ -n "$(ls -A "$dist" 2>/dev/null)" ]; then
  echo "$dist is not empty: remove it, or pass another directory" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python -m venv "$work/tools"
install "$work/tools" build twine
"$work/tools/bin/python" -m build --outdir "$dist" . >"$work/log" 2>&1 || {
  cat "$work/log" >&2
  exit 1
}
"$work/tools/bin/python" -m twine check --strict "$dist"/*

wheel=$(ls "$PWD"/"$dist"/*.whl 2>/dev/null || ls "$dist"/*.whl)
tried=0
# PyArrow 14 was built for NumPy 1, and does not say so.
echo 'numpy<2; python_version < "3.13"' >"$work/oldest.txt"
for minor in 11 12 13 14; do
  # pyenv's commands do not run versions that are not selected, so its directory is searched too.
  python=$(uv python find --no-python-downloads "3.$minor" 2>/dev/null) ||
    python=$(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor.*/bin/python" | tail -n 1) || {
    echo "python3.$minor: not installed, skipped" >&2
    continue
  }
  # uv finds the one of the active environment too, whose packages must not be seen.
  python=$("$python" -c 'import sys; print(sys._base_executable)')
  for resolution in highest lowest-direct; do
    venv=$work/$minor-$resolution
    uv venv --quiet --python "$python" "$venv"
    # Of a wheel alone, uv would take every requirement as indirect, and its newest version.
    install=(uv pip install --quiet --python "$venv/bin/python" --resolution "$resolution")
    [ "$resolution" = highest ] || install+=(--constraint "$work/oldest.txt")
    "${install[@]}" --requirements pyproject.toml "$wheel"
    "$venv/bin/python" scripts/smoke.py
    "${install[@]}" --requirements pyproject.toml --extra arrow --extra emulator --extra json \
      --extra jwt "$wheel"
    "$venv/bin/python" scripts/smoke.py emulator
    echo "python3.$minor, $resolution: passed" >&2
    tried=$((tried + 1))
  done
done
[ "$tried" -gt 0 ]
