#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# 500 servers asked for at once, where there is room for all, through four schedulers of a real
# control plane: by stock Nova, then by scheduler_driver = nodb_queue, which takes the best host,
# the better of two that are drawn, or one that is drawn.
#
# usage: tools/bursts.sh [--servers N] [--schedulers N] [--computes N] [--ways best,two,random]
#                        [--no-stock] [--json] [--state DIR] [--venv DIR]
# The exit status is 0 only if with the plugin each server stood, was built once, and no host had
# more than it may.
set -euo pipefail
for argument in "$@"; do
    case $argument in
        -h|--help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
done
# Libraries under nova's tell of their own deprecations.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
NOVA_NODB_MODULE=tests.capacity.bursts exec "$(dirname "$0")/stack.sh" "$@"
