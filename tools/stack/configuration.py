# SPDX-License-Identifier: Apache-2.0
"""Every OpenStack service's configuration, rendered from the settings; the plugin's lines included.

Each Nova process has a file of its own, ``etc/nova/PROCESS/nova.conf``, and a MariaDB and a
RabbitMQ user named like the process. Cell mappings are stored as URL templates, which Nova fills
with the credentials of the process that reads them: MariaDB thus knows, for every statement on
every database, which process sent it.
"""

import base64
import shutil
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TypeVar
from urllib import parse

from tools.stack import settings as stack_settings

Option = str | int | Sequence[str]
Sections = dict[str, dict[str, Option]]
_O = TypeVar("_O")

DATABASE_TEMPLATE = "{{scheme}}://{{username}}:{{password}}@{{hostname}}:{{port}}/{database}"
TRANSPORT_TEMPLATE = "{{scheme}}://{{username}}:{{password}}@{{hostname}}:{{port}}/{vhost}"

STORE_DATABASE = "nova_nodb"
"""The synchronizer's own database; ``nova-nodb-manage db sync`` makes its tables."""

QUEUE: Mapping[str, Mapping[str, str]] = {
    "DEFAULT": {"scheduler_driver": "nodb_queue"},
    "nodb_queue": {
        "key": base64.urlsafe_b64encode(b"of a test: nothing is secret....").decode(),
        "default_wait_seconds": "0",
    },
}
"""Options of each process where requests may wait for room."""

_FILTERS = (
    "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
    "ServerGroupAffinityFilter,SameHostFilter,DifferentHostFilter,"
    "AggregateInstanceExtraSpecsFilter,AggregateMultiTenancyIsolation"
)
# The fake driver reports this many VCPU a host.
_FAKE_VCPUS = 1000


def plugin_sections(settings: stack_settings.Settings, process: str) -> Sections:
    """All that switches the plugin on in one control-plane process. Change the lines here."""
    return {
        "DEFAULT": {
            "scheduler_driver": "nodb_scheduler",
            "scheduler_host_manager": "nodb_host_manager",
        },
        "oslo_messaging_notifications": {"driver": "nodb_scheduler"},
        "nodb_scheduler": {
            "synchronizer": "sqlalchemy",
            # Processes of one service share a port, as workers of one process do.
            "metrics_port": settings.port("metrics"),
            "conductor_metrics_port": settings.port("conductor-metrics"),
            "api_metrics_port": settings.port("api-metrics"),
            "metrics_directory": str(settings.run / "metrics"),
        },
        "nodb_sqlalchemy": {"connection": database_url(settings, process, STORE_DATABASE)},
    }


def write(settings: stack_settings.Settings) -> None:
    """Write all files below etc/. Safe to repeat: what running processes read is replaced whole."""
    for name, sections in _peers(settings).items():
        _write(settings, name, sections)
    for process in (*settings.control_plane_names, "nova-manage"):
        _write(settings, f"nova/{process}/nova.conf", control_plane(settings, process))
    for cell in settings.cell_names:
        sections = control_plane(settings, "nova-manage", cell)
        _write(settings, f"nova/nova-manage-{cell}/nova.conf", sections)
    for process, _host, cell in settings.compute_cells():
        _write(settings, f"nova/{process}/nova.conf", compute(settings, process, cell))
    # nova.wsgi looks for both files in one directory.
    paste = settings.venv / "etc" / "nova" / "api-paste.ini"
    shutil.copy(paste, settings.etc / "nova" / "nova-api")


def database_url(settings: stack_settings.Settings, user: str, database: str) -> str:
    location = f"127.0.0.1:{settings.port('mariadb')}/{database}"
    return f"mysql+pymysql://{user}:{stack_settings.PASSWORD}@{location}"


def transport_url(settings: stack_settings.Settings, user: str, vhost: str) -> str:
    location = f"127.0.0.1:{settings.port('rabbitmq')}/{vhost}"
    return f"rabbit://{user}:{stack_settings.PASSWORD}@{location}"


def transport_port(settings: stack_settings.Settings, process: str) -> int:
    """The port that a Nova process finds RabbitMQ at: of a proxy, where it was given one."""
    url = settings.overrides.get(process, {}).get("DEFAULT", {}).get("transport_url", "")
    return parse.urlsplit(url).port or settings.port("rabbitmq")


def synchronizer(settings: stack_settings.Settings) -> str:
    """The driver that the services are told to use."""
    own = settings.overrides.get("nova-manage", {}).get("nodb_scheduler", {})
    return own.get("synchronizer", "sqlalchemy")


def control_plane(
    settings: stack_settings.Settings, process: str, cell: str | None = None
) -> Sections:
    """nova.conf of an API, scheduler, conductor or nova-manage process."""
    if process.startswith("nova-conductor-"):
        cell = process.split("-")[2]
    sections = _nova(settings, process, cell or "")
    database = f"nova_{cell or 'cell0'}"
    sections["database"] = {"connection": database_url(settings, process, database)}
    sections["api_database"] = {"connection": database_url(settings, process, "nova_api")}
    if settings.uses_plugin(process):
        merge(sections, plugin_sections(settings, process))
    merge(sections, settings.overrides.get(process, {}))
    return sections


def compute(settings: stack_settings.Settings, process: str, cell: str) -> Sections:
    """nova.conf of a nova-compute: no database, nothing of the plugin."""
    sections = _nova(settings, process, cell)
    sections["DEFAULT"]["compute_driver"] = "fake.FakeDriverWithoutFakeNodes"
    # Written out in both cases: nova-compute does not take a ratio back from its inventory.
    sections["DEFAULT"]["cpu_allocation_ratio"] = "4.0"
    if settings.vcpus_per_host is not None:
        sections["DEFAULT"]["cpu_allocation_ratio"] = "1.0"
        sections["DEFAULT"]["reserved_host_cpus"] = _FAKE_VCPUS - settings.vcpus_per_host
    sections["compute"] = {"live_migration_wait_for_vif_plug": "false"}
    merge(sections, settings.overrides.get(process, {}))
    return sections


def _nova(settings: stack_settings.Settings, process: str, vhost: str) -> Sections:
    state = settings.state / "nova" / process
    (state / "lock").mkdir(parents=True, exist_ok=True)
    endpoint = {"auth_url": settings.url("keystone") + "/v3"}
    region = {"region_name": stack_settings.REGION}
    user = _service_user()
    return {
        "DEFAULT": {
            "host": settings.host_of(process),
            "my_ip": "127.0.0.1",
            "debug": "false",
            "log_file": str(settings.log / f"{process}.log"),
            "transport_url": transport_url(settings, process, vhost),
            "state_path": str(state),
            "allow_resize_to_same_host": "false",
        },
        "oslo_concurrency": {"lock_path": str(state / "lock")},
        "filter_scheduler": {"enabled_filters": _FILTERS},
        "scheduler": {"workers": 1},
        "conductor": {"workers": 1},
        "service_user": {"send_service_user_token": "true", **endpoint, **user},
        "placement": {**endpoint, **region, **user},
        "neutron": {**endpoint, **region, **user},
        "glance": dict(region),
        "vnc": {"enabled": "false"},
        "quota": {
            "instances": 10000,
            "cores": 100000,
            "ram": 100000000,
            "server_groups": 1000,
            "server_group_members": 1000,
        },
        # No Open vSwitch runs here; a refused connection is quicker than a search for one.
        "os_vif_ovs": {"ovsdb_connection": "tcp:127.0.0.1:1"},
        "keystone_authtoken": _authtoken(settings),
    }


def _peers(settings: stack_settings.Settings) -> dict[str, Sections]:
    return {
        "keystone/keystone.conf": _keystone(settings),
        "placement/placement.conf": _placement(settings),
        "glance/glance-api.conf": _glance(settings),
        "neutron/neutron.conf": _neutron(settings),
        "neutron/plugins/ml2/ml2_conf.ini": {
            "ml2": {
                "type_drivers": "local,flat,vlan,vxlan",
                "tenant_network_types": "vxlan",
                "mechanism_drivers": "bind_any_port",
                "extension_drivers": "port_security",
            },
            "ml2_type_vxlan": {"vni_ranges": "1:1000"},
        },
    }


def _keystone(settings: stack_settings.Settings) -> Sections:
    keystone = settings.etc / "keystone"
    return {
        "DEFAULT": {"log_file": str(settings.log / "keystone.log")},
        "database": {"connection": database_url(settings, "keystone", "keystone")},
        "fernet_tokens": {"key_repository": str(keystone / "fernet-keys")},
        "credential": {"key_repository": str(keystone / "credential-keys")},
        "identity": {"password_hash_rounds": 4},
        "cache": {"enabled": "true", "backend": "dogpile.cache.memory"},
        "token": {"expiration": 43200},
    }


def _placement(settings: stack_settings.Settings) -> Sections:
    return {
        "DEFAULT": {"log_file": str(settings.log / "placement.log")},
        "api": {"auth_strategy": "keystone"},
        "placement_database": {"connection": database_url(settings, "placement", "placement")},
        "keystone_authtoken": _authtoken(settings),
    }


def _glance(settings: stack_settings.Settings) -> Sections:
    stores = {name: settings.state / "glance" / name for name in ("images", "staging", "tasks")}
    for path in stores.values():
        path.mkdir(parents=True, exist_ok=True)
    return {
        "DEFAULT": {
            "log_file": str(settings.log / "glance.log"),
            "enabled_backends": "files:file",
            "node_staging_uri": f"file://{stores['staging']}",
        },
        "database": {"connection": database_url(settings, "glance", "glance")},
        "glance_store": {"default_backend": "files"},
        "files": {"filesystem_store_datadir": str(stores["images"])},
        "os_glance_tasks_store": {"filesystem_store_datadir": str(stores["tasks"])},
        "os_glance_staging_store": {"filesystem_store_datadir": str(stores["staging"])},
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": str(settings.venv / "etc" / "glance" / "glance-api-paste.ini"),
        },
        "oslo_concurrency": {"lock_path": str(settings.run)},
        "keystone_authtoken": _authtoken(settings),
    }


def _neutron(settings: stack_settings.Settings) -> Sections:
    quotas = ("network", "subnet", "port", "security_group", "security_group_rule")
    return {
        "DEFAULT": {
            "log_file": str(settings.log / "neutron.log"),
            "api_paste_config": str(settings.venv / "etc" / "neutron" / "api-paste.ini"),
            "core_plugin": "ml2",
            "service_plugins": "",
            "auth_strategy": "keystone",
            "state_path": str(settings.state / "neutron"),
            "transport_url": transport_url(settings, "neutron", "neutron"),
            "notify_nova_on_port_status_changes": "false",
            "notify_nova_on_port_data_changes": "false",
            "rpc_workers": 0,
            "rpc_state_report_workers": 0,
            "dhcp_agent_notification": "false",
        },
        "database": {"connection": database_url(settings, "neutron", "neutron")},
        "oslo_concurrency": {"lock_path": str(settings.run)},
        "quotas": {"default_quota": -1, **{f"quota_{name}": -1 for name in quotas}},
        "keystone_authtoken": _authtoken(settings),
    }


def _service_user() -> dict[str, Option]:
    return {
        "auth_type": "password",
        "project_domain_name": "Default",
        "user_domain_name": "Default",
        "project_name": "service",
        "username": "service",
        "password": stack_settings.PASSWORD,
    }


def _authtoken(settings: stack_settings.Settings) -> dict[str, Option]:
    return {
        "www_authenticate_uri": settings.url("keystone") + "/v3",
        "auth_url": settings.url("keystone") + "/v3",
        "memcached_servers": f"127.0.0.1:{settings.port('memcached')}",
        "service_token_roles": "service",
        "service_token_roles_required": "true",
        **_service_user(),
    }


def merge(
    sections: MutableMapping[str, dict[str, _O]], more: Mapping[str, Mapping[str, _O]]
) -> None:
    """Lay options over those that stand."""
    for section, options in more.items():
        sections.setdefault(section, {}).update(options)


def _write(settings: stack_settings.Settings, name: str, sections: Sections) -> None:
    path = settings.etc / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(_render(sections))
    fresh.replace(path)


def _render(sections: Sections) -> str:
    lines: list[str] = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        for option, value in options.items():
            values = [value] if isinstance(value, str | int) else value
            lines.extend(f"{option} = {item}" for item in values)
        lines.append("")
    return "\n".join(lines)
