#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tempest's compute API tests, or with --regex '^nova_nodb_scheduler' our scenarios, against the running stack (tools/stack.sh up, or tools/demo.sh --keep).
#
# usage: tools/tempest.sh [--state DIR] [--venv DIR] COMMAND
#   list [REGEX]                                          names of the tests
#   run TAG [--regex R] [--load-list FILE] [--concurrency N] [--none-may-fail]
#                                                         results in STATE/tempest/results/TAG
#   compare TAG TAG                                       tests whose result differs; status 1 if any
set -euo pipefail
NOVA_NODB_MODULE=tools.stack.tempest exec "$(dirname "$0")/stack.sh" "$@"
