#!/usr/bin/env bash
# Generates generated/sfpubsub_grpc/ from proto/pubsub_api.proto.
#
#   scripts/gen_protos.sh            regenerate in place
#   scripts/gen_protos.sh --prepare  only create the generator's environment
#   scripts/gen_protos.sh --check    exit 1 and print the difference if the committed code is stale
#
# grpcio-tools 1.62.3 is the last whose code asks for no version of protobuf and grpcio: it works with
# protobuf 4.25 to 7.x. Code of newer generators rejects whatever is older than they are. There are
# wheels of it up to Python 3.12. The generator is installed in a separate environment, so that its
# pins do not conflict with those of the project.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh

tools="${SFPUBSUB_PROTO_ENV:-.venv-proto}"
pins=(grpcio-tools==1.62.3 grpcio==1.62.3 protobuf==4.25.8 'setuptools<81')

# Creates the generator's environment with the first Python that has wheels of the generator; if the
# machine has none, uv fetches one.
create() {
  local candidate
  for candidate in python3.11 python3.12 python3 "$(find_python)"; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
      >/dev/null 2>&1; then
      "$candidate" -m venv --clear "$tools"
      return
    fi
  done
  "$(find_uv)" venv --quiet --clear --python 3.12 "$tools"
}

stamp="$tools/.pins"
if [ "$(cat "$stamp" 2>/dev/null)" != "${pins[*]}" ]; then
  create
  install "$tools" "${pins[@]}"
  echo "${pins[*]}" >"$stamp"
fi
[ "${1:-}" != --prepare ] || exit 0

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$tools/bin/python" -m grpc_tools.protoc --proto_path=proto \
  --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/pubsub_api.proto

# The generator imports its sibling as a top-level module; inside a package that import is relative.
sed -i 's/^import pubsub_api_pb2 as/from . import pubsub_api_pb2 as/' "$out/pubsub_api_pb2_grpc.py"
cat >"$out/__init__.py" <<'PY'
"""Generated code of the Pub/Sub API's wire contract; see scripts/gen_protos.sh."""
PY
: >"$out/py.typed"

target=generated/sfpubsub_grpc
if [ "${1:-}" = --check ]; then
  diff -r -x __pycache__ "$out" "$target" || {
    echo "generated code is stale: run scripts/gen_protos.sh and commit $target" >&2
    exit 1
  }
else
  mkdir -p "$target"
  cp "$out"/* "$target"/
fi
