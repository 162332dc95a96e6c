#!/usr/bin/env bash
# Kills `sfpubsub ingest` many times during a stream of 20,000 events, once with a managed
# subscription and once with a topic, and counts the rows of the table. If an event is not in it
# exactly once, the exit code is 1.
#
#   scripts/kill_ingest.sh [KILLS [SEED]]      default: 20 kills per stream, a new seed
#
# Uses the Python of $PYTHON, in which sfpubsub must be installed with its extras. Takes about 15 s
# per kill. The last line of each run is its report as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

kills="${1:-20}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
python="${PYTHON:-python3}"
directory="$(mktemp -d "${TMPDIR:-/tmp}/kill_ingest.XXXXXX")"
echo "logs and tables: $directory" >&2

status=0
for source in managed topic; do
  "$python" -m tests.faults.killer "$source" "$directory/$source" --kills "$kills" --seed "$seed" || status=1
done
if [ "$status" -eq 0 ]; then
  rm -rf "$directory"
fi
exit "$status"
