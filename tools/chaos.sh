#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random faults on a real control plane whose room is short: clients create, delete, resize and
# migrate servers, alone and in groups, while services are killed, stopped, restarted and cut off,
# as a plan drawn from a seed says. What stands in the databases is looked at all the time.
#
# usage: tools/chaos.sh [--seed N] [--rounds N] [--seconds N] [--every N] [--faults KIND,...]
#                       [--backend sqlalchemy|sqlite|memcached|redis|etcd] [--stock | --retired | --waiting]
#                       [--own-path placement|mirror|backend]
#                       [--short] [--replay] [--plan] [--json FILE] [--file] [--state DIR]
#                       [--nova 31|32|33|34]
#   --stock   the same without the plugin
#   --retired the same without Nova's tables of compute nodes, and with heartbeats stored
#   --waiting requests wait for room for 20 s (scheduler_driver = nodb_queue)
#   --own-path  requests are not decided from memory: candidates = placement, a mirror that
#             nobody keeps, or a back end that is down
#   --short   one round of 40 s: the last seed that found something with this back end
#   --replay  first every seed that found something there before (tests/chaos/regressions.json)
#   --plan    print the plans, and do nothing
#   --file    also keep the rounds in tests/chaos/filed_rounds, and write the table of all of them
#             that doc/source/reference/reliability.rst includes
# The exit status is 0 only if nothing was found. Results go to results/chaos-*.json, or below
# NODB_RESULTS_DIR.
set -euo pipefail
for argument in "$@"; do
    case $argument in
        -h|--help) sed -n '3,24s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
done
# Libraries under nova's tell of their own deprecations.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
NOVA_NODB_MODULE=tests.chaos exec "$(dirname "$0")/stack.sh" "$@"
