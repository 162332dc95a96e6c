#!/usr/bin/env bash
# Sets up the environment, then runs the main job on the emulator: publish, ingest with PySpark,
# kill -9, resume, count. Arguments are passed to `sfpubsub demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare emulator,spark
prepare_java
exec sfpubsub demo "$@"
