#!/usr/bin/env bash
# The checks and tests that need neither Spark nor a browser, in a small environment of their own:
# lint, types, and the tests that start no emulator and no process. With arguments, runs only pytest
# with them, and then also tests that start some: scripts/quick.sh tests/protocol -k window
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
export SFPUBSUB_VENV=.venv-quick
# Without pip and setuptools, which would be a seventh of the environment.
[ -x "$SFPUBSUB_VENV/bin/python" ] || "$(find_python)" -m venv --without-pip "$SFPUBSUB_VENV"
prepare emulator,json test
installed=$SECONDS

# See scripts/test.sh: bytecode is kept, and the Python code is tested. It is kept outside of the
# environment, which then stays as small as it was installed.
export PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$PWD/build/bytecode SFPUBSUB_NATIVE=0

if [ $# -gt 0 ]; then
  exec python -m pytest -p tests.quick "$@"
fi

lint() { ruff check . && ruff format --check .; }
# PySpark, PyArrow, pandas and NumPy are not installed, so mypy takes everything of theirs as Any.
# It cannot see a wrong use of them; it finds whatever else the mypy of scripts/test.sh finds.
types() {
  mypy --cache-dir .mypy_cache/quick --disable-error-code import-not-found \
    --allow-subclassing-any --no-warn-return-any --no-warn-unused-ignores
}

logs=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null; rm -rf "$logs"' EXIT
declare -A pids
for check in lint types; do
  "$check" >"$logs/$check" 2>&1 </dev/null &
  pids[$check]=$!
done
failed=()
python -m tests.quick --numprocesses "$(nproc)" || failed+=(tests)
for check in lint types; do
  wait "${pids[$check]}" || failed+=("$check")
  printf '\n== %s\n' "$check" >&2
  cat "$logs/$check"
done
times >"$logs/times" # its last line: user and system time of all that ran, as 1m2.345s
cpu=$(tail -n 1 "$logs/times" | awk -F '[ms ]+' '{ printf "%d", ($1 + $3) * 60 + $2 + $4 }')
printf '\n== quick.sh took %d s, %d s of them for the environment, and %d s of CPU\n' \
  "$SECONDS" "$installed" "$cpu" >&2
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
