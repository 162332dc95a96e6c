#!/usr/bin/env bash
# Storms: random changes through REST while `sfpubsub mirror run` is killed, with and without its
# JVM, other faults happen, and an administrator changes rights, objects, fields and channels. At
# the end, each table, as read by Spark and by another reader, must equal the org's own database,
# and no table may ever have had a row as deleted whose record was not; otherwise the exit code is 1.
#
#   scripts/storm.sh [STORMS [SEED [FORMAT]]]     default: 20 storms, a new seed, delta
#
# FORMAT is delta, iceberg, or s3 for Delta in an object store. Runs STORMS storms of 5,000 changes
# to 10,000 records with 25 blows each, every second one with reads in bulk, then one of 50,000
# changes to 100,000 records with 60 blows; STORM_LARGE=0 leaves that one out. STORM_CHANGES sets
# another number of changes. Iceberg runs in a separate environment; s3 downloads 700 MB of jars
# once. The last line of each storm is its report as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh

prepare all dev
prepare_java
storms="${1:-20}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
format="${3:-delta}"
python=python
where=(--format "$format")
if [ "$format" = s3 ]; then
  install "${SFPUBSUB_VENV:-.venv}" 'moto[s3]==5.2.5' 'flask>=3' 'flask-cors>=6'
  where=(--format delta --store s3)
fi
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
  if "$python" -m tests.faults.storm "$directory/$number" "${where[@]}" \
    --seed "$((seed + number))" "$@"; then
    rm -rf "${directory:?}/$number"
  else
    status=1
  fi
}
for ((number = 1; number <= storms; number++)); do
  reads=default
  if ((number % 2 == 0)); then reads=bulk; fi
  silent=()
  if ((number % 4 == 3)); then silent=(--silent); fi
  storm "$number" --reads "$reads" --changes "${STORM_CHANGES:-5000}" --records 10000 --blows 25 \
    ${silent[@]+"${silent[@]}"}
done
if [ "${STORM_LARGE:-1}" != 0 ]; then
  storm "$((storms + 1))" --changes 50000 --records 100000 --blows 60
fi
if [ "$status" -eq 0 ]; then
  rm -rf "$directory"
fi
exit "$status"
