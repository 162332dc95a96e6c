#!/usr/bin/env bash
# Kills `sfpubsub ingest` many times over one stream of 20,000 events, once through a managed
# subscription and once through a topic, and counts the table: every event once, or exit code 1.
#
#   scripts/kill_ingest.sh [KILLS [SEED]]      20 kills each and a new seed by default
#
# Runs with the Python of $PYTHON, which has sfpubsub with its extras installed. Takes about 15 s
# a kill. The last line of each run is its report as JSON.
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
