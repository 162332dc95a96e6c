#!/usr/bin/env bash
# Runs other projects' Python clients, unchanged, against the emulator over TLS: pysfpubsub and
# aiosfpubsub (SOAP sign-in, subscribe, publish), simple-salesforce (SOAP sign-in, an event through
# REST, Tooling API, limits).
#
#   scripts/python_clients.sh [DIRECTORY]     DIRECTORY keeps their environment between runs
#
# Runs the emulator with the Python of $PYTHON, in which sfpubsub[emulator] must be installed. Takes
# a few seconds once the packages are installed. Prints the results as one line of JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
work="$(mktemp -d "${TMPDIR:-/tmp}/python_clients.XXXXXX")"
venv="${1:-$work/venv}"
wanted=tests/emulator/python_clients.txt
emulator=
finish() {
  [ -z "$emulator" ] || kill "$emulator" 2>/dev/null || true
  [ -z "$emulator" ] || wait "$emulator" || true
  rm -rf "$work"
}
trap finish EXIT

if ! cmp -s "$wanted" "$venv/installed"; then
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2
  cp "$wanted" "$venv/installed"
fi

"$python" -m sfpubsub emulator --tls --grpc-port 0 --http-port 0 --data-dir "$work/data" \
  --ready-file "$work/ready" >/dev/null &
emulator=$!
for _ in $(seq 600); do
  [ ! -e "$work/ready" ] || break
  sleep 0.1
done
timeout 120 "$venv/bin/python" tests/emulator/python_clients.py "$work/ready"
