#!/usr/bin/env bash
# Lets programs of others judge the emulator and our Streaming API client, unchanged: the official
# CLI `sf` and its library, jsforce, simple-salesforce, node-sf-bulk2, tap-salesforce, Airbyte's
# source, CometD for Node.js and Java, EMP-Connector, faye, aiosfstream, aiosfstream-ng, Camel,
# grpcurl, tonic, pysfpubsub, aiosfpubsub and the npm package salesforce-pubsub-api-client.
#
#   scripts/judges.sh [PYTEST_OPTION]...     for example: scripts/judges.sh -k "cli or jsforce"
#
# EMP-Connector is on no registry: set EMP_CONNECTOR to a checkout of forcedotcom/EMP-Connector.
#
# Uses the Python of $PYTHON, in which sfpubsub[all] and pytest must be installed. Each judge is
# fetched once, at a pinned version, into an environment of its own below $XDG_CACHE_HOME, or
# ~/.cache (1 GB for all); those whose tools are missing (node, java with mvn, go, cargo, Python 3.8
# or 3.9) are skipped, and named. At the end, each judge is printed with its version, what it does
# and the outcome: the table of docs/reference/emulator-evidence.md. Takes about ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

"${PYTHON:-python3}" -m pytest -m "foreign or slow" -rs -v -p tests.emulator.judges \
  tests/streaming/test_foreign.py \
  tests/emulator/test_foreign_clients.py \
  tests/emulator/test_foreign_python.py \
  tests/emulator/test_npm_client.py \
  tests/emulator/test_official_cli.py \
  tests/emulator/records/test_foreign_records.py "$@"
