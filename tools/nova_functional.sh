#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run Nova's own tests with the plugin (or --stock) and compare with stock Nova's record.
#
# The wheel of Nova ships its tests; its functional ones need no service: SQLite and
# Placement's functional fixtures in the test's process. One process a worker.
set -euo pipefail

usage() {
    cat <<EOF
usage: $0 --nova 31|32|33|34 (--selection NAME | --file LIST) [options]

With NOVA_SUITE_COMPUTE_NODES=store or retired records answer for compute nodes, with the plugin
and with --stock; with NOVA_SUITE_HEARTBEATS=both or store heartbeats are stored.
With NOVA_SUITE_DRIVER=nodb_queue the plugin's driver is the one that lets requests wait, and with
NOVA_SUITE_WAIT=SECONDS all servers may wait for so long.

  --nova N          the release, for the expected lists and the virtual environment
  --selection NAME  a list in tests/nova_suite/selections: $(cd "$suite/selections" && ls | sed 's/\.txt$//' | tr '\n' ' ')
  --file LIST       a list of modules, classes or tests, one a line
  --stock           without the plugin
  --reporter        with Nova's own scheduler, and the reporters' word compared with
                    Nova's tables at each of its decisions
  --record          file the outcome as the expected one. Without --stock what the
                    plugin fails, or is excluded from, is run on stock and filed by
                    that; what passes with the plugin counts as what stock passes
  --threading MODE  native or eventlet; default: as Nova's services run in that
                    release (native from 34 on)
  --venv PATH       virtual environment; default: \$NODB_VENVS/nova<N>, made if missing
                    (NODB_VENVS: .tox in the tree)
  --patience N      poll a server's state N times as often before a test gives up, for a
                    machine with other work on it; default 1
  --concurrency N   test processes; default 1
  --results DIR     where the lists and logs go; default: a new directory below results/nova_suite
EOF
}

root=$(cd "$(dirname "$0")/.." && pwd)
suite=$root/tests/nova_suite
nova='' list='' mode=scheduler record=no threading='' venv='' concurrency=1 results=''
while [ $# -gt 0 ]; do
    case $1 in
        --nova) nova=$2; shift ;;
        --selection) list=$suite/selections/$2.txt; shift ;;
        --file) list=$(realpath "$2"); shift ;;
        --stock) mode=stock ;;
        --reporter) mode=reporter ;;
        --record) record=yes ;;
        --threading) threading=$2; shift ;;
        --venv) venv=$2; shift ;;
        --patience) export NOVA_SUITE_PATIENCE=$2; shift ;;
        --concurrency) concurrency=$2; shift ;;
        --results) results=$2; shift ;;
        -h|--help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
case $nova in 31|32|33|34) ;; *) usage >&2; exit 2 ;; esac
[ -r "$list" ] || { echo "no such selection: '$list'" >&2; usage >&2; exit 2; }
[ "$record" = no ] || [ "$mode" != reporter ] || { echo "--record is not for --reporter" >&2; exit 2; }
if [ -z "$threading" ]; then
    threading=eventlet
    [ "$nova" -lt 34 ] || threading=native
fi
case $threading in
    native) export OS_NOVA_DISABLE_EVENTLET_PATCHING=true ;;
    eventlet) export OS_NOVA_DISABLE_EVENTLET_PATCHING=false ;;
    *) usage >&2; exit 2 ;;
esac

venv=${venv:-${NODB_VENVS:-$root/.tox}/nova$nova}
if [ ! -x "$venv/bin/stestr" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet -r "$suite/requirements/nova$nova.txt" \
        -r "$root/requirements.txt"
fi
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
installed=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("nova"))')
[ "${installed%%.*}" = "$nova" ] || { echo "$venv holds Nova $installed, not $nova" >&2; exit 2; }
# Nova's state_path is the directory that holds the package; the API's paste file is
# looked for below it.
[ -e "$site/etc" ] || ln -s "$venv/etc" "$site/etc"
if [ "$mode" != stock ]; then
    export NOVA_SUITE_PLUGIN=$mode
    "$venv/bin/python" -c 'import importlib.metadata as m; m.version("nova-nodb-scheduler")' \
        2>/dev/null || "$venv/bin/pip" install --quiet --no-deps -e "$root"
fi

results=${results:-$root/results/nova_suite/nova$nova-$(basename "$list" .txt)-$mode-$(date +%Y%m%dT%H%M%S)}
mkdir -p "$results"
results=$(cd "$results" && pwd)
rm -f "$results"/feed.*.jsonl "$results/impatient.txt"
export NOVA_SUITE_SELECTION=$list NOVA_SUITE_RESULTS=$results
export OS_TEST_TIMEOUT=${OS_TEST_TIMEOUT:-300}
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
cd "$root"
stestr=("$venv/bin/stestr" --repo-url "$results" --test-path tests/nova_suite --top-dir .)
PATH=$venv/bin:$PATH
# What calls this may have put there how long the tests take.
[ -d "$results/.stestr" ] || "${stestr[@]}" init
# To list tests a process imports all of Nova. Where each line names a test, this is the list.
known=()
sed 's/#.*//; s/[[:space:]]//g; /^$/d' "$list" > "$results/selected.txt"
if ! grep -qvE '\.[A-Z][A-Za-z0-9_]*\.test_[A-Za-z0-9_]+$' "$results/selected.txt"; then
    known=(--load-list "$results/selected.txt")
fi
started=$SECONDS
"${stestr[@]}" run --concurrency "$concurrency" --suppress-attachments "${known[@]}" \
    > "$results/stestr.log" 2>&1 || true
"${stestr[@]}" last --subunit > "$results/stream.subunit" 2>> "$results/stestr.log" || true
echo "Nova $installed, $mode, $threading threads: $(( SECONDS - started )) s, lists in $results"
tool=("$venv/bin/python" -m tests.nova_suite.results --results "$results")
"${tool[@]}" file < "$results/stream.subunit"
expected=$suite/expected/nova$nova
# Nova's tests poll for five seconds, which a machine with other work on it exceeds. A few that gave
# up, and say so (tests/nova_suite/given_up.py), are run once more, alone, and named if they pass.
"${tool[@]}" choose --expected "$expected" --selection "$list"
if [ -s "$results/again.txt" ]; then
    mkdir -p "$results/again"
    "${stestr[@]}" run --concurrency 1 --suppress-attachments --load-list "$results/again.txt" \
        > "$results/again/stestr.log" 2>&1 || true
    "${stestr[@]}" last --subunit > "$results/again/stream.subunit" \
        2>> "$results/again/stestr.log" || true
    "$venv/bin/python" -m tests.nova_suite.results --results "$results/again" file \
        < "$results/again/stream.subunit"
    "${tool[@]}" settle
fi
status=0
compare=(compare --expected "$expected" --selection "$list"
    --compute-nodes "${NOVA_SUITE_COMPUTE_NODES:-mirror}"
    --driver "${NOVA_SUITE_DRIVER:-nodb_scheduler}" ${NOVA_SUITE_WAIT:+--waits})
if [ "$mode" != stock ]; then
    compare+=(--plugin)
    "$venv/bin/python" -m tests.nova_suite.feed_report "$results" || status=1
fi
if [ "$record" = yes ]; then
    own=()
    if [ "$mode" != stock ]; then
        "${tool[@]}" unsettled --selection "$list" > "$results/unsettled.txt"
        if [ -s "$results/unsettled.txt" ]; then
            # It differs from what is expected so far: that is why it is recorded.
            env -u NOVA_SUITE_PLUGIN -u NOVA_SUITE_COMPUTE_NODES "$root/tools/nova_functional.sh" --nova "$nova" --stock \
                --file "$results/unsettled.txt" --threading "$threading" --venv "$venv" \
                --concurrency "$concurrency" --results "$results/stock" || true
        fi
        own=(--stock "$results/stock")
    fi
    "${tool[@]}" record --expected "$expected" --selection "$list" "${own[@]}"
fi
"${tool[@]}" "${compare[@]}" || status=1
exit $status
