# SPDX-License-Identifier: Apache-2.0
"""Options of the scenarios, in group ``[nodb]`` of tempest.conf."""

from oslo_config import cfg

GROUP = cfg.OptGroup(name="nodb", title="Scenarios of nova-nodb-scheduler")

OPTIONS = [
    cfg.ListOpt(
        "hosts",
        default=[],
        help="Compute hosts, all of one cell, that the scenarios may have for themselves while "
        "they run: they are put into availability zones of the scenarios' own. Empty: all that "
        "are up, enabled, in no zone and without a server. At least three are needed.",
    ),
    cfg.StrOpt(
        "default_zone",
        default="nova",
        help="Nova's [DEFAULT] default_availability_zone: hosts in it are in no zone.",
    ),
    cfg.BoolOpt(
        "exact_capacity",
        default=False,
        help="All schedulers of the cloud claim what they give (nova-nodb-scheduler runs in "
        "each): requests at once are given all the room there is and nothing beyond, and no "
        "strict group leaves a host unused. Stock schedulers promise neither, so without it "
        "these scenarios are skipped.",
    ),
    cfg.BoolOpt(
        "evacuate",
        default=False,
        help="A compute service may be forced down while a server is rebuilt elsewhere. Only "
        "where its nova-compute tolerates that, such as with Nova's fake driver. The host stays "
        "forced down: Nova refuses to take that back until its nova-compute is started again.",
    ),
]
