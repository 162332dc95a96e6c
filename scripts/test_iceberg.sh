#!/usr/bin/env bash
# Runs the tests of Iceberg tables in a separate environment, because Iceberg has jars for PySpark
# 4.1 but not for 4.2. Arguments are passed to pytest and replace the default selection of tests;
# --smoke selects the few tests that scripts/test.sh runs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare_iceberg

if [ "$*" = --smoke ]; then
  set -- tests/spark/raw/test_iceberg.py -q -k "table_of_a_catalog or streaming_source"
elif [ $# -eq 0 ]; then
  set -- tests/spark/raw/test_logged.py tests/spark/raw/test_iceberg.py tests/spark/test_layouts.py \
    tests/spark/raw/test_catalogs.py tests/spark/formats \
    tests/spark/runtime/test_runtimes.py tests/spark/ingest/test_stopped_writer.py \
    tests/spark/tables/test_targets.py tests/spark/tables/test_engine.py tests/spark/records/test_current.py \
    tests/spark/mirror/test_survival.py
fi
# PySpark 4.1 leaves sockets to the garbage collector; 4.2 does not.
exec "$iceberg_python" -m pytest -p no:cacheprovider -W ignore::ResourceWarning \
  -W ignore::pytest.PytestUnraisableExceptionWarning "$@"
