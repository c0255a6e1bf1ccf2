#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# DevStack calls this file as ``source plugin.sh MODE [PHASE]``; see
# https://docs.openstack.org/devstack/latest/plugins.html

# Where this file is, whatever name the plugin was enabled by.
NODB_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

source "$NODB_DIR/devstack/lib/nova_nodb_scheduler"

if is_nova_nodb_scheduler_enabled; then
    if [[ "$1" == "stack" ]]; then
        case "$2" in
            pre-install)
                echo_summary "Preparing nova_nodb_scheduler"
                preinstall_nova_nodb_scheduler
                ;;
            install)
                echo_summary "Installing nova_nodb_scheduler"
                install_nova_nodb_scheduler
                ;;
            post-config)
                # After Nova's databases and cell mappings, before any of its services.
                echo_summary "Configuring nova_nodb_scheduler"
                configure_nova_nodb_scheduler
                init_nova_nodb_scheduler
                ;;
            extra)
                echo_summary "Importing what Nova wrote before nova_nodb_scheduler"
                import_nova_nodb_scheduler
                ;;
            test-config)
                # After discover_hosts: computes, cells and feed can be judged.
                echo_summary "Checking nova_nodb_scheduler"
                check_nova_nodb_scheduler
                ;;
        esac
    elif [[ "$1" == "unstack" || "$1" == "clean" ]]; then
        # The database goes with DevStack's others, and so does its etcd.
        unconfigure_nova_nodb_scheduler
    fi
fi
