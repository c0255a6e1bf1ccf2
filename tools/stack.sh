#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A Nova control plane on loopback: makes its environment if needed, then runs tools.stack.
#
# usage: tools/stack.sh [--state DIR] [--nova N] [--venv DIR] COMMAND ...       (tools/stack.sh -h)
#   --nova N         the release: 31, 32, 33 or 34 (default: of the stack in the directory, or 34)
#   NOVA_NODB_STATE  state directory, as --state
#   NOVA_NODB_VENV   an existing virtual environment to use as it is, as --venv
#   PYTHON           the interpreter to make an environment with (default: python3)
#   NOVA_NODB_MODULE Python module to run (default: tools.stack)
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
venv=${NOVA_NODB_VENV:-}
release=()
arguments=()
while (( $# )); do
    case $1 in
        --state) export NOVA_NODB_STATE=$2; shift 2 ;;
        --nova) release=(--nova "$2"); shift 2 ;;
        --venv) venv=$2; shift 2 ;;
        *) arguments+=("$1"); shift ;;
    esac
done
export NOVA_NODB_STATE=${NOVA_NODB_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/nova-nodb-demo}

cd "$checkout"
if [[ -z $venv ]]; then
    venv=$("${PYTHON:-python3}" -m tools.stack.environment ${release[@]+"${release[@]}"} \
        "$NOVA_NODB_STATE" | tail -n 1)
fi
exec "$venv/bin/python" -m "${NOVA_NODB_MODULE:-tools.stack}" ${arguments[@]+"${arguments[@]}"}
