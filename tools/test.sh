#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Run the project's checks and tests, on a machine that has nothing yet.
#
#   tools/test.sh                 everything a change must pass (about 30 minutes, 2 cores)
#   tools/test.sh --fast          lint and unit tests
#   tools/test.sh --all           also all of Nova's selection, Nova 31-33, faults, races, chaos,
#                                 Tempest
#   tools/test.sh --faults        every fault on every engine, into the documents' table
#   tools/test.sh --only STAGE    one stage; may be repeated, or STAGE,STAGE
#   tools/test.sh --list          the stages
#   tools/test.sh --here          use the Python environment that is active, make none
#
# Environment:
#   NODB_STATE_DIR      virtual environments and results
#                       (default ${XDG_CACHE_HOME:-~/.cache}/nova-nodb-scheduler)
#   NODB_RESULTS_DIR    where this run's logs go (default: below the state directory)
#   NODB_TEST_WORKERS   test processes at a time (default: one per core)
#   NODB_BASE_PYTHON    the interpreter to build the environment with (default: python3
#                       if it is 3.11 or newer, else the first of 3.13, 3.12, 3.11)
#   NODB_NOVA           the Nova to test with (default 34.0.0)
#   NODB_REQUIRE_SERVERS  empty: skip the tests of a server that is not installed,
#                       which otherwise fail
#   NODB_STRICT         set: no test is tried again, whatever it failed by
#
# A test that asserts a state is never tried again. One that ran out of patience (and says so
# by its type, nova_nodb_scheduler.testing.patience) is, alone, in the stages with servers; if
# it passes three times it counts as passed, and is named and counted before the last line.
# The last line is `N passed, N failed, N skipped`: tests, and checks (each linter and
# each document is one). The exit status is 0 only if something ran and nothing failed.

set -u -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT" || exit 2

STATE_DIR=${NODB_STATE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/nova-nodb-scheduler}
NOVA_VERSION=${NODB_NOVA:-34.0.0}
RESULTS_KEPT=10
# Tests that freeze, kill and cut off real servers now and then run out of patience on a busy
# machine. So few of a stage are tried this often again, alone, and are named; if any test of
# the stage failed by anything else, none is.
AGAIN_STAGES='^(conformance|galera|functional|alerts|simulator)$'
AGAIN_AT_MOST=3
AGAIN_TIMES=3
export NODB_REQUIRE_SERVERS=${NODB_REQUIRE_SERVERS-1}

# when|name|limit in seconds|what it does. `when`: fast, ci or all.
STAGES="
fast|lint|600|ruff, hacking, layers, types, shell, documentation sources
fast|unit|900|tests/unit: unit and property tests, no server
ci|conformance|1200|tests/functional/synchronizer: every driver against its real server
ci|functional|1200|the rest of tests/functional: Nova in process, real back ends
ci|alerts|900|tests/functional/monitoring: faults fire alerts in a real Prometheus; the board
ci|simulator|900|tests/functional/simulator: whole simulations, in processes of their own
ci|differential|900|tests/differential: decisions over made clouds against Nova and Placement
ci|nova|1500|the named selection of Nova's own functional tests, with the plugin
ci|engine_faults|900|tests/engine_faults: a short selection of faults of engines and schedulers
all|chaos|900|a round of random faults on a real control plane: the last seed that found something
ci|docs|600|documents and release notes with -W, the sample of the options
ci|packaging|600|build the wheel, install it alone, load its entry points
all|galera|3600|the rest of the conformance suite and the faults on a Galera cluster of two nodes
all|nova_all|10800|all of Nova's selection, with the plugin
all|nova_whole|86400|Nova's functional tests whole, but for samples, with the plugin
all|nova_endings|3600|each way in which a claim ends, by Nova's own tests with the plugin
all|nova31|3600|smoke selection of Nova 31
all|nova32|3600|smoke selection of Nova 32
all|nova33|3600|smoke selection of Nova 33
all|faults|5400|faults on a real control plane
all|engine_faults_all|10800|every fault on every engine, a kill and a freeze at each step
all|capacity|3600|schedulers race for little room on a real control plane
all|chaos_all|21600|random faults on each back end: every seed that found something, and three more
all|tempest|7200|tempest.api.compute against a real control plane
"

usage() {
    sed -n '5,31s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

stage_field() {
    local stage=$1 field=$2
    echo "$STAGES" | awk -F'|' -v s="$stage" -v f="$field" '$2 == s { print $f }'
}

list_stages() {
    echo "$STAGES" | awk -F'|' 'NF == 4 { printf "%-17s %-5s %s\n", $2, $1, $4 }'
}

# --- what to run ------------------------------------------------------------

SELECTED=""
HERE=""

select_default() {
    local levels=$1
    echo "$STAGES" | awk -F'|' -v l="$levels" 'NF == 4 && index(l, $1) { print $2 }'
}

parse_arguments() {
    local levels="fast ci" only="" stage
    while [[ $# -gt 0 ]]; do
        case $1 in
            --fast) levels="fast" ;;
            --all) levels="fast ci all" ;;
            --faults) only="$only engine_faults_all" ;;
            --only)
                [[ $# -ge 2 ]] || { echo "--only needs a stage; see --list" >&2; exit 2; }
                only="$only ${2//,/ }"
                shift
                ;;
            --here) HERE=1 ;;
            --list) list_stages; exit 0 ;;
            -h|--help) usage; exit 0 ;;
            *) echo "unknown argument: $1" >&2; usage >&2; exit 2 ;;
        esac
        shift
    done
    for stage in $only; do
        if [[ -z "$(stage_field "$stage" 1)" ]]; then
            echo "unknown stage: $stage; there are:" >&2
            list_stages >&2
            exit 2
        fi
    done
    SELECTED=${only:-$(select_default "$levels")}
}

# --- environment ------------------------------------------------------------

say() {
    printf '%s %s\n' "$(date +%H:%M:%S)" "$*"
}

find_base_python() {
    local candidate
    for candidate in ${NODB_BASE_PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    echo "No Python 3.11 or newer found; set NODB_BASE_PYTHON." >&2
    return 1
}

# Debian starts what it installs; policy-rc.d is its own way to say no.
install_packages() {
    local sudo="" policy=/usr/sbin/policy-rc.d status
    [[ $(id -u) -eq 0 ]] || sudo="sudo -n"
    if ! $sudo true 2>/dev/null; then
        say "missing system packages: $* (not root, no sudo: tests that need them will say so)"
        return 0
    fi
    say "installing system packages: $*"
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
        $sudo chmod 755 $policy
    else
        policy=""
    fi
    $sudo apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends "$@"
    status=$?
    [[ -z $policy ]] || $sudo rm -f $policy
    return $status
}

system_packages() {
    local missing
    [[ -f bindep.txt ]] || return 0
    command -v apt-get >/dev/null || return 0
    missing=$("$VENV/bin/bindep" --brief test 2>/dev/null) && return 0
    [[ -n $missing ]] || return 0
    # shellcheck disable=SC2086
    install_packages $missing
}

# What Nova and its own tests need, per release.
nova_requirements() {
    echo "tests/nova_suite/requirements/nova${NOVA_VERSION%%.*}.txt"
}

fill_environment() {
    local base=$1
    rm -rf "$VENV"
    "$base" -m venv "$VENV" || return 1
    "$VENV/bin/pip" install --upgrade pip bindep || return 1
    "$VENV/bin/pip" install \
        -r requirements.txt -r test-requirements.txt \
        -r lint-requirements.txt -r doc/requirements.txt \
        -r "$(nova_requirements)" "nova==$NOVA_VERSION" || return 1
    touch "$VENV/.complete"
}

# One environment per set of requirements, shared by all clones: the project itself is
# found through PYTHONPATH, never installed into it.
make_environment() {
    local base key requirements
    base=$(find_base_python) || return 1
    requirements="requirements.txt test-requirements.txt lint-requirements.txt doc/requirements.txt"
    requirements="$requirements $(nova_requirements)"
    # shellcheck disable=SC2086
    key=$(cat $requirements <(echo "$NOVA_VERSION") <("$base" -V) | sha256sum | cut -c1-12)
    VENV=$STATE_DIR/venv-$key
    mkdir -p "$STATE_DIR"
    exec 9>"$VENV.lock"
    flock 9
    if [[ ! -e $VENV/.complete ]]; then
        say "making $VENV (some minutes, once)"
        if ! fill_environment "$base" >"$RESULTS/environment.log" 2>&1; then
            tail -n 40 "$RESULTS/environment.log" >&2
            return 1
        fi
    fi
    system_packages || return 1
    flock -u 9
    export VIRTUAL_ENV=$VENV
    export PATH=$VENV/bin:$PATH
}

# Entry points come from metadata. It is written beside the results, so that neither
# the tree nor the environment holds any that could go stale.
make_metadata() {
    if ! has_git; then
        export PBR_VERSION=${PBR_VERSION:-0.1.0}
    fi
    mkdir -p "$RESULTS/metadata"
    python setup.py -q egg_info --egg-base "$RESULTS/metadata" \
        >"$RESULTS/metadata.log" 2>&1 || { cat "$RESULTS/metadata.log" >&2; return 1; }
    export PYTHONPATH=$ROOT:$RESULTS/metadata${PYTHONPATH:+:$PYTHONPATH}
}

make_results() {
    RESULTS=${NODB_RESULTS_DIR:-$STATE_DIR/results/$(date +%Y%m%dT%H%M%S)-$$}
    mkdir -p "$RESULTS" || return 1
    RESULTS=$(cd "$RESULTS" && pwd)
    TALLY=$RESULTS/tally.tsv
    : >"$TALLY"
    if [[ -z ${NODB_RESULTS_DIR:-} ]]; then
        ln -sfn "$RESULTS" "$STATE_DIR/results/latest"
        find "$STATE_DIR/results" -mindepth 1 -maxdepth 1 -type d | sort -r \
            | tail -n +$((RESULTS_KEPT + 1)) | xargs -r rm -rf
    fi
}

# --- running and counting ---------------------------------------------------

# tally STAGE STEP PASSED FAILED SKIPPED SECONDS
tally() {
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >>"$TALLY"
}

# check STEP COMMAND...: one command that passes or fails, its output shown if it fails.
check() {
    local step=$1 start=$SECONDS log
    shift
    log=$RESULTS/$STAGE/$step.log
    if ("$@") >"$log" 2>&1; then
        say "  ok      $step ($((SECONDS - start)) s)"
        tally "$STAGE" "$step" 1 0 0 $((SECONDS - start))
    else
        say "  FAILED  $step ($((SECONDS - start)) s), $log:"
        tail -n 60 "$log" | sed 's/^/    | /'
        tally "$STAGE" "$step" 0 1 0 $((SECONDS - start))
    fi
}

# count_tests STEP LOG STATUS SECONDS SUBUNIT...: what a test run did, from its streams,
# or, of a script that files none, from its closing line.
count_tests() {
    local step=$1 log=$2 status=$3 seconds=$4 passed failed skipped
    shift 4
    read -r passed failed skipped < <(python "$ROOT/tools/subunit_totals.py" "$@")
    if [[ $((passed + failed + skipped)) -eq 0 ]]; then
        read -r passed failed skipped < <(sed -n -E \
            's/^.*\b([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?.*$/\1 \2 \4/p' "$log" \
            | tail -n 1)
    fi
    passed=${passed:-0} failed=${failed:-0} skipped=${skipped:-0}
    # A run that ended badly and names no failed test has failed all the same; so has
    # one in which nothing passed.
    if [[ $failed -eq 0 ]] && [[ $status -ne 0 || $passed -eq 0 ]]; then
        failed=1
        say "  FAILED  $step: exit status $status, $passed passed; the end of $log:"
        tail -n 40 "$log" | sed 's/^/    | /'
    elif [[ $failed -ne 0 ]]; then
        say "  FAILED  $step: $failed of $((passed + failed)) tests; the end of $log:"
        tail -n 80 "$log" | sed 's/^/    | /'
    else
        say "  ok      $step: $passed passed, $skipped skipped ($seconds s)"
    fi
    tally "$STAGE" "$step" "$passed" "$failed" "$skipped" "$seconds"
}

RUNNING=""

# In the background: bash looks at signals only between commands, and what timeout runs is
# out of the terminal's reach. Commands are to die of an interrupt as they would without.
limited() {
    local status
    env --default-signal=INT timeout --kill-after=30 "$(stage_field "$STAGE" 3)" "$@" &
    RUNNING=$!
    wait "$RUNNING"
    status=$?
    RUNNING=""
    return $status
}

# end SIGNAL: end what runs, and this, by a signal that came.
end() {
    trap - INT TERM HUP
    say "ended by SIG$1"
    if [[ -n $RUNNING ]]; then
        kill -TERM "$RUNNING" 2>/dev/null
        wait "$RUNNING"
    fi
    kill -"$1" $$
}

# try_again OUT DIRECTORY: run the few tests that ran out of patience again, alone. Those that
# pass each time are named in OUT/impatient.txt, and OUT/again.subunit says so.
try_again() {
    local out=$1 directory=$2 failed=$1/failed.txt count round
    python "$ROOT/tools/subunit_totals.py" "$out/tests.subunit" 2>&1 >/dev/null \
        | sed -n 's/^  FAILED/&/p' >"$failed"
    count=$(wc -l <"$failed")
    # A test that did not end is of a process that died; those it had yet to run are missing.
    if [[ -n ${NODB_STRICT:-} || $count -eq 0 || $count -gt $AGAIN_AT_MOST ]] \
        || grep -qv '^  FAILED (out of patience) ' "$failed"; then
        return
    fi
    sed -i 's/^  FAILED (out of patience) //' "$failed"
    mkdir -p "$out/again"
    for ((round = 1; round <= AGAIN_TIMES; round++)); do
        limited stestr --repo-url "$out/again" --test-path "$directory" \
            run --concurrency 1 --load-list "$failed" >"$out/again-$round.log" 2>&1
        stestr --repo-url "$out/again" last --subunit >"$out/again.subunit" \
            2>>"$out/again-$round.log"
        if [[ $(python tools/subunit_totals.py "$out/again.subunit" 2>&1) != "$count 0 0" ]]; then
            return
        fi
    done
    cp "$failed" "$out/impatient.txt"
}

# run_tests DIRECTORY ARGUMENTS...: the tests below tests/DIRECTORY, as stestr selects them.
run_tests() {
    local directory=tests/$1 out=$RESULTS/$STAGE start=$SECONDS status repository impatient=""
    local workers=${NODB_TEST_WORKERS:-$(nproc)}
    shift
    if [[ ! -d $directory ]]; then
        say "  FAILED  there is no $directory"
        tally "$STAGE" "$directory" 0 1 0 0
        return
    fi
    repository=$out/stestr
    mkdir -p "$repository"
    rm -rf "$out"/again* "$out/impatient.txt"
    limited stestr --repo-url "$repository" --test-path "./$directory" \
        run --concurrency "$workers" --slowest "$@" >"$out/tests.log" 2>&1
    status=$?
    stestr --repo-url "$repository" last --subunit >"$out/tests.subunit" 2>>"$out/tests.log"
    if [[ $status -eq 1 && $STAGE =~ $AGAIN_STAGES ]]; then
        try_again "$out" "./$directory"
        if [[ -e $out/impatient.txt ]]; then
            impatient=yes status=0
        fi
    fi
    count_tests "$directory" "$out/tests.log" $status $((SECONDS - start)) \
        "$out/tests.subunit" ${impatient:+"$out/again.subunit"}
    if [[ -n $impatient ]]; then
        sed "s/^/            out of patience, passed $AGAIN_TIMES times alone: /" "$out/impatient.txt"
    fi
}

# run_script NAME ARGUMENTS...: a tool of ours that runs tests and files its streams
# below NODB_RESULTS_DIR.
run_script() {
    local script=tools/$1 out=$RESULTS/$STAGE start=$SECONDS status
    shift
    if [[ ! -x $script ]]; then
        say "  FAILED  there is no $script"
        tally "$STAGE" "$script" 0 1 0 0
        return
    fi
    NODB_RESULTS_DIR=$out NODB_PYTHON=$(command -v python) \
        limited "$script" "$@" >"$out/run.log" 2>&1
    status=$?
    mapfile -t streams < <(find "$out" -name '*.subunit' | sort)
    count_tests "$script" "$out/run.log" $status $((SECONDS - start)) "${streams[@]}"
}

# run_engine_faults ARGUMENTS...: faults on engines, as tests/engine_faults tries them.
run_engine_faults() {
    local out=$RESULTS/$STAGE start=$SECONDS status
    limited python -m tests.engine_faults --json "$out/outcomes.json" "$@" >"$out/run.log" 2>&1
    status=$?
    count_tests "$STAGE" "$out/run.log" $status $((SECONDS - start))
}

# run_nova RELEASE SELECTION ARGUMENTS...: Nova's own tests. What counts is the
# difference from stock Nova's record: a test that fails in stock too is no failure.
run_nova() {
    local release=$1 selection=$2 out=$RESULTS/$STAGE start=$SECONDS status differing
    local workers=${NODB_TEST_WORKERS:-$(nproc)}
    shift 2
    mkdir -p "$out/nova"
    NODB_VENVS=$STATE_DIR/venvs limited tools/nova_functional.sh \
        --nova "$release" --selection "$selection" --concurrency "$workers" \
        --results "$out/nova" "$@" >"$out/run.log" 2>&1
    status=$?
    differing=$(sed -n -E 's/^(not )?expected to [a-z]+, did( not)?: //p' "$out/run.log" \
        | sort -u | wc -l)
    touch "$out/nova/pass.txt" "$out/nova/skip.txt" 2>/dev/null
    echo "$(wc -l <"$out/nova/pass.txt") passed, $differing failed," \
        "$(wc -l <"$out/nova/skip.txt") skipped" >>"$out/run.log"
    count_tests "nova$release-$selection" "$out/run.log" $status $((SECONDS - start))
}

# run_tempest: the same tests with the plugin and without it, on one stack; what counts
# is the difference.
run_tempest() {
    local out=$RESULTS/$STAGE start=$SECONDS status scenarios log=$RESULTS/$STAGE/run.log
    local state=$STATE_DIR/tempest-stack own=(--regex '^nova_nodb_scheduler\.' --none-may-fail)
    export NOVA_NODB_STATE=$state
    tools/stack.sh up --cells 1 >"$log" 2>&1 \
        && limited tools/tempest.sh run plugin >>"$log" 2>&1
    limited tools/tempest.sh run scenarios "${own[@]}" >>"$out/scenarios.log" 2>&1
    scenarios=$?
    tools/stack.sh plugin off >>"$log" 2>&1 \
        && limited tools/tempest.sh run stock >>"$log" 2>&1
    limited tools/tempest.sh run scenarios-stock "${own[@]}" >>"$out/scenarios.log" 2>&1
    scenarios=$((scenarios + $?))
    tools/tempest.sh compare stock plugin >"$out/compare.log" 2>&1
    status=$?
    cat "$out/scenarios.log" >>"$log"
    status=$((status + scenarios))
    tools/stack.sh down --wipe >>"$log" 2>&1
    cp -r "$state/tempest/results" "$out/" 2>/dev/null
    cat "$out/compare.log" >>"$log"
    sed -n -E 's/^pass ([0-9]+), fail [0-9]+, skip ([0-9]+)$/\1 \2/p' "$log" | head -n 1 | {
        read -r passed skipped
        echo "${passed:-0} passed, $(grep -c ' -> ' "$out/compare.log") failed," \
            "${skipped:-0} skipped"
    } >>"$log"
    count_tests tempest "$log" $status $((SECONDS - start))
}

# --- stages -----------------------------------------------------------------

# Every bash file of the tree, by its first line or its place in devstack.
shell_files() {
    {
        find tools .ci -type f -print0 2>/dev/null | xargs -0 grep -lE '^#!.*\bbash\b'
        find devstack tests/unit/devstack -type f \
            \( -name '*.sh' -o -name '*.bash' -o -path 'devstack/*' \) 2>/dev/null
    } | sort -u
}

lint_shell() {
    local files
    mapfile -t files < <(shell_files)
    printf '%s\n' "${files[@]}"
    bashate --ignore E005,E006 "${files[@]}"
}

lint_layers() {
    lint-imports --no-cache
}

stage_lint() {
    check ruff ruff check .
    check hacking python -m flake8 nova_nodb_scheduler tests tools
    check layers lint_layers
    check mypy mypy
    check bashate lint_shell
    check doc8 doc8 README.rst CONTRIBUTING.rst doc/source releasenotes/source
}

stage_unit() { run_tests unit; }
# Whole suites on a cluster of two nodes take minutes: here its claims stand for them.
GALERA='\.(test_galera_faults\.|test_galera\.TestConformance)'
stage_conformance() { run_tests functional/synchronizer --exclude-regex "$GALERA"; }
stage_galera() { run_tests functional/synchronizer "$GALERA"; }
stage_functional() {
    run_tests functional --exclude-regex '^tests\.functional\.(synchronizer|simulator|monitoring)\.'
}
# They wait for scrapes most of the time: more of them at a time than cores.
stage_alerts() { NODB_TEST_WORKERS=${NODB_TEST_WORKERS:-4} run_tests functional/monitoring; }
# Apart from tests that have Nova patch sockets and threads in their process.
stage_simulator() { run_tests functional/simulator; }
stage_differential() { run_tests differential; }
stage_nova() { run_nova "${NOVA_VERSION%%.*}" ci --venv "$VENV"; }
stage_nova_all() { run_nova "${NOVA_VERSION%%.*}" issue --venv "$VENV"; }
stage_nova_whole() { run_nova "${NOVA_VERSION%%.*}" whole --venv "$VENV"; }
stage_nova_endings() { run_nova "${NOVA_VERSION%%.*}" endings --venv "$VENV"; }
stage_nova31() { run_nova 31 smoke; }
stage_nova32() { run_nova 32 smoke; }
stage_nova33() { run_nova 33 smoke; }
stage_faults() { run_script faults.sh; }
stage_engine_faults() { run_engine_faults --short; }
stage_engine_faults_all() { run_engine_faults --file; }
stage_chaos() { run_script chaos.sh --short; }
stage_chaos_all() {
    local backend
    for backend in sqlalchemy sqlite memcached redis etcd; do
        check "$backend" limited env NODB_RESULTS_DIR="$RESULTS/$STAGE" \
            tools/chaos.sh --backend "$backend" --replay --rounds 3
    done
}
stage_capacity() { run_script capacity.sh --runs 3 --schedulers 4; }
stage_tempest() { run_tempest; }

has_git() {
    git -C "$ROOT" rev-parse --git-dir >/dev/null 2>&1
}

# A copy of this tree, as it stands, with a history: pbr, reno and the theme of the
# documents ask git, and a build leaves directories behind.
copy_tree() {
    local copy=$1
    if has_git; then
        git clone -q "$ROOT" "$copy" || return 1
        git ls-files -z --cached --others --exclude-standard \
            | xargs -0 sh -c 'for f; do [ -e "$f" ] && cp --parents "$f" "$0"; done; :' "$copy"
    else
        mkdir -p "$copy" && cp -r . "$copy" && git init -q "$copy" || return 1
    fi
    git -C "$copy" add --all
    git -C "$copy" -c user.name=test -c user.email=test@localhost \
        commit -q --allow-empty -m "The tree under test"
}

build_sphinx() {
    local source=$1 name=$2
    cd "$RESULTS/docs/tree" || return 1
    sphinx-build -q -W --keep-going -b html \
        -d "$RESULTS/docs/$name.doctrees" "$source" "$RESULTS/docs/$name"
}

compare_sample() {
    local sample=etc/nova-nodb-scheduler/nova-nodb-scheduler.conf.sample
    oslo-config-generator \
        --config-file etc/nova-nodb-scheduler/config-generator.conf \
        --output-file "$RESULTS/docs/generated.conf.sample" || return 1
    diff -u "$sample" "$RESULTS/docs/generated.conf.sample" && return 0
    echo "The sample is not what the options say: run 'tox -e genconfig' and commit it."
    return 1
}

build_man() {
    cd "$RESULTS/docs/tree" || return 1
    sphinx-build -q -W --keep-going -b man -d "$RESULTS/docs/html.doctrees" \
        doc/source "$RESULTS/docs/man"
}

compare_completion() {
    local completion=etc/bash-completion/nova-nodb-manage
    tools/completion.sh >"$RESULTS/docs/generated.completion" || return 1
    diff -u "$completion" "$RESULTS/docs/generated.completion" && return 0
    echo "The completion is not what the commands say: run 'tools/completion.sh >$completion'."
    return 1
}

lint_notes() {
    reno lint "$RESULTS/docs/tree"
}

stage_docs() {
    check copy copy_tree "$RESULTS/docs/tree"
    check documents build_sphinx doc/source html
    check manuals build_man
    check release-notes build_sphinx releasenotes/source releasenotes
    check reno lint_notes
    check config-sample compare_sample
    check completion compare_completion
}

build_wheel() {
    copy_tree "$RESULTS/packaging/tree" || return 1
    python -m pip wheel -q --no-deps --wheel-dir "$RESULTS/packaging" "$RESULTS/packaging/tree"
}

# Every file of the package, data included, and nothing of the tests.
compare_wheel() {
    local out=$RESULTS/packaging
    (cd "$out/tree" && find nova_nodb_scheduler -type f ! -name '*.pyc') | sort >"$out/in-tree"
    python -m zipfile -l "$out"/*.whl | awk 'NR > 1 { print $1 }' \
        | grep -v '^nova_nodb_scheduler-' | sort >"$out/in-wheel"
    diff -u "$out/in-tree" "$out/in-wheel"
}

# The wheel in an environment where this tree is out of sight.
install_wheel() {
    python -m venv --system-site-packages "$RESULTS/packaging/venv" || return 1
    # The new environment sees the base interpreter's packages only; those of the
    # environment we run in are what the requirements ask for.
    python -c 'import site; print("\n".join(site.getsitepackages()))' \
        >"$(find "$RESULTS/packaging/venv/lib" -name site-packages)/requirements.pth"
    PYTHONPATH="" "$RESULTS/packaging/venv/bin/pip" install -q --no-deps \
        "$RESULTS"/packaging/*.whl
}

load_entry_points() {
    (
        cd "$RESULTS/packaging" || exit 1
        PYTHONPATH="" venv/bin/python "$ROOT/tools/load_entry_points.py" nova-nodb-scheduler
    )
}

stage_packaging() {
    check wheel build_wheel
    check wheel-contents compare_wheel
    check install install_wheel
    check entry-points load_entry_points
}

# --- the run ----------------------------------------------------------------

summary() {
    local total="$RESULTS/summary.txt"
    awk -F'\t' '
        BEGIN { printf "%-12s %-28s %8s %8s %8s %8s\n", "stage", "step", "passed", "failed", "skipped", "seconds" }
        { printf "%-12s %-28s %8d %8d %8d %8d%s\n", $1, $2, $3, $4, $5, $6, $4 ? "  <--" : "" }
    ' "$TALLY" >"$total"
    echo
    cat "$total"
    echo
    cat "$RESULTS"/*/impatient.txt 2>/dev/null >"$RESULTS/impatient.txt"
    sed 's/^/out of patience, then passed alone: /' "$RESULTS/impatient.txt"
    echo "$(wc -l <"$RESULTS/impatient.txt") tests ran out of patience and were tried again"
    say "$((SECONDS / 60)) min $((SECONDS % 60)) s; logs in $RESULTS"
    awk -F'\t' '
        { passed += $3; failed += $4; skipped += $5 }
        END {
            printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
            exit passed == 0 || failed > 0
        }
    ' "$TALLY"
}

main() {
    parse_arguments "$@"
    trap 'end INT' INT
    trap 'end TERM' TERM
    trap 'end HUP' HUP
    make_results || exit 2
    if [[ -n $HERE ]]; then
        VENV=$(python -c 'import sys; print(sys.prefix)')
    else
        make_environment || { tally setup environment 0 1 0 $SECONDS; summary; exit 1; }
    fi
    make_metadata || { tally setup metadata 0 1 0 $SECONDS; summary; exit 1; }
    [[ $SECONDS -lt 2 ]] || say "environment ready after $SECONDS s"
    for STAGE in $SELECTED; do
        mkdir -p "$RESULTS/$STAGE"
        echo
        echo "=== $STAGE: $(stage_field "$STAGE" 4)"
        "stage_$STAGE"
    done
    summary
}

main "$@"
