#!/usr/bin/env bash
# The crash matrix: kills the driver of `sfpubsub ingest`, Spark's JVM, or both, with SIGKILL at
# each moment of a write, for each table format, with a managed subscription and with a topic. At
# the end of each stream, Spark and another reader read its table. If an event is not in it exactly
# once, the exit code is 1.
#
#   scripts/crash_matrix.sh [KILLS [SEED [FORMAT …]]]    default: 243 kills, a new seed, all formats
#
# The matrix of one format has 27 kills, so the number of kills is rounded up to a multiple of that.
# Then `sfpubsub tables` is killed 15 times for Delta and Iceberg; its tables must equal those of an
# independent reference. Takes about 20 s per kill. Iceberg runs in a separate environment. The last
# line of each stream is its report.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh

prepare all dev
prepare_java
kills="${1:-243}"
seed="${2:-$((RANDOM * 32768 + RANDOM))}"
formats=("${@:3}")
[ ${#formats[@]} -gt 0 ] || formats=(parquet delta iceberg)
python=python
rounds=$(((kills + 27 * ${#formats[@]} - 1) / (27 * ${#formats[@]})))
directory="$(mktemp -d "${TMPDIR:-/tmp}/crash_matrix.XXXXXX")"
echo "seed $seed, $rounds rounds of the matrix; logs and tables: $directory" >&2
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
    if [ "$format" = parquet ]; then continue; fi
    "$spark_python" -m tests.faults.tables_matrix "$format" "$directory/$round-$format-tables" \
      --kills 15 --seed "$((seed + round))" || status=1
  done
done
if [ "$status" -eq 0 ]; then
  rm -rf "$directory"
fi
exit "$status"
