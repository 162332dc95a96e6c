#!/usr/bin/env bash
# Generates generated/sfpubsub_grpc/ from proto/pubsub_api.proto.
#
#   scripts/gen_protos.sh            regenerate in place
#   scripts/gen_protos.sh --prepare  only create the generator's environment
#   scripts/gen_protos.sh --check    exit 1 and print the difference if the committed code is stale
#
# grpcio-tools 1.78.0 generates code for protobuf 6.31.1, which works with protobuf 6.31 to 7.x.
# Newer generators generate code that rejects protobuf 6. The generator is installed in a separate
# environment, so that its pins do not conflict with those of the project.
set -euo pipefail
cd "$(dirname "$0")/.."

tools="${SFPUBSUB_PROTO_ENV:-.venv-proto}"
pins=(grpcio-tools==1.78.0 grpcio==1.78.0 protobuf==6.33.6)
stamp="$tools/.pins"
if [ "$(cat "$stamp" 2>/dev/null)" != "${pins[*]}" ]; then
  python3 -m venv --clear "$tools"
  # shellcheck source=scripts/environment.sh
  . scripts/environment.sh
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
