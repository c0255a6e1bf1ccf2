# SPDX-License-Identifier: Apache-2.0
"""How Zaqar is reached, for events to tenants: the group ``[nodb_queue_zaqar]``.

As in Nova's own groups of a service: keystoneauth's options of a session, of an adapter
and of a service user, with defaults that fit Zaqar.
"""

from __future__ import annotations

from keystoneauth1 import loading
from oslo_config import cfg

GROUP = "nodb_queue_zaqar"
SERVICE_TYPE = "messaging"
TIMEOUT_SECONDS = 5.0

OWN_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "signing_key",
        default="",
        secret=True,
        help="""
Zaqar's own ``[signed_url] secret_key``: messages are signed with it, as Zaqar's
pre-signed URLs are, and get into the queue of any project without a token. Who has it
can read and write every queue of that Zaqar, so whoever can read this file can.

Empty: the service user of this group gets a token for each project whose servers wait.
It needs a role in all of them; which one does not matter to Zaqar's own policies, so
make one that nobody else's policies know, and grant it by inheritance, for each domain:
``openstack role add --inherited --domain DOMAIN --user USER ROLE``. Zaqar takes the
project from the token alone: an administrator's token of another project does not do.

Where Zaqar runs without Keystone (no ``auth_strategy``), neither is needed:
``auth_type = none``, and ``endpoint`` or ``endpoint_override``.
""",
    ),
]


def _with_defaults() -> list[cfg.Opt]:
    session = loading.get_session_conf_options()
    adapter = loading.get_adapter_conf_options(include_deprecated=False)
    # Nothing of a request waits for it, but the thread that posts shall not hang for ever.
    cfg.set_defaults(session, timeout=TIMEOUT_SECONDS)
    cfg.set_defaults(adapter, service_type=SERVICE_TYPE, valid_interfaces=["internal", "public"])
    return [*session, *adapter, *loading.get_auth_common_conf_options()]


ZAQAR_OPTS: list[cfg.Opt] = [*OWN_OPTS, *_with_defaults()]

#: Of keystoneauth's those that most clouds set. For the sample alone: keystoneauth's own texts
#: change with its releases, and what is registered are its own.
SAMPLE_OPTS: list[cfg.Opt] = [
    *OWN_OPTS,
    cfg.StrOpt("auth_type", help="Of keystoneauth: ``password`` for a service user."),
    cfg.StrOpt("auth_url", help="URL of Keystone."),
    cfg.StrOpt("username", help="Name of the service user."),
    cfg.StrOpt("user_domain_name", help="Name of the service user's domain."),
    cfg.StrOpt("password", secret=True, help="Password of the service user."),
    cfg.StrOpt(
        "project_name",
        help="Project of the service user, for the catalog where messages are signed.",
    ),
    cfg.StrOpt("project_domain_name", help="Name of that project's domain."),
    cfg.StrOpt("service_type", default=SERVICE_TYPE, help="Zaqar's in the catalog."),
    cfg.ListOpt(
        "valid_interfaces",
        default=["internal", "public"],
        help="Interfaces of the endpoint, in order of preference.",
    ),
    cfg.StrOpt("region_name", help="Region of the endpoint."),
    cfg.StrOpt("endpoint_override", help="The endpoint, instead of the catalog's; without /v2."),
    cfg.FloatOpt(
        "timeout",
        default=TIMEOUT_SECONDS,
        help="Seconds after which a request to Zaqar or Keystone is given up.",
    ),
    cfg.StrOpt("cafile", help="Certificates of authorities, for TLS."),
]
