#!/usr/bin/env bash
# Sets everything up, then runs all checks and tests. Arguments go to pytest, and then only pytest
# runs: scripts/test.sh tests/protocol -k window
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all,dev

if [ $# -gt 0 ]; then
  exec python -m pytest "$@"
fi

step() { printf '\n== %s\n' "$*" >&2; "$@"; }

step ruff check .
step ruff format --check .
step mypy
step scripts/gen_protos.sh --check

# The core's own tests, alone, must reach every branch of it.
export COVERAGE_FILE
COVERAGE_FILE=$(mktemp -d)/coverage
step python -m coverage run --source=sfpubsub.protocol -m pytest tests/protocol -q -m "not slow"
python -m coverage combine --quiet
step python -m coverage report --fail-under=100

step python -m pytest -m "not slow"
