#!/usr/bin/env bash
# Kills a streaming query (source sfpubsub, foreachBatch into a raw table) many times over one
# stream of 20,000 events, and counts the table: every event once, or exit code 1. Its driver, its
# JVM and the source's process take turns, at random and between a batch's offsets and its commit.
#
#   scripts/kill_source.sh [KILLS [SEED]]      30 kills and a new seed by default
#
# Runs with the Python of $PYTHON, which has sfpubsub with its extras installed. Takes about 15 s
# a kill. The last line is the report as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

kills="${1:-30}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
python="${PYTHON:-python3}"
directory="$(mktemp -d "${TMPDIR:-/tmp}/kill_source.XXXXXX")"
echo "logs, checkpoint and table: $directory" >&2

"$python" -m tests.faults.source_killer "$directory/run" --kills "$kills" --seed "$seed"
rm -rf "$directory"
