#!/usr/bin/env bash
# Kills a streaming query (source sfpubsub, foreachBatch into a raw table) many times during a
# stream of 20,000 events, and counts the rows of the table. If an event is not in it exactly once,
# the exit code is 1. The driver, the JVM and the source's process are killed in turn, at random
# times and between the offsets of a batch and its commit.
#
#   scripts/kill_source.sh [KILLS [SEED]]      default: 30 kills, a new seed
#
# Uses the Python of $PYTHON, in which sfpubsub must be installed with its extras. Takes about 15 s
# per kill. The last line is the report as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

kills="${1:-30}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
python="${PYTHON:-python3}"
directory="$(mktemp -d "${TMPDIR:-/tmp}/kill_source.XXXXXX")"
echo "logs, checkpoint and table: $directory" >&2

"$python" -m tests.faults.source_killer "$directory/run" --kills "$kills" --seed "$seed"
rm -rf "$directory"
