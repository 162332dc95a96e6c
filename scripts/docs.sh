#!/usr/bin/env bash
# Sets up the environment, then builds the documentation in docs/ as HTML. Warnings are errors: a
# broken link or anchor, a page that is in no table of contents, or a docstring that cannot be
# parsed.
#
#   scripts/docs.sh [DIRECTORY]      default: build/docs; open its index.html
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
# Rebuild everything, because Sphinx does not detect changes of the code that pages are generated
# from.
python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet \
  --builder html docs "${1:-build/docs}"
