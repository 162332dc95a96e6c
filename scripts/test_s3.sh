#!/usr/bin/env bash
# Runs the tests of tables in an object store with the S3 API: Delta, and Iceberg in a separate
# environment, each with a stream that is killed many times, and a mirror. Downloads 700 MB of jars
# for each format once. Arguments are passed to pytest and replace the default selection of tests.
#
#   scripts/test_s3.sh                     20 kills each; OBJECT_STORE_KILLS sets another number
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
prepare_iceberg
# The object store server, which only these tests need.
server=('moto[s3]==5.2.5' 'flask>=3' 'flask-cors>=6')
install "${SFPUBSUB_VENV:-.venv}" "${server[@]}"
install "${SFPUBSUB_ICEBERG_VENV:-.venv-iceberg}" "${server[@]}"
export TEST_OBJECT_STORE=1

if [ $# -eq 0 ]; then
  set -- tests/spark/raw/test_object_store.py \
    tests/spark/mirror/test_job.py::test_mirror_works_in_a_catalog_and_in_an_object_store
fi
python -m pytest -s "$@"
exec "$iceberg_python" -m pytest -s -p no:cacheprovider -W ignore::ResourceWarning \
  -W ignore::pytest.PytestUnraisableExceptionWarning "$@"
