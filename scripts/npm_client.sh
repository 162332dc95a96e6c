#!/usr/bin/env bash
# Runs the npm package salesforce-pubsub-api-client, unchanged, against the emulator over TLS: all
# kinds of sign-in, publishing, subscribing, and a managed subscription that it looks up first.
#
#   scripts/npm_client.sh [DIRECTORY]     DIRECTORY keeps the package between runs
#
# Requires node 20 or newer with npm; the first run downloads the package and its dependencies. Uses
# the Python of $PYTHON, in which sfpubsub[emulator] must be installed. Takes a few seconds. The
# last two lines are the results as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

version=5.5.2 # what was seen to work
avro=1.12.1 # the next one needs a package that it does not name
python="${PYTHON:-python3}"
program="$PWD/tests/emulator/npm_client.mjs"
work="$(mktemp -d "${TMPDIR:-/tmp}/npm_client.XXXXXX")"
package="${1:-$work/package}"
emulator=
finish() {
  [ -z "$emulator" ] || kill "$emulator" 2>/dev/null || true
  [ -z "$emulator" ] || wait "$emulator" || true
  rm -rf "$work"
}
trap finish EXIT

mkdir -p "$package"
if [ "$(cat "$package/installed" 2>/dev/null)" != "$version $avro" ]; then
  (cd "$package" && npm install --silent --no-audit --no-fund --no-save --prefix . \
    "salesforce-pubsub-api-client@$version" "avro-js@$avro" >&2)
  echo "$version $avro" >"$package/installed"
fi

mkfifo "$work/ready"
"$python" -m sfpubsub emulator --tls --grpc-port 0 --http-port 0 --data-dir "$work/data" \
  >"$work/ready" &
emulator=$!
read -r -t 60 ready <"$work/ready"

cd "$package"
# Sign-in and the Tooling API can trust the emulator's CA; the package has no such option for gRPC.
export NODE_EXTRA_CA_CERTS="$work/data/ca.pem"
timeout 120 node "$program" "$ready" first
timeout 120 node "$program" "$ready" second
