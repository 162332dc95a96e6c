#!/usr/bin/env bash
# Builds the compiled decoder of native/ and installs it into .venv. Needs cargo (Rust 1.88 or newer)
# and takes some 30 s of a processor the first time, some seconds after a change, none without one.
#
#   scripts/native.sh            build it and install it
#   scripts/native.sh --check    also look at the Rust code: rustfmt and clippy
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all,dev
prepare_native
if [ "${1:-}" = --check ]; then
  (
    cd native
    cargo fmt --check
    cargo clippy --quiet --locked -- -D warnings
  )
fi
