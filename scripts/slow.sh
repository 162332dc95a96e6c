#!/usr/bin/env bash
# What takes too long for scripts/test.sh, about an hour: tests marked slow, the full kill matrix,
# ten minutes of faults, and sixty-four subscriptions in one process.
#
#   scripts/slow.sh [KILLS [SOAK_SECONDS [MANY_SECONDS]]]      20, 600 and 300 by default
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all,dev
python -m pytest -m slow -s
PYTHON=python scripts/kill_ingest.sh "${1:-20}"
python -m tests.faults.soak --seconds "${2:-600}"
python -m tests.faults.many sync --seconds "${3:-300}"
python -m tests.faults.many asyncio --seconds "${3:-300}"
