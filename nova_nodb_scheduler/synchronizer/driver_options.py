# SPDX-License-Identifier: Apache-2.0
"""What the drivers' options have in common: how they are read, and refused by name."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import attrs
from oslo_config import cfg

from nova_nodb_scheduler import errors

_Options = TypeVar("_Options", bound=attrs.AttrsInstance)

#: How clouds that share a server are told apart, where keys do not nest.
CLOUD_OPTS = (
    cfg.StrOpt(
        "key_prefix",
        default="nodb",
        help="""
Begin of every key this driver uses, for clouds that share a server: up to 60
letters, digits, ``-``, ``_`` and ``.``. All services of one cloud must have
the same value, and no other cloud may.
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


def read(conf: cfg.ConfigOpts, group: str, kind: type[_Options]) -> _Options:
    """Read the options of a group into a class that has a field for each."""
    values: Any = conf[group]
    return kind(**{field.name: values[field.name] for field in attrs.fields(kind)})


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
