#!/usr/bin/env bash
# Runs the tests that take too long for scripts/test.sh, in about three hours: tests marked slow,
# the full kill and crash matrices, Iceberg in a separate environment, ten minutes of faults,
# sixty-four subscriptions in one process, 20,000 interrupts, subscriptions that are opened and ended at
# random, and the compiled decoder with a million damaged payloads.
#
#   scripts/slow.sh [KILLS [SOAK_SECONDS [MANY_SECONDS]]]      default: 20, 600 and 300
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
# Requirements of Spark Connect, which only its slow test needs.
install "${SFPUBSUB_VENV:-.venv}" --constraint constraints.txt 'pyspark[connect]'
python -m pytest -m slow -s
python -m pytest -m foreign tests/streaming tests/emulator tests/plugin
scripts/native.sh --slow
PYTHON=python scripts/kill_ingest.sh "${1:-20}"
PYTHON=python scripts/crash_matrix.sh
scripts/test_iceberg.sh -m "slow or not slow" tests/spark/raw/test_logged.py \
  tests/spark/raw/test_iceberg.py tests/spark/ingest/test_stopped_writer.py \
  tests/spark/tables/test_targets.py tests/spark/tables/test_engine.py
python -m tests.spark.tables.kept_small "$(mktemp -d)" delta
scripts/test_s3.sh
scripts/package.sh "$(mktemp -d)"
PYTHON=python scripts/kill_source.sh "${1:-30}"
python -m tests.faults.soak --seconds "${2:-600}"
python -m tests.faults.many sync --seconds "${3:-300}"
python -m tests.faults.many asyncio --seconds "${3:-300}"
python -m tests.faults.interrupts
python -m tests.faults.lives
