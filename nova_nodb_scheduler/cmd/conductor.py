# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-conductor: nova-conductor with the reporter, explicitly."""

from __future__ import annotations


def main() -> None:
    """Run nova-conductor with the plugin; options are nova-conductor's."""
    # Importing nova.cmd patches the process; it must come first.
    from nova.cmd import conductor

    from nova_nodb_scheduler.cmd import service

    service.run(conductor.main, "conductor")
