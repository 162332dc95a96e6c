#!/usr/bin/env bash
# The crash matrix: SIGKILL of `sfpubsub ingest` at each moment of a write, of the driver, of Spark's
# JVM and of both, into tables of each format, through a managed subscription and a topic. At the end
# of each stream its table is read by Spark and by a plain reader: every event once, or exit code 1.
#
#   scripts/crash_matrix.sh [KILLS [SEED [FORMAT …]]]     by default 243 kills, a new seed, all formats
#
# Once through the matrix of one format is 27 kills, so kills are rounded up to that; then come 15 of
# `sfpubsub tables` into tables of the format, which must be what an independent reference makes of
# the raw rows. Takes about 20 s a kill. Iceberg runs in an environment of its own. The last line of
# each stream is its report.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh

kills="${1:-243}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
formats=("${@:3}")
[ ${#formats[@]} -gt 0 ] || formats=(parquet delta iceberg)
python="${PYTHON:-python3}"
rounds=$(((kills + 27 * ${#formats[@]} - 1) / (27 * ${#formats[@]})))
directory="$(mktemp -d "${TMPDIR:-/tmp}/crash_matrix.XXXXXX")"
echo "seed $seed, $rounds times through the matrix; logs and tables: $directory" >&2
for format in "${formats[@]}"; do
  if [ "$format" = iceberg ]; then prepare_iceberg; fi
done

status=0
for ((round = 1; round <= rounds; round++)); do
  for format in "${formats[@]}"; do
    spark_python="$python"
    if [ "$format" = iceberg ]; then spark_python="$iceberg_python"; fi
    for source in managed topic; do
      count=15
      if [ "$source" = topic ]; then count=12; fi
      "$python" -m tests.faults.matrix "$format" "$source" "$directory/$round-$format-$source" \
        --kills "$count" --seed "$((seed + round))" --python "$spark_python" || status=1
    done
    "$spark_python" -m tests.faults.tables_matrix "$format" "$directory/$round-$format-tables" \
      --kills 15 --seed "$((seed + round))" || status=1
  done
done
if [ "$status" -eq 0 ]; then
  rm -rf "$directory"
fi
exit "$status"
