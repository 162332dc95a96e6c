#!/usr/bin/env bash
# Simulates the client programs with fresh seeds, on all cores, and prints the scorecard. A promise
# that is broken, and a rare state that is not reached often enough, make the exit code 1; the first
# failing run of each kind is shrunk, and printed as a story. docs/explanation/simulation.md
#
#   scripts/simulate.sh [MINUTES]     default: 60
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
prepare all dev
export SFPUBSUB_NATIVE=0
exec python -m tests.simulation --minutes "${1:-60}"
