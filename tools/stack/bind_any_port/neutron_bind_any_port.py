# SPDX-License-Identifier: Apache-2.0
"""ML2 mechanism driver that binds any port on any host, without agents."""

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api


class BindAnyPort(api.MechanismDriver):  # type: ignore[misc]
    """Says of every segment that the host has it, and that the port is up."""

    def initialize(self) -> None:
        """Nothing to prepare."""

    @property
    def connectivity(self) -> str:
        return str(portbindings.CONNECTIVITY_L2)

    def bind_port(self, context: api.PortContext) -> None:
        for segment in context.segments_to_bind:
            context.set_binding(
                segment[api.ID],
                portbindings.VIF_TYPE_OVS,
                {"port_filter": True, "bridge_name": "br-int"},
                status=constants.PORT_STATUS_ACTIVE,
            )
            return
