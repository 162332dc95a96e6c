#!/usr/bin/env bash
# Storms: random changes through REST while `sfpubsub mirror run` is killed, with and without its
# JVM, and other faults happen. At the end, each table, as read by Spark and by another reader, must
# equal the org's own database; otherwise the exit code is 1.
#
#   scripts/storm.sh [STORMS [SEED [FORMAT]]]     default: 20 storms, a new seed, delta
#
# Runs STORMS storms of 5,000 changes to 10,000 records with 20 faults each, every second one with
# reads in bulk, then one of 50,000 changes to 100,000 records with 60 faults. Iceberg runs in a
# separate environment. The last line of each storm is its report as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh

prepare all,docs dev
prepare_java
storms="${1:-20}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
format="${3:-delta}"
python=python
if [ "$format" = iceberg ]; then
  prepare_iceberg
  python="$iceberg_python"
fi
directory="$(mktemp -d "${TMPDIR:-/tmp}/storm.XXXXXX")"
echo "seed $seed; logs and tables: $directory" >&2

status=0
# A storm that passes leaves no files; one that fails leaves its org and its tables.
storm() {
  local number="$1"
  shift
  if "$python" -m tests.faults.storm "$directory/$number" --format "$format" \
    --seed "$((seed + number))" "$@"; then
    rm -rf "${directory:?}/$number"
  else
    status=1
  fi
}
for ((number = 1; number <= storms; number++)); do
  reads=default
  if ((number % 2 == 0)); then reads=bulk; fi
  storm "$number" --reads "$reads" --changes 5000 --records 10000 --blows 20
done
storm "$((storms + 1))" --changes 50000 --records 100000 --blows 60
if [ "$status" -eq 0 ]; then
  rm -rf "$directory"
fi
exit "$status"
