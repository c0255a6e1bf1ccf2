# SPDX-License-Identifier: Apache-2.0
"""What the drivers' options have in common: how they are read, and refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg

from nova_nodb_scheduler import errors

#: How clouds that share a server are told apart, where keys do not nest.
CLOUD_OPTS = (
    cfg.StrOpt(
        "key_prefix",
        default="nodb",
        help="""
Prefix of every key that this driver writes, for clouds that share a server: up
to 60 letters, digits, ``-``, ``_`` and ``.``. All services of one cloud must
have the same value, and no other cloud may.
""",
    ),
    cfg.StrOpt(
        "cloud_name",
        default="",
        help="""
Name of this cloud, kept beside the records: a service whose ``cloud_name``
differs is refused, before two clouds write each other's records. Set it where
clouds share a server, so that a mistake in ``key_prefix`` does not mix their
hosts.
""",
    ),
)


#: What oslo.config raises where a value refers to an option that does not exist.
REFERENCES = (cfg.NoSuchOptError, cfg.NoSuchGroupError, cfg.TemplateSubstitutionError)

_LOCATION = re.compile(r" from LocationInfo\(location=<[^>]*>, detail='([^']*)'\)")


def read(conf: cfg.ConfigOpts, group: str, names: Iterable[str]) -> dict[str, Any]:
    """Read options of a group, by their names.

    :raises ConfigurationError: a value refers to an option that does not exist
    """
    values: Any = conf[group]
    return {name: _value(values, group, name) for name in names}


def _value(values: Any, group: str, name: str) -> Any:
    try:
        return values[name]
    except REFERENCES as error:
        raise reference_refusal(group, name) from error


def reference_refusal(group: str, option: str) -> errors.ConfigurationError:
    """Return what to raise where ``$`` and a name stand in a value, and no such option exists.

    Neither the value nor the name is repeated: most often it is a part of a password.
    """
    return refusal(
        group,
        option,
        "(hidden)",
        "oslo.config takes the '$' in it for a reference to another option, and there is none of "
        "that name. Write '$$' for each '$' that is meant, as in a password.",
    )


def plain_text(error: Exception) -> str:
    """Return what oslo.config says of a value, with the file's name in the place of a repr."""
    return _LOCATION.sub(r" in \1", str(error))


def refusal(group: str, option: str, value: object, remedy: str) -> errors.ConfigurationError:
    """Return what to raise about an option.

    :param value: as it is to be shown: no password
    :param remedy: what to do, as a sentence
    """
    return errors.ConfigurationError(f"[{group}] {option}", value, remedy)


def check_key_prefix(group: str, prefix: str, *, may_nest: bool = False) -> None:
    """Refuse what cannot begin the names of keys on every server.

    :param may_nest: slashes are taken, too
    :raises ConfigurationError: it is empty, longer than 60, or holds something else
    """
    allowed, named = r"[A-Za-z0-9_.-]{1,60}", "'-', '_' and '.'"
    if may_nest:
        allowed, named = r"[A-Za-z0-9_./-]{1,60}", "'-', '_', '.' and '/'"
    if not re.fullmatch(allowed, prefix):
        raise refusal(group, "key_prefix", prefix, f"use 1 to 60 letters, digits, {named}.")
