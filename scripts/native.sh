#!/usr/bin/env bash
# Builds the compiled decoder in native/ and installs it into .venv. Requires cargo, and takes about
# 20 s of CPU time the first time. The wheel is kept in .venv/native/wheels for other environments.
#
#   scripts/native.sh              build and install the decoder
#   scripts/native.sh --test       also compare it with the Python code, and subscribe, ingest and
#                                  mirror with it, like scripts/test.sh
#   scripts/native.sh --slow       also compare a million damaged payloads, run clippy on the code,
#                                  and run the whole test suite with the decoder and without it
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
prepare_native || exit 0
unset SFPUBSUB_NATIVE

if [ $# -gt 0 ]; then
  cargo fmt --check --manifest-path native/Cargo.toml
  python -m pytest -q tests/avro/test_native.py tests/avro/test_arrow.py \
    tests/avro/test_projection.py tests/spark/raw/test_decoded.py tests/transports/test_wire.py \
    tests/cli/test_render.py tests/spark/test_native.py
fi
if [ "${1:-}" = --slow ]; then
  cargo clippy --quiet --locked --manifest-path native/Cargo.toml -- -D warnings
  python -m tests.avro.hostile
  for way in 1 0; do
    SFPUBSUB_NATIVE=$way python -m pytest -m "not slow and not foreign" \
      --numprocesses $(($(nproc) + 1)) --dist loadgroup
  done
fi
