# SPDX-License-Identifier: Apache-2.0
"""The edge to etcd: a pool for each member, members in turn, failures translated once.

Requests go in JSON through the gateway, by urllib3. A session of ``requests`` on
top of it was 1 ms of CPU for each request, as much as all that etcd did for it.

No library retries anything: a write that is sent twice is a write too many.
What may be sent again (it was not sent, or is a read) is sent again here, to
the next member, as long as the time-out lasts.
"""

from __future__ import annotations

import functools
import http
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import certifi
import orjson
import urllib3
import urllib3.exceptions
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures
from nova_nodb_scheduler.synchronizer.drivers.etcd import options as options_module

LOG = log.getLogger(__name__)

POOLED_CONNECTIONS = 64
API_PATH = "/v3"
AUTHENTICATE = f"{API_PATH}/auth/authenticate"


class Session:
    """Requests to one member; any thread may call.

    :param note: told the Date of each answer, and when request and answer
        passed (monotonic seconds)
    """

    def __init__(
        self,
        endpoint: options_module.Endpoint,
        settings: options_module.EtcdOptions,
        note: Callable[[str | None, float, float], None],
    ) -> None:
        self._note = note
        self.token: str | None = None
        pool: dict[str, Any] = {"maxsize": POOLED_CONNECTIONS, "retries": False}
        if endpoint.scheme == "https":
            self._pool: urllib3.HTTPConnectionPool = urllib3.HTTPSConnectionPool(
                endpoint.host,
                endpoint.port,
                cert_reqs="CERT_REQUIRED",
                ca_certs=settings.tls_cafile or certifi.where(),
                cert_file=settings.tls_certfile,
                key_file=settings.tls_keyfile,
                **pool,
            )
        else:
            self._pool = urllib3.HTTPConnectionPool(endpoint.host, endpoint.port, **pool)

    def request(self, path: str, body: Mapping[str, Any] | None, timeout_seconds: float) -> Any:
        """Send a request and return what its answer holds.

        :param body: None: get what stands there
        :raises urllib3.exceptions.HTTPError, OSError: there is no answer
        :raises ValueError: it is no JSON
        :raises Failure: it is a refusal
        """
        headers = {} if body is None else {"Content-Type": "application/json"}
        # With an expired token etcd refuses to give a new one.
        if self.token is not None and body is not None and path != AUTHENTICATE:
            headers["Authorization"] = self.token
        sent_at = time.monotonic()
        response = self._pool.urlopen(
            "GET" if body is None else "POST",
            path,
            None if body is None else orjson.dumps(body),
            headers,
            timeout=timeout_seconds,
            redirect=False,
        )
        self._note(response.headers.get("Date"), sent_at, time.monotonic())
        if response.status != http.HTTPStatus.OK:
            text = response.data.decode(errors="replace")
            raise failures.of_answer(text or f"{response.status} {response.reason}")
        return orjson.loads(response.data)

    def close(self) -> None:
        """Drop idle connections; those in use end with their calls."""
        self._pool.close()


_FAILED = (urllib3.exceptions.HTTPError, OSError, ValueError)

Reply = Mapping[str, Any]

_REMEDIES = {
    failures.Kind.TLS: (
        f"check [{options_module.GROUP}] endpoints (https or http?), tls_cafile, "
        "tls_certfile and tls_keyfile"
    ),
    failures.Kind.UNAUTHENTICATED: (
        f"etcd asks for credentials: check [{options_module.GROUP}] username and password"
    ),
    failures.Kind.PERMISSION_DENIED: (
        f"grant the role of [{options_module.GROUP}] username readwrite on the prefix key_prefix"
    ),
}


def label_of(settings: options_module.EtcdOptions) -> str:
    """Return what messages call an etcd, without credentials."""
    endpoints = map(options_module.Endpoint.parse, settings.endpoints)
    return f"etcd at {', '.join(map(str, endpoints))}"


class Connection:
    """Requests to one etcd cluster; any thread may call.

    :param note: told the Date of each answer, and when request and answer
        passed (monotonic seconds)
    """

    def __init__(
        self,
        settings: options_module.EtcdOptions,
        note: Callable[[str | None, float, float], None],
    ) -> None:
        self._settings = settings
        self._note = note
        self.endpoints = tuple(options_module.Endpoint.parse(url) for url in settings.endpoints)
        self.label = label_of(settings)
        self._lock = threading.Lock()
        self._sessions: tuple[Session, ...] = ()
        self._preferred = 0
        self.token: str | None = None
        #: Of each member's last answer: its Date, when it was asked, and when it came.
        self.dates: dict[options_module.Endpoint, tuple[str | None, float, float]] = {}
        #: Cluster of the last answer, and when its request was sent.
        self.cluster = ""
        self.answered_at = float("-inf")

    def open(self) -> None:
        """Make the pools; connections are made as needed. Idempotent."""
        with self._lock:
            if self._sessions:
                return
            self._sessions = tuple(
                Session(endpoint, self._settings, functools.partial(self._noted, endpoint))
                for endpoint in self.endpoints
            )

    def close(self) -> None:
        """Drop idle connections; those in use end with their calls."""
        with self._lock:
            sessions, self._sessions, self.token = self._sessions, (), None
            self.answered_at = float("-inf")
        for session in sessions:
            session.close()

    @property
    def preferred(self) -> options_module.Endpoint:
        """The member that requests go to now."""
        return self.endpoints[self._preferred]

    def call(self, path: str, body: Reply) -> Reply:
        """Send a request that may be sent twice without harm.

        :raises BackendUnavailable: no member answered it
        :raises Failure: it is about a revision, see :data:`failures.OF_REVISION`
        """
        return self._call(path, body, failures.RETRIED_READS)

    def write(self, body: Reply) -> Reply:
        """Send a transaction, once.

        :raises BackendUnavailable: it was not carried out
        :raises Failure: it may have been, see :data:`failures.IN_DOUBT`; or it
            was not, for the sake of :data:`failures.OF_REVISION`
        """
        sendable = frozenset({failures.Kind.NOT_SENT, failures.Kind.NO_LEADER})
        return self._call("/kv/txn", body, sendable)

    def ask(self, endpoint: int, path: str, body: Reply | None = None) -> Reply:
        """Ask one member; a GET outside of the API where there is no body.

        :raises Failure: it does not answer
        """
        if body is not None:
            path = API_PATH + path
        sessions = self._sessions
        if not sessions:
            raise failures.Failure(failures.Kind.NOT_SENT, "this client is closed")
        try:
            reply: Reply = sessions[endpoint].request(path, body, self._settings.timeout_seconds)
        except _FAILED as error:
            raise failures.of_exception(error) from error
        return reply

    def authenticate(self) -> None:
        """Get a token for the configured user, where there is one.

        :raises Failure: it is refused
        """
        if self._settings.username is None:
            return
        body = {"name": self._settings.username, "password": self._settings.password}
        try:
            reply = self.ask(self._preferred, "/auth/authenticate", body)
        except failures.Failure as failure:
            if "not enabled" not in failure.text:
                raise
            LOG.warning(
                "[%(group)s] username is set, but authentication is not enabled in %(label)s: "
                "anybody who reaches it can change host states",
                {"group": options_module.GROUP, "label": self.label},
            )
            return
        self._use_token(reply["token"])

    def unavailable(self, reason: str) -> errors.BackendUnavailable:
        return errors.BackendUnavailable(self.label, reason)

    def translate(self, failure: failures.Failure) -> errors.BackendUnavailable:
        """Return the project's error, with what to do about it."""
        reason = failure.text
        if failure.kind is failures.Kind.FULL:
            reason = f"{reason}: {self._remedy_of_a_full_store()}"
        elif failure.kind in _REMEDIES:
            reason = f"{reason}: {_REMEDIES[failure.kind]}"
        return self.unavailable(reason)

    def prefer(self, endpoint: int) -> None:
        """Ask a member first, by its place among the endpoints."""
        with self._lock:
            self._preferred = endpoint

    def avoid(self, endpoint: options_module.Endpoint) -> None:
        """Ask the next member from now on, if this one is asked still."""
        with self._lock:
            if self.preferred == endpoint:
                self._preferred = (self._preferred + 1) % len(self.endpoints)

    def _call(self, path: str, body: Reply, retried: frozenset[failures.Kind]) -> Reply:
        if not self._sessions:
            raise self.unavailable("this client is closed")
        deadline = time.monotonic() + self._settings.timeout_seconds
        authenticated = False
        attempts_left = max(2, len(self.endpoints))
        while True:
            number = self._preferred
            sent_at = time.monotonic()
            try:
                reply = self.ask(number, path, body)
            except failures.Failure as failure:
                if failure.kind is failures.Kind.UNAUTHENTICATED and not authenticated:
                    authenticated = True
                    self._authenticate_again(failure)
                    continue
                if failure.kind in retried | failures.UNKNOWN:
                    self.avoid(self.endpoints[number])
                attempts_left -= 1
                late = time.monotonic() >= deadline
                if failure.kind in retried and attempts_left and not late:
                    continue
                if failure.kind in failures.OF_REVISION:
                    raise
                if failure.kind in failures.IN_DOUBT and failures.Kind.UNSURE not in retried:
                    raise
                raise self.translate(failure) from failure
            self.cluster = str(reply["header"]["cluster_id"])
            self.answered_at = max(self.answered_at, sent_at)
            return reply

    def _authenticate_again(self, failure: failures.Failure) -> None:
        if self._settings.username is None:
            raise self.translate(failure) from failure
        try:
            self.authenticate()
        except failures.Failure as refused:
            raise self.translate(refused) from refused

    def _use_token(self, token: str) -> None:
        with self._lock:
            self.token = token
            for session in self._sessions:
                session.token = token

    def _remedy_of_a_full_store(self) -> str:
        """Say how to get a full etcd to write again; the alarm names its members."""
        members = ""
        try:
            reply = self.ask(self._preferred, "/maintenance/alarm", {"action": "GET"})
            members = ", ".join(
                f"{int(alarm['memberID']):x} (memberID {alarm['memberID']})"
                for alarm in reply.get("alarms", ())
            )
        except failures.Failure:
            members = "unknown"
        return (
            "nothing is lost, and nothing can be written. Compact ('etcdctl compact <revision>'), "
            "defragment ('etcdctl defrag') and disarm the alarm ('etcdctl alarm disarm'; through "
            'the gateway POST /v3/maintenance/alarm {"action": "DEACTIVATE", "alarm": "NOSPACE", '
            f'"memberID": ...}}) of the members {members}; then start etcd with '
            "--auto-compaction-retention=10m or a greater --quota-backend-bytes"
        )

    def _noted(
        self,
        endpoint: options_module.Endpoint,
        date: str | None,
        sent_at: float,
        received_at: float,
    ) -> None:
        self.dates[endpoint] = (date, sent_at, received_at)
        self._note(date, sent_at, received_at)
