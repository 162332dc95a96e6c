#!/usr/bin/env bash
# What takes too long for scripts/test.sh: tests marked slow, and the full kill matrix.
#
#   scripts/slow.sh [KILLS]     kills of the ingest job for each kind of subscription; 20 by default
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all,dev
python -m pytest -m slow -s
PYTHON=python scripts/kill_ingest.sh "${1:-20}"
