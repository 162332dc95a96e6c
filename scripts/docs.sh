#!/usr/bin/env bash
# Sets everything up, then makes the book of docs/ as HTML. A warning is an error: a link or an
# anchor that leads nowhere, a page in no table of contents, a docstring that cannot be parsed.
#
#   scripts/docs.sh [DIRECTORY]      build/docs by default; open its index.html
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all,dev
# Everything anew: parts of pages come from the code, whose changes Sphinx does not look at.
python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet \
  --builder html docs "${1:-build/docs}"
