# SPDX-License-Identifier: Apache-2.0
"""What is refused when a client opens: a server that could not keep the promises."""

from __future__ import annotations

import ssl

import redis
from redis import exceptions

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.redis import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.redis import layout, options, scripts

#: Scripts may call INFO and TIME before they write from here on.
LEAST_VERSION = (6, 2)


def check(
    settings: options.RedisOptions, connection: connection_module.Connection, keys: layout.Keys
) -> None:
    """Refuse a server whose version, role or configuration rules this driver out.

    :raises ConfigurationError: with the remedy
    """
    server = connection.information("server")
    version = server.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_VERSION:
        least = ".".join(str(part) for part in LEAST_VERSION)
        raise options.refusal("url", settings.url, f"it is Redis {version}; use {least} or newer.")
    replication = connection.information("replication")
    if replication.get("role") != "master":
        primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
        raise options.refusal(
            "url", settings.url, f"it is a replica; name its primary, {primary}, instead."
        )
    memory = connection.information("memory")
    policy = memory.get("maxmemory_policy", "noeviction")
    if int(memory.get("maxmemory", 0)) and policy != "noeviction":
        raise options.refusal(
            "url",
            settings.url,
            f"the server evicts keys when it is full (maxmemory-policy {policy}): set "
            "'maxmemory-policy noeviction', on a server of its own.",
        )
    _rehearse(connection, keys)


def _rehearse(connection: connection_module.Connection, keys: layout.Keys) -> None:
    """Carry out every command of the driver, those of scripts on a key of its own."""
    connection.ask("XREAD", "COUNT", 1, "STREAMS", keys.wake, "$")
    try:
        connection.run(scripts.REHEARSAL, [keys.rehearsal])
    except connection_module.ReplyLost as error:
        raise connection.unavailable(error) from error


def explain(
    settings: options.RedisOptions, error: errors.BackendUnavailable
) -> errors.ConfigurationError | None:
    """Return what an operator must mend, where waiting does not help."""
    for cause in _causes(error):
        text = str(cause)
        if isinstance(cause, ssl.SSLError | FileNotFoundError) and settings.address().tls:
            return options.refusal(
                "url",
                settings.url,
                f"TLS failed ({text}): check tls_cafile, tls_certfile and tls_keyfile, that "
                "the certificate names the host of 'url', and that the port speaks TLS.",
            )
        if isinstance(cause, exceptions.NoPermissionError) or any(
            words in text for words in ("ACL failure", "can't run this command", "can't access")
        ):
            return options.refusal(
                "username",
                settings.username or "default",
                f"it may not do what the driver does ({text}): grant the commands and keys "
                "named in the administration guide.",
            )
        if isinstance(cause, redis.AuthenticationError) or text.startswith(
            ("NOAUTH", "WRONGPASS", "Authentication required")
        ):
            return options.refusal(
                "username",
                settings.username or "default",
                f"the server refuses it ({text}): correct 'username' and 'password'.",
            )
        if isinstance(cause, exceptions.ClusterDownError | exceptions.MovedError):
            return options.refusal(
                "url",
                settings.url,
                f"it is a node of a cluster and not the one of prefix {settings.key_prefix!r} "
                f"({text}): use a server without cluster mode.",
            )
        if "WRONGTYPE" in text:
            return options.refusal(
                "key_prefix",
                settings.key_prefix,
                "keys of that prefix are somebody else's: choose another.",
            )
        if "SELECT" in text or "DB index" in text:
            return options.refusal(
                "url", settings.url, f"the server refuses the database ({text})."
            )
    return None


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes[1:]
