#!/usr/bin/env bash
# Makes .venv with sfpubsub, the emulator, Spark, Delta and, where the machine has none, a Java.
# Nothing outside of this directory changes. Then: . .venv/bin/activate
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all
prepare_java
echo "ready: sfpubsub $(python -c 'import sfpubsub; print(sfpubsub.__version__)') is in .venv"
