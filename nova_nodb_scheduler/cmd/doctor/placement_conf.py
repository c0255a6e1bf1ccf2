# SPDX-License-Identifier: Apache-2.0
"""What Placement's configuration says, where it can be read from here."""

from __future__ import annotations

import os

from oslo_config import cfg

from nova_nodb_scheduler.cmd.doctor import findings

RETRIES = "Placement's retries"
DEFAULT_PATH = "/etc/placement/placement.conf"
OPTION = "--placement-config"

_GROUP, _NAME = "placement", "allocation_conflict_retry_count"
_DEFAULT = 10


def retries(path: str | None) -> list[findings.Finding]:
    """Tell how often Placement repeats an allocation that met another one.

    Repeated, it does not look at the capacity again: writers that race over-commit.

    :param path: of its configuration; None to look where packages lay it
    """
    if path is None and not os.path.exists(DEFAULT_PATH):
        return [
            findings.fine(
                RETRIES, f"Not looked at: there is no {DEFAULT_PATH} here ({OPTION} names another)."
            )
        ]
    path = path or DEFAULT_PATH
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
        count = int(sections.get(_GROUP, {}).get(_NAME, [str(_DEFAULT)])[-1])
    except OSError as failure:
        return [
            findings.unknown(RETRIES, f"{path}: {failure.strerror}.", f"Name it with {OPTION}.")
        ]
    except (cfg.Error, cfg.ParseError, ValueError) as failure:
        return [findings.unknown(RETRIES, f"{path}: {failure}")]
    text = f"[{_GROUP}] {_NAME} is {count} in {path}."
    if count == 1:
        return [findings.fine(RETRIES, text)]
    return [
        findings.warning(
            RETRIES,
            f"{text} Allocations of other services (neutron, cyborg, blazar, operators) that race "
            "with Nova's may over-commit a provider, as in stock Nova.",
            "Set it to 1 where Placement runs: Nova repeats a refused allocation by itself.",
        )
    ]
