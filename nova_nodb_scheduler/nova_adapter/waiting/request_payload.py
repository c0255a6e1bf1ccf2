# SPDX-License-Identifier: Apache-2.0
"""What a conductor was called with, as one encrypted text, while the request waits.

It holds the user's token, the password for the server, files for it, and whatever else
the user sent, so it is never written but encrypted (Fernet: AES-128-CBC with
HMAC-SHA256, a symmetric key from the configuration). The text names the request that it
is of: who can write the back end and has no key cannot put one in another's place.

Build requests are not in it. They stand in the API database, where users change and
delete them meanwhile.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import attrs
from cryptography import fernet
from nova import context as nova_context
from nova.objects import base
from oslo_serialization import jsonutils

from nova_nodb_scheduler import errors

_OPTION = "[nodb_queue] key"
_HIDDEN = "(not shown)"
_FORMAT = 1
#: What zlib may make of a payload: beyond it, it is none of ours.
_MOST_BYTES = 64 * 1024 * 1024


class PayloadCipher:
    """Encrypts with the first of some keys, decrypts with all.

    :raises ConfigurationError: there is none, or one is no key
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise errors.ConfigurationError(
                _OPTION, "", "make one with 'nova-nodb-manage queue new-key', the same everywhere"
            )
        try:
            self._fernet = fernet.MultiFernet([fernet.Fernet(key) for key in keys])
        except (ValueError, TypeError) as error:
            raise errors.ConfigurationError(
                _OPTION,
                _HIDDEN,
                "each must be 32 bytes in URL-safe base64, as 'nova-nodb-manage queue new-key' "
                "makes them",
            ) from error

    def encrypt(self, content: bytes) -> str:
        """Return a text that says nothing without a key."""
        return self._fernet.encrypt(zlib.compress(content)).decode()

    def decrypt(self, text: str) -> bytes:
        """Return what was encrypted.

        :raises UndecodableRecord: it was with another key, or was changed
        """
        try:
            inflater = zlib.decompressobj()
            content = inflater.decompress(self._fernet.decrypt(text.encode()), _MOST_BYTES)
        except (fernet.InvalidToken, zlib.error) as error:
            raise errors.UndecodableRecord(
                f"a payload is not of the keys in {_OPTION}: name the one that it was "
                "encrypted with, too"
            ) from error
        if not inflater.eof:
            raise errors.UndecodableRecord("a payload is too large, or cut short")
        return content


def new_key() -> str:
    """Return a new key for the configuration."""
    return fernet.Fernet.generate_key().decode()


@attrs.frozen
class BuildArguments:
    """Arguments of ``schedule_and_build_instances``, but for the build requests."""

    request_specs: Sequence[Any]
    image: Any
    admin_password: str | None
    injected_files: Any
    requested_networks: Any
    block_device_mapping: Any
    tags: Any = None

    def of_servers(self, servers: Collection[str]) -> BuildArguments:
        """Return the same for some of the servers."""
        specs = [spec for spec in self.request_specs if spec.instance_uuid in servers]
        return attrs.evolve(self, request_specs=specs)


_FIELDS = tuple(field.name for field in attrs.fields(BuildArguments))


def pack(cipher: PayloadCipher, key: str, context: Any, arguments: BuildArguments) -> str:
    """Return a request as its payload.

    :param key: of its record
    :param context: of the user
    """
    serializer = base.NovaObjectSerializer()
    content = {
        "format": _FORMAT,
        "key": key,
        "context": context.to_dict(),
        "arguments": {
            name: serializer.serialize_entity(context, getattr(arguments, name)) for name in _FIELDS
        },
    }
    return cipher.encrypt(jsonutils.dumps(content).encode())


def unpack(cipher: PayloadCipher, key: str, payload: str) -> tuple[Any, BuildArguments]:
    """Return the user's context, and what the conductor was called with.

    :raises UndecodableRecord: it cannot be read with these keys, by this release, or is
        of another request
    """
    try:
        content = json.loads(cipher.decrypt(payload))
        if content["format"] != _FORMAT:
            raise errors.UndecodableRecord(
                f"a payload is of format {content['format']}, which another release wrote"
            )
        if content["key"] != key:
            raise errors.UndecodableRecord(f"the payload of request {key} is another one's")
        context = nova_context.RequestContext.from_dict(content["context"])
        serializer = base.NovaObjectSerializer()
        arguments = {
            name: serializer.deserialize_entity(context, content["arguments"][name])
            for name in _FIELDS
        }
    except errors.UndecodableRecord:
        raise
    except Exception as error:
        # An object of a newer Nova, a field that is not there: whatever is raised then.
        raise errors.UndecodableRecord(
            f"the payload of request {key} cannot be restored: {type(error).__name__}"
        ) from error
    return context, BuildArguments(**arguments)
