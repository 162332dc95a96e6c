#!/usr/bin/env bash
# Generates docs/reference/metrics.md from src/sfpubsub/monitoring/metrics.py.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091
. scripts/environment.sh
prepare all dev
python -c 'from sfpubsub.monitoring.metrics import metrics_page; print(metrics_page(), end="")' >docs/reference/metrics.md
