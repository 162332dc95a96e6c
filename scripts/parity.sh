#!/usr/bin/env bash
# Runs the tests of behaviour that the emulator and an org must share (tests/parity) against a real
# org. Each failure is a difference between the two.
#
#   scripts/parity.sh [--report FILE] [PYTEST_OPTION]...
#
# With --report, asks before it begins, and writes one file that can be sent to this project: the
# outcome of each test, and each unconfirmed fact of docs/reference/emulator-evidence.md with what
# was seen, or "not tried". Ids, names, addresses and tokens are taken out of it.
#
# Requires these environment variables:
#
#   PARITY_ENDPOINT       api.pubsub.salesforce.com:7443, or the one of your region
#   PARITY_ACCESS_TOKEN   a token of the org: sf org display --json
#   PARITY_INSTANCE_URL   https://….my.salesforce.com
#   PARITY_TENANT_ID      id of the org, 00D…
#   PARITY_USER_ID        id of the token's user, 005…
#   PARITY_TOPIC          a platform event of the org, /event/…__e, with no other use: some fifty
#                         events are published to it, which count against the org's allocations
#   PARITY_MAKE           optional: `yes` also runs the tests that make a managed subscription,
#                         accounts named Parity, jobs of the Bulk API and a channel, and remove them;
#                         with --report, the script asks
#
# Use a sandbox or a scratch org. Takes some five minutes, and up to half an hour with PARITY_MAKE.
# This project has no org, so it has not run this script.
set -euo pipefail

report=()
if [ "${1:-}" = --report ]; then
  file="$(realpath "${2:?nothing was done: --report requires a file}")"
  report=(-p tests.parity.report --parity-report "$file")
  shift 2
fi
cd "$(dirname "$0")/.."

missing=()
for name in ENDPOINT ACCESS_TOKEN INSTANCE_URL TENANT_ID TOPIC USER_ID; do
  variable=PARITY_$name
  [ -n "${!variable:-}" ] || missing+=("$variable")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "nothing was done: set ${missing[*]}, which $0 explains" >&2
  exit 2
fi
case $PARITY_TOPIC in
  /event/*__e) ;;
  *)
    echo "nothing was done: PARITY_TOPIC must be a platform event, /event/…__e" >&2
    exit 2
    ;;
esac

if [ ${#report[@]} -gt 0 ]; then
  read -r -p "publish some fifty events to $PARITY_TOPIC of $PARITY_INSTANCE_URL? [y/N] " answer || true
  if [ "${answer:-}" != y ]; then
    echo "nothing was done" >&2
    exit 2
  fi
  question="also make a managed subscription, accounts, bulk jobs and a channel, and remove them? [y/N] "
  read -r -p "$question" answer || true
  export PARITY_MAKE=no
  [ "${answer:-}" != y ] || PARITY_MAKE=yes
fi

# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
status=0
python -m pytest tests/parity/test_{pubsub,rest,unconfirmed,streaming,made}.py -p no:cacheprovider -rs \
  ${report[@]+"${report[@]}"} "$@" || status=$?
[ ${#report[@]} -eq 0 ] || echo "the report is in $file; read it before you send it"
exit $status
