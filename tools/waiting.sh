#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Requests that wait for room (scheduler_driver = nodb_queue) on a real control plane: 40 servers
# are asked for where there is room for 24; the others wait, and each gets its room, in order, as
# servers are deleted. Beside it services may be killed, as a plan says that is drawn from a seed.
#
# usage: tools/waiting.sh [--rounds N] [--kills KIND,...] [--seed N] [--seconds N] [--every N]
#                         [--backend sqlalchemy|sqlite|etcd] [--from-api] [--file] [--state DIR]
#   --kills  for example scheduler-kill, conductor-kill or backend-kill; see tools/chaos.sh
#   --file   also write the table that doc/source/reference/reliability.rst includes
# The exit status is 0 only if none was lost, none was built twice, nobody was out of order and no
# host over capacity. Results go to results/waiting-*.json, or below NODB_RESULTS_DIR.
set -euo pipefail
for argument in "$@"; do
    case $argument in
        -h|--help) sed -n '3,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
done
# Libraries under nova's tell of their own deprecations.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
NOVA_NODB_MODULE=tests.waiting exec "$(dirname "$0")/stack.sh" "$@"
