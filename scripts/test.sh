#!/usr/bin/env bash
# Sets up the environment, then runs all checks and tests. With arguments, runs only pytest with
# them: scripts/test.sh tests/protocol -k window
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
began=$SECONDS
prepare all dev

# Container images often disable bytecode files. Then each of the hundred Python processes that the
# tests start compiles everything it imports, which would take most of its time.
export PYTHONDONTWRITEBYTECODE=

if [ $# -gt 0 ]; then
  exec python -m pytest "$@"
fi

prepare_iceberg
scripts/gen_protos.sh --prepare
printf '== set-up took %d s\n' $((SECONDS - began)) >&2
began=$SECONDS

# The tests run with the Python code, which every installation has. A separate check compares the
# compiled decoder with it; scripts/native.sh --slow runs all tests with both.
export SFPUBSUB_NATIVE=0

lint() { ruff check . && ruff format --check .; }
types() { mypy; }
generated() { scripts/gen_protos.sh --check; }
# Modules that make decisions are tested alone: their tests must cover every branch of them.
covered() { # INCLUDE TESTS…
  local include=$1
  shift
  export COVERAGE_FILE=$logs/coverage.of.$BASHPID
  python -m coverage run --source=sfpubsub -m pytest -q -m "not slow" "$@" &&
    python -m coverage combine --quiet &&
    python -m coverage report --fail-under=100 --include="$include"
}
core() { covered '*/protocol/*' tests/protocol; }
consumer() {
  covered '*/client/consumer.py,*/client/dispatch.py' \
    tests/client/test_consumer.py tests/client/test_dispatch.py
}
streaming() {
  local names=bayeux,failures,pending,progress,protocol,received,states,subscriptions
  covered "$(printf '*/streaming/%s.py,' ${names//,/ })" \
    tests/streaming/test_{bayeux,lanes,pending,protocol}.py
}
iceberg() { scripts/test_iceberg.sh --smoke; }
connect() { python -m tests.platforms.cell connect delta --raw-only --kills 0; } # Spark Connect
docs() { scripts/docs.sh; }
native() { scripts/native.sh --test; }
benchmarks() { python -m benchmarks --short; } # shows that it works, and reports
java() { python -m tests.java; } # for the tests below, whose Java starts sooner by it
# The tests that run below. Collecting them first shows errors early, and compiles the files once;
# otherwise each worker would compile them at the same time.
tests=(-m "not slow and not foreign" --ignore=tests/protocol)
collect() {
  local said
  said=$(python -m pytest -q --collect-only "${tests[@]}") || { echo "$said" && return 1; }
  tail -n 1 <<<"$said"
}

# Run the checks in parallel; the output of each is shown when it has ended, in this order.
checks=(java collect lint types docs generated core consumer streaming iceberg connect benchmarks native)
logs=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null; rm -rf "$logs"' EXIT
declare -A pids
for check in "${checks[@]}"; do
  "$check" >"$logs/$check" 2>&1 </dev/null &
  pids[$check]=$!
done
failed=()
for check in "${checks[@]}"; do
  wait "${pids[$check]}" || failed+=("$check")
  printf '\n== %s\n' "$check" >&2
  cat "$logs/$check"
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
printf '\n== checks took %d s\n' $((SECONDS - began)) >&2

# One worker more than cores, because tests often wait for Java, child processes or timers.
# The tests that share a Spark session stay together (tests/spark/conftest.py).
python -m pytest "${tests[@]}" --numprocesses $(($(nproc) + 1)) --dist loadgroup
