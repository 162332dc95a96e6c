#!/usr/bin/env bash
# Tests the pipeline on each supported PySpark version, each in an environment of its own: classic
# and, from 4.0 on, Spark Connect. A raw table of each format is written by processes that are killed
# ten times (PLATFORM_KILLS), or whose server is; then typed, current and mirrored tables are built
# from it. At last comes a small storm (scripts/storm.sh) of 200 changes for a mirror. Prints a line
# per format, the report of each storm as JSON, and at the end the cells of the table that failed or
# could not be set up. The first run downloads some 450 MB for each version.
#
#   scripts/platforms.sh               all cells
#   scripts/platforms.sh 3.5 4.2       the cells of these versions
#   scripts/platforms.sh 4.2-connect   one cell
set -uo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
export PYTHONPATH=$PWD/src:$PWD/generated:$PWD SFPUBSUB_NATIVE=0

# Version, its pins, and the formats for which it has jars (spark/runtime/runtimes.py).
cells() {
  case $1 in
    3.5) echo 'pyspark==3.5.9 pandas==2.2.3 pyarrow==19.0.1 numpy==1.26.4 | delta iceberg parquet' ;;
    4.0) echo 'pyspark==4.0.5 pandas==2.3.3 pyarrow==26.0.1 numpy==2.4.6 | delta iceberg parquet' ;;
    4.1) echo 'pyspark==4.1.4 pandas==2.3.3 pyarrow==26.0.1 numpy==2.4.6 | delta iceberg parquet' ;;
    4.2) echo 'pyspark==4.2.0 pandas==2.3.3 pyarrow==26.0.1 numpy==2.4.6 | delta parquet' ;;
    *) echo "there is no cell $1" >&2 && return 1 ;;
  esac
}

# What Spark Connect's client needs, and what this package and its emulator need.
others=(grpcio-status googleapis-common-protos zstandard setuptools deltalake pyiceberg==0.12.0 click fastavro
  grpcio grpcio-health-checking grpcio-reflection protobuf platformdirs requests 'PyJWT[crypto]'
  trustme orjson)

# Prepares the environment of a version: $python.
prepare_cell() { # VERSION PINS…
  local venv=.venv-spark-$1 wanted
  shift
  wanted="$* ${others[*]} $(cksum <constraints.txt)"
  python=$venv/bin/python
  if [ "$(cat "$venv/.prepared" 2>/dev/null)" != "$wanted" ]; then
    [ -x "$python" ] || "$(find_python)" -m venv "$venv" || return
    grep -vE '^(pyspark|py4j|pandas|pyarrow|numpy)==' constraints.txt >"$venv/constraints.txt"
    install "$venv" --constraint "$venv/constraints.txt" "$@" "${others[@]}" || return
    echo "$wanted" >"$venv/.prepared"
  fi
}

storm() { # KIND FORMAT
  local directory how=()
  directory=$(mktemp -d)
  [ "$1" = classic ] || how=(--connect)
  "$python" -m tests.faults.storm "$directory" --format "$2" "${how[@]}" --changes 200 \
    --records 200 --blows 3 --among driver,jvm,drop && rm -rf "$directory"
}

[ $# -gt 0 ] || set -- 3.5 4.0 4.1 4.2
failed=()
for cell in "$@"; do
  version=${cell%-*}
  known=$(cells "$version") || exit 2
  kinds=${cell#"$version"}
  kinds=${kinds#-}
  if [ -z "$kinds" ]; then
    kinds=classic
    [ "$version" = 3.5 ] || kinds='classic connect'
  fi
  read -ra pins <<<"${known%|*}"
  read -ra formats <<<"${known#*|}"
  if ! prepare_cell "$version" "${pins[@]}"; then
    echo "$version: FAILED: its environment could not be set up" >&2
    failed+=("$cell")
    continue
  fi
  for kind in $kinds; do
    "$python" -m tests.platforms.cell "$kind" "${formats[@]}" --kills "${PLATFORM_KILLS:-10}" || failed+=("$version-$kind")
    for format in "${formats[@]}"; do
      [ "$format" = parquet ] || storm "$kind" "$format" || failed+=("$version-$kind-storm-$format")
    done
  done
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
