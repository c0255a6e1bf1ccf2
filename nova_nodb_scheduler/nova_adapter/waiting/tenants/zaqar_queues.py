# SPDX-License-Identifier: Apache-2.0
"""Messages into a Zaqar queue of any project, over Zaqar's HTTP API, version 2.

Zaqar takes the project from the header X-Project-Id. Behind Keystone that header is none
of the client's: keystonemiddleware takes it away and puts the token's project there, for
an administrator's token, too. So there are three ways into a tenant's queue:

* *a token of the project* (``scope``): the service user has a role in it, best an
  inherited one on its domain. Zaqar's own policies ask for no role by name.
* *a signature*: Zaqar lets through without a token what is signed with its
  ``[signed_url] secret_key``, as its pre-signed URLs are; project, path, method and the
  time it ends are what is signed.
* *no Keystone*: where Zaqar has no ``auth_strategy``, the header counts as it is.

One thread calls it. Nothing is kept from one call to the next but tokens.
"""

from __future__ import annotations

import collections
import datetime
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from keystoneauth1 import adapter as keystone_adapter
from keystoneauth1 import exceptions as keystone
from oslo_serialization import jsonutils

#: Projects whose tokens are kept. One costs a call of Keystone's to get, and 10 kB to keep.
MAX_SCOPES = 1000
#: What is signed serves for as long: clocks differ.
SIGNED_FOR = datetime.timedelta(minutes=15)
_CREATED = 201
_TOO_MANY = 429
_DATE_FORMAT = "%Y-%m-%dT%H:%M:%S"


@attrs.frozen
class Posted:
    """Zaqar has the messages."""


@attrs.frozen
class Refused:
    """Keystone or Zaqar will not have them from this project, and would not if asked again."""

    reason: str


@attrs.frozen
class Unreachable:
    """Nobody answered, or not for want of something that passes. Zaqar may have them or not."""

    reason: str


Answer = Posted | Refused | Unreachable


def signed_headers(key: str, project_id: str, path: str, now: datetime.datetime) -> dict[str, str]:
    """Return the headers that let a POST to a path through without a token.

    As ``zaqar.common.urls`` of Zaqar 2 (Liberty) to 23 reads them: what stands between
    the parts is a backslash and an n.

    :param now: in UTC
    """
    expires = (now + SIGNED_FOR).strftime(_DATE_FORMAT)
    signed = rf"{path}\nPOST\n{project_id}\n{expires}"
    return {
        "URL-Paths": path,
        "URL-Methods": "POST",
        "URL-Expires": expires,
        "URL-Signature": hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest(),
    }


@attrs.define(eq=False)
class ZaqarQueues:
    """The queue of one name in each project.

    :param queue: its name
    :param client_id: a uuid: Zaqar does not show a client its own messages
    :param make_adapter: makes what sends requests, with the auth plugin it is given
    :param scope: makes an auth plugin of a project; None where one serves for all
    :param auth: that one; None where nobody is to be asked for a token or an endpoint
    :param signing_key: Zaqar's own, where messages are signed
    :param now: in UTC
    """

    _queue: str
    _client_id: str
    _make_adapter: Callable[[Any], keystone_adapter.Adapter]
    _scope: Callable[[str], Any] | None = None
    _auth: Any = None
    _signing_key: str = attrs.field(default="", repr=False)
    _now: Callable[[], datetime.datetime] = attrs.field(
        default=lambda: datetime.datetime.now(datetime.UTC), kw_only=True
    )
    _adapters: collections.OrderedDict[str, keystone_adapter.Adapter] = attrs.field(
        init=False, factory=collections.OrderedDict
    )

    def post(self, project_id: str, messages: Sequence[Mapping[str, Any]]) -> Answer:
        """Post messages, each with ``ttl`` and ``body``, into a project's queue.

        May block as long as keystoneauth's timeouts and retries let it. The queue is
        made by its first message.
        """
        path = f"/v2/queues/{self._queue}/messages"
        headers = {
            "Client-ID": self._client_id,
            "X-Project-Id": project_id,
            "Accept": "application/json",
            "Content-Type": "application/json",
        }
        if self._signing_key:
            headers |= signed_headers(self._signing_key, project_id, path, self._now())
        try:
            answer = self._adapter(project_id).post(
                path,
                data=jsonutils.dump_as_bytes({"messages": list(messages)}),
                headers=headers,
                raise_exc=False,
                # A token that is sent along would not count, and might be of no use.
                authenticated=False if self._signing_key else None,
            )
        except keystone.HttpError as error:
            # Zaqar's own answers are none: it is Keystone's.
            return _judged(error.http_status, f"Keystone: {error}")
        except keystone.ClientException as error:
            return Unreachable(str(error))
        if answer.status_code == _CREATED:
            return Posted()
        return _judged(answer.status_code, f"Zaqar: {answer.status_code} {answer.text[:200]}")

    def _adapter(self, project_id: str) -> keystone_adapter.Adapter:
        """Return what sends requests for a project; that of projects behind the last go."""
        kept = project_id if self._scope is not None else ""
        if kept not in self._adapters:
            auth = self._auth if self._scope is None else self._scope(project_id)
            self._adapters[kept] = self._make_adapter(auth)
        self._adapters.move_to_end(kept)
        if len(self._adapters) > MAX_SCOPES:
            self._adapters.popitem(last=False)
        return self._adapters[kept]


def _judged(status: int, reason: str) -> Answer:
    """Return what a status that is no success means: would it be another a second later?"""
    if status == _TOO_MANY or status >= 500:
        return Unreachable(reason)
    return Refused(reason)
