#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Faults on a real control plane: the running stack, or a new one with two conductors a cell.
#
# usage: tools/faults.sh [--only N,...] [--short] [--retired] [--list] [--json] [--file] [--state DIR] [--venv DIR]
#   --short    a few scenarios only
#   --retired  without Nova's tables of compute nodes: what is of both, and of that
#   --file     also write the table that doc/source/reference/reliability.rst includes
# Results go to results/faults.json, or below NODB_RESULTS_DIR.
set -euo pipefail
# Libraries under nova's tell of their own deprecations.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
NOVA_NODB_MODULE=tests.faults exec "$(dirname "$0")/stack.sh" "$@"
