#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# More requests than there is room for, through several schedulers at once, on a real control plane:
# 40 requests for 24 slots, and 12 requests for an anti-affinity group on six hosts.
#
# usage: tools/capacity.sh [--schedulers N] [--runs N] [--race slots|group] [--stock]
#                          [--failing-builds] [--json] [--file] [--state DIR] [--venv DIR]
#   --file  also write the table that doc/source/reference/reliability.rst includes
# Results go to results/capacity-*.json, or below NODB_RESULTS_DIR.
set -euo pipefail
for argument in "$@"; do
    case $argument in
        -h|--help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
done
# Libraries under nova's tell of their own deprecations.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
NOVA_NODB_MODULE=tests.capacity exec "$(dirname "$0")/stack.sh" "$@"
