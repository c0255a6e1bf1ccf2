# SPDX-License-Identifier: Apache-2.0
"""What a failed request says of the write that it carried, told once for all.

What became of the request must be read out of the exception or out of the
answer's body: a compare-and-set that was refused may be tried again, one whose
answer is lost may have been carried out.
"""

from __future__ import annotations

import enum
import json

import urllib3.exceptions

#: Codes of gRPC that the gateway passes on.
_CODES = {
    3: "invalid argument",
    5: "not found",
    7: "permission denied",
    8: "resource exhausted",
    9: "failed precondition",
    11: "out of range",
    12: "unimplemented",
    15: "data loss",
    16: "unauthenticated",
}


class Kind(enum.Enum):
    """What is known of a request that failed."""

    #: No connection: another member may be asked.
    NOT_SENT = enum.auto()
    #: This member cannot serve it now, and has not begun to.
    NO_LEADER = enum.auto()
    #: It was refused as a whole.
    REFUSED = enum.auto()
    #: The token is missing, old or expired.
    UNAUTHENTICATED = enum.auto()
    PERMISSION_DENIED = enum.auto()
    #: The NOSPACE alarm is up: nothing is written any more. But the write that
    #: raised it was carried out, and is answered with the same words.
    FULL = enum.auto()
    #: The revision that was asked for is not kept any more.
    COMPACTED = enum.auto()
    #: The store has not come to the revision that was asked for.
    AHEAD = enum.auto()
    #: Certificates do not fit; or the answer was spoilt, or the member ended the connection
    #: by an alert, which looks alike.
    TLS = enum.auto()
    #: It may or may not have been carried out.
    UNSURE = enum.auto()
    #: The same, and the time-out is used up.
    TIMED_OUT = enum.auto()


#: The connection broke, or the member is of no use: another try costs little.
RETRIED_READS = frozenset({Kind.NOT_SENT, Kind.NO_LEADER, Kind.UNSURE})
#: About the revision that was asked for: nothing was read, nothing written.
OF_REVISION = frozenset({Kind.COMPACTED, Kind.AHEAD})
#: After these nothing is known of a write.
UNKNOWN = frozenset({Kind.UNSURE, Kind.TIMED_OUT, Kind.TLS})
#: After these who sent a write has to look what became of it.
IN_DOUBT = UNKNOWN | {Kind.FULL}


class Failure(Exception):
    """A request failed; translated into the project's errors by the connection."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text

    def __str__(self) -> str:
        return self.text


def of_exception(error: BaseException) -> Failure:
    """Say what an exception of urllib3 means."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, urllib3.exceptions.SSLError):
        return Failure(Kind.TLS, text)
    if isinstance(
        error, urllib3.exceptions.ConnectTimeoutError | urllib3.exceptions.NewConnectionError
    ):
        return Failure(Kind.NOT_SENT, text)
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return Failure(Kind.TIMED_OUT, text)
    return Failure(Kind.UNSURE, text)


def of_answer(body: str) -> Failure:
    """Say what an answer other than success means; its body is the gateway's JSON."""
    try:
        answer = json.loads(body)
        text, code = str(answer.get("error") or answer.get("message")), int(answer.get("code", 2))
    except (ValueError, AttributeError):
        return Failure(Kind.UNSURE, body[:300])
    return of_status(code, text)


def of_status(code: int, text: str) -> Failure:
    """Say what a status of gRPC means."""
    for phrase, kind in (
        ("database space exceeded", Kind.FULL),
        ("has been compacted", Kind.COMPACTED),
        ("is a future revision", Kind.AHEAD),
        ("no leader", Kind.NO_LEADER),
        ("user name is empty", Kind.UNAUTHENTICATED),
        ("invalid auth token", Kind.UNAUTHENTICATED),
        ("revision of auth store is old", Kind.UNAUTHENTICATED),
        ("revision in header is old", Kind.UNAUTHENTICATED),
        ("permission denied", Kind.PERMISSION_DENIED),
    ):
        if phrase in text:
            return Failure(kind, text)
    if code == 16:
        return Failure(Kind.UNAUTHENTICATED, text)
    return Failure(Kind.REFUSED if code in _CODES else Kind.UNSURE, text)
