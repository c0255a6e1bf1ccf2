#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Stock Nova and the plugin on the same made clouds, measured in turns; and the pipeline alone.
#
# usage: tools/bench.sh [--venv DIR] [--hosts N,N] [--limit L,L] [--core | --fit] [OPTIONS]
#   -h, --help             this, and all options once a run has made the virtual environment
#   NOVA_NODB_VENV         an existing virtual environment to use as it is, as --venv
#   NOVA_NODB_BENCH_STATE  where data and results are kept between runs, as --state
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
venv=${NOVA_NODB_VENV:-}
state=${NOVA_NODB_BENCH_STATE:-${XDG_CACHE_HOME:-$HOME/.cache}/nova-nodb-scheduler/bench}
arguments=()
asks_help=
while (( $# )); do
    case $1 in
        -h|--help) asks_help=yes; shift ;;
        --venv) venv=$2; shift 2 ;;
        --state) state=$2; shift 2 ;;
        *) arguments+=("$1"); shift ;;
    esac
done

cd "$checkout"
if [[ -n $asks_help ]]; then
    sed -n '3,8s/^# \{0,1\}//p' "$0"
    # Help is not worth minutes of installing.
    python=${venv:-$state/venv}/bin/python
    [[ ! -x $python ]] || { echo; exec "$python" -W ignore -m tools.bench --help; }
    exit 0
fi
if [[ -z $venv ]]; then
    venv=$("${PYTHON:-python3}" -m tools.stack.environment "$state" bench | tail -n 1)
fi
exec "$venv/bin/python" -W ignore -m tools.bench --state "$state" ${arguments[@]+"${arguments[@]}"}
