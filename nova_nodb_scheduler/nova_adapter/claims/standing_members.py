# SPDX-License-Identifier: Apache-2.0
"""Who is in a strict server group by now, and where, by Nova's own databases.

A conductor goes on to an alternate by a request that is as old as the build. What joined the
group since stands in the back end; where that does not answer Nova's databases tell it, as
they tell nova-compute when it looks at the policy as it builds. That look stays the last word:
of a server that is on its way to its host and not written there yet they tell nothing, so of
two conductors that send members to one host at once neither sees the other's. It is all that
is left where a conductor of a cell may not read the API's database.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_nodb_scheduler.model import claims, group_claims, requests
from nova_nodb_scheduler.synchronizer.claims import group_rules, ledger_claimer

LOG = logging.getLogger(__name__)


def members_of(group_uuid: str) -> frozenset[str]:
    """Return a group's members as the API's database has them; none where it does not tell."""
    try:
        group = objects.InstanceGroup.get_by_uuid(nova_context.get_admin_context(), group_uuid)
    except nova_exception.InstanceGroupNotFound:
        return frozenset()
    except Exception as error:
        LOG.warning(
            "Members that joined server group %(group)s since the request cannot be read: "
            "%(error)s",
            {"group": group_uuid, "error": error},
            exc_info=True,
        )
        return frozenset()
    return frozenset(group.members or ())


def why_broken(context: Any, request: requests.Request, claim: claims.Claim) -> str:
    """Say why a server on a node breaks its group's policy; empty where nothing tells so.

    Raises nothing. Blocks for Nova's API database and the cell's.

    :param context: targeted at the node's cell
    :param claim: without the name of its host
    """
    group = ledger_claimer.judged_group(request, ledger_claimer.STRICT)
    if group is None or group.policy not in ledger_claimer.STRICT or request.group is None:
        return ""
    others = members_of(group.uuid).union(request.group.members) - {claim.consumer}
    if not others:
        return ""
    try:
        node = objects.ComputeNode.get_by_uuid(context, claim.host)
        known = _hosts(context, others)
        if group.policy is group_claims.Policy.ANTI_AFFINITY:
            for consumer in others & _moving(context, node):
                known.setdefault(consumer, set()).add(node.host)
    except Exception as error:
        LOG.warning(
            "Where members of server group %(group)s are cannot be read; for server %(server)s "
            "nova-compute's own look at the group's policy is left: %(error)s",
            {"group": group.uuid, "server": claim.consumer, "error": error},
            exc_info=True,
        )
        return ""
    there = claims.Claim(claim.consumer, claim.host, claim.resources, place=node.host)
    return group_rules.policy_broken(group_claims.GroupRecord(group.uuid), there, group, {**known})


def _hosts(context: Any, servers: Collection[str]) -> dict[str, set[str]]:
    """Return the hosts of those servers that are on one, in one cell."""
    wanted = {"uuid": sorted(servers), "deleted": False}
    found = objects.InstanceList.get_by_filters(context, wanted, expected_attrs=[])
    return {each.uuid: {each.host} for each in found if each.host}


def _moving(context: Any, node: Any) -> frozenset[str]:
    """Return servers whose migration has room on a node, as nova-compute counts them."""
    found = objects.MigrationList.get_in_progress_by_host_and_node(
        context, node.host, node.hypervisor_hostname
    )
    return frozenset(each.instance_uuid for each in found)
