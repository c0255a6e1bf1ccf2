#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tempest's compute API tests against the running stack (tools/stack.sh up, or tools/demo.sh --keep).
#
# usage: tools/tempest.sh [--state DIR] [--venv DIR] COMMAND
#   list [REGEX]                                          names of the tests
#   run TAG [--regex R] [--load-list FILE] [--concurrency N]   results in STATE/tempest/results/TAG
#   compare TAG TAG                                       tests whose result differs; status 1 if any
set -euo pipefail
NOVA_NODB_MODULE=tools.stack.tempest exec "$(dirname "$0")/stack.sh" "$@"
