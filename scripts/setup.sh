#!/usr/bin/env bash
# Creates .venv with sfpubsub, the emulator, Spark, Delta and, if the machine has none, Java; and
# with the compiled decoder, if the machine has a new enough cargo that builds it within two minutes.
# Changes nothing outside of this directory. Then run: . .venv/bin/activate
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all
prepare_java
prepare_native 120 || true # optional: it has said why
echo "ready: sfpubsub $(python -c 'import sfpubsub; print(sfpubsub.__version__)') is in .venv"
