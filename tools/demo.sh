#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration, from nothing: a real Nova with two cells, the plugin switched on by nova.conf,
# 20 servers, and the proof that its schedulers read no database.
#
# usage: tools/demo.sh [--nova N] [--keep] [--down] [--json] [--stock | --retired]
#                      [--idle-seconds N] [--state DIR] [--venv DIR]
#   --nova N the release: 31, 32, 33 or 34 (default)
#   --keep   leave the stack running (tools/stack.sh works on it; --down ends it)
#   --down   end a stack that was kept, and remove its data
#   --json   print the figures as JSON, progress on stderr
#   --stock  the same with Nova as it is, without the plugin
#   --retired  the same once Nova's table compute_nodes is gone from all cells; what idle
#            computes cost their cells' databases is counted before, between and after
set -euo pipefail
for argument in "$@"; do
    case $argument in
        -h|--help) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
done
NOVA_NODB_MODULE=tools.stack.demo exec "$(dirname "$0")/stack.sh" "$@"
