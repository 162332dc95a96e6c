#!/usr/bin/env bash
# Replays the tests of what the emulator and an org must do alike (tests/parity) against a real org,
# and says where the emulator differs: each failure is a difference. Arguments go to pytest.
#
# Needs, and does nothing without:
#
#   PARITY_ENDPOINT       api.pubsub.salesforce.com:7443, or the one of your region
#   PARITY_ACCESS_TOKEN   a token of the org: sf org display --json
#   PARITY_INSTANCE_URL   https://….my.salesforce.com
#   PARITY_TENANT_ID      id of the org, 00D…
#   PARITY_USER_ID        id of the token's user, 005…
#   PARITY_TOPIC          a platform event of the org, /event/…__e, for nothing else but this: some ten
#                         events are published to it, which counts for the org's allocations
#
# Take a sandbox or a scratch org. Of everything else it only reads. It has not been run by this
# project, which has no org.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for name in ENDPOINT ACCESS_TOKEN INSTANCE_URL TENANT_ID TOPIC USER_ID; do
  variable=PARITY_$name
  [ -n "${!variable:-}" ] || missing+=("$variable")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "nothing was done: set ${missing[*]}; $0 says what they are" >&2
  exit 2
fi
case $PARITY_TOPIC in
  /event/*__e) ;;
  *)
    echo "nothing was done: PARITY_TOPIC is a platform event, /event/…__e" >&2
    exit 2
    ;;
esac

# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all,dev
exec python -m pytest tests/parity -p no:cacheprovider "$@"
