# SPDX-License-Identifier: Apache-2.0
#
# What DevStack offers its plugins, as far as ours asks for it. The functions on ini
# files do their work; the others say in $CALLS that they were called.
#
# With DEVSTACK_DIR set to a DevStack, its own functions on ini files take their place.
#
# $WORK, $CALLS, $ENABLED_SERVICES, $CELLSV2_SETUP, ... come from the test.

DEST=$WORK/dest
NOVA_BIN_DIR=$WORK/bin
NOVA_CONF_DIR=$WORK/etc
NOVA_CONF=$NOVA_CONF_DIR/nova.conf
DATA_DIR=$WORK/data
SERVICE_HOST=192.0.2.10
SERVICE_PASSWORD=secret
ETCD_PORT=2379

function called {
    echo "$*" >>"$CALLS"
}

function is_service_enabled {
    local asked
    for asked in "$@"; do
        if [[ ",$ENABLED_SERVICES," == *",$asked,"* ]]; then
            return 0
        fi
    done
    return 1
}

function trueorfalse {
    local default=$1 name=$2
    case "${!name:-$default}" in
        [Tt]rue|1|[Yy]es) echo True ;;
        *) echo False ;;
    esac
}

function die {
    local line=$1
    shift
    echo "[ERROR] $line $*" >&2
    exit 1
}

function conductor_conf {
    echo "$NOVA_CONF_DIR/nova_cell$1.conf"
}

function database_connection_url {
    echo "$DATABASE_URL/$1?charset=utf8&plugin=dbcounter"
}

function define_plugin {
    called define_plugin "$@"
}

function echo_summary {
    :
}

function async_wait {
    called async_wait "$@"
}

function enable_service {
    ENABLED_SERVICES+=",$1"
}

function is_fedora {
    [[ "$DISTRIBUTION" == "fedora" ]]
}

function run_process {
    called run_process "$@"
}

function stop_process {
    called stop_process "$@"
}

function install_package {
    called install_package "$@"
}

function recreate_database {
    called recreate_database "$@"
}

function setup_develop {
    called setup_develop "$@"
}

# Values of an option in one section, one a line.
function ini_values {
    local file=$1 section=$2 option=$3
    awk -v section="[$section]" -v option="$option" '
        /^\[/ { inside = ($0 == section); next }
        inside && $0 ~ "^" option "[ \t]*=" { sub(/^[^=]*=[ \t]*/, ""); print }
    ' "$file"
}

function iniget_multiline {
    # shellcheck disable=SC2046
    echo $(ini_values "$@")
}

function iniget {
    iniget_multiline "$@"
}

function inidelete {
    local file=$1 section=$2 option=$3
    awk -v section="[$section]" -v option="$option" '
        /^\[/ { inside = ($0 == section) }
        !(inside && $0 ~ "^" option "[ \t]*=")
    ' "$file" >"$file.new"
    mv "$file.new" "$file"
}

# Values with spaces in them come apart here, as they do in DevStack.
function iniset_multiline {
    local file=$1 section=$2 option=$3
    shift 3
    local values="$*"
    touch "$file"
    grep -qF "[$section]" "$file" || printf '\n[%s]\n' "$section" >>"$file"
    inidelete "$file" "$section" "$option"
    VALUES=$values awk -v section="[$section]" -v option="$option" '
        { print }
        $0 == section {
            count = split(ENVIRON["VALUES"], values, " ")
            for (i = 1; i <= count; i++) print option " = " values[i]
        }
    ' "$file" >"$file.new"
    mv "$file.new" "$file"
}

function iniset {
    local file=$1 section=$2 option=$3 value=$4
    iniset_multiline "$file" "$section" "$option" "$value"
}

# Adds without asking whether the value is there already.
function iniadd {
    local file=$1 section=$2 option=$3
    shift 3
    # shellcheck disable=SC2046
    iniset_multiline "$file" "$section" "$option" $(ini_values "$file" "$section" "$option") "$@"
}

if [[ -n "${DEVSTACK_DIR:-}" ]]; then
    unset -f iniset iniset_multiline iniadd iniget iniget_multiline inidelete
    source "$DEVSTACK_DIR/inc/ini-config"
fi
