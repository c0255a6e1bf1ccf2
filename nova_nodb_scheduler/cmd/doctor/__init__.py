# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage doctor: what an operator should mend, found without the message bus.
Called by cmd.application; imports cmd.upgrade_check, cmd.overview and cmd.framework.
"""
