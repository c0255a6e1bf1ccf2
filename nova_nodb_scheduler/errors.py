# SPDX-License-Identifier: Apache-2.0
"""Every exception of the project, below one root.

Expected refusals (a lost compare-and-set, a full host) are values, see
:mod:`nova_nodb_scheduler.model`. What is raised is a surprise or a mistake of
the operator, and its text says what to do about it.

Each class passes its constructor's arguments to ``super().__init__`` and
formats in ``__str__``, so that oslo.messaging can rebuild it on the caller's
side of an RPC.
"""

from __future__ import annotations


class NodbError(Exception):
    """Root of all errors of this project."""


class ConfigurationError(NodbError):
    """An option has a value that cannot work.

    :param option: the option, as ``[group] name``
    :param value: what was configured
    :param remedy: what to set instead, choices included
    """

    def __init__(self, option: str, value: object, remedy: str) -> None:
        super().__init__(option, value, remedy)
        self.option, self.value, self.remedy = option, value, remedy

    def __str__(self) -> str:
        return f"{self.option} = {self.value!r} cannot be used: {self.remedy}"


class UnsupportedRelease(NodbError):
    """The installed Nova is not one this plugin was tested with.

    :param found: the release found
    :param supported: the releases supported, as text
    """

    def __init__(self, found: str, supported: str) -> None:
        super().__init__(found, supported)
        self.found, self.supported = found, supported

    def __str__(self) -> str:
        return (
            f"Nova {self.found} is not supported (supported: {self.supported}). "
            "Remove the plugin's lines from nova.conf, or install a plugin "
            "release that supports it."
        )


class UnsupportedPlacement(NodbError):
    """The installed Placement is not one whose writing of allocations can be guarded.

    :param found: the release found
    :param function: what is not known of it, dotted
    :param supported: the releases supported, as text
    """

    def __init__(self, found: str, function: str, supported: str) -> None:
        super().__init__(found, function, supported)
        self.found, self.function, self.supported = found, function, supported

    def __str__(self) -> str:
        return (
            f"{self.function} of Placement {self.found} is none that the guard knows (supported: "
            f"{self.supported}). Name placement.wsgi.api:application to the WSGI server, which "
            "is not guarded, or install a plugin release that knows this Placement."
        )


class BackendUnavailable(NodbError):
    """The back end did not answer; nothing is known to have been written.

    :param backend: driver name and address, without credentials
    :param reason: what the client library said
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(backend, reason)
        self.backend, self.reason = backend, reason

    def __str__(self) -> str:
        return (
            f"Synchronizer back end {self.backend} is unavailable: {self.reason}. "
            "Check that it runs and that this host reaches it; the plugin "
            "connects again by itself."
        )


class SchemaMismatch(NodbError):
    """The back end's schema is absent, older or newer than this release needs.

    :param backend: driver name and address, without credentials
    :param found: revision found, or ``none``
    :param needed: revision this release needs
    """

    def __init__(self, backend: str, found: str, needed: str) -> None:
        super().__init__(backend, found, needed)
        self.backend, self.found, self.needed = backend, found, needed

    def __str__(self) -> str:
        return (
            f"The schema of {self.backend} is at revision {self.found}, this "
            f"release needs {self.needed}: run 'nova-nodb-manage db sync'."
        )


#: What a back end that is absent, not migrated or not usable raises; an
#: operator can mend each of them while a process runs.
NOT_USABLE = (BackendUnavailable, SchemaMismatch, ConfigurationError)


class StoreMissing(NodbError):
    """Who only looks found no store, and does not make one.

    :param backend: driver name and address, without credentials
    """

    def __init__(self, backend: str) -> None:
        super().__init__(backend)
        self.backend = backend

    def __str__(self) -> str:
        return (
            f"The store of {self.backend} does not exist yet, and what only looks does not make "
            "it. The first service that starts with the plugin does, and so does "
            "'nova-nodb-manage db sync': run that as the user of Nova's services, who must be "
            "able to write it."
        )


class CapabilityMissing(NodbError):
    """A driver was asked for what it does not declare.

    :param driver: driver name
    :param capability: what was asked for
    """

    def __init__(self, driver: str, capability: str) -> None:
        super().__init__(driver, capability)
        self.driver, self.capability = driver, capability

    def __str__(self) -> str:
        return f"Synchronizer driver {self.driver} does not offer {self.capability}."


class PayloadTooLarge(NodbError):
    """A record is larger than the back end takes; it was not sent.

    :param key: ``namespace/key`` of the record
    :param size_bytes: its encoded size
    :param limit_bytes: the driver's declared limit
    """

    def __init__(self, key: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(key, size_bytes, limit_bytes)
        self.key, self.size_bytes, self.limit_bytes = key, size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"Record {self.key} has {self.size_bytes} bytes, more than the "
            f"{self.limit_bytes} the back end takes; raise the engine's limit."
        )


class UndecodableRecord(NodbError):
    """A record's bytes are not what any supported schema writes.

    :param reason: what is wrong with them
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"Undecodable record: {self.reason}."


class InvalidRecord(NodbError):
    """A state does not fit its namespace's declaration.

    :param record: ``namespace/key`` of the record
    :param field: the offending field, dotted
    :param reason: what is wrong with its value
    """

    def __init__(self, record: str, field: str, reason: str) -> None:
        super().__init__(record, field, reason)
        self.record, self.field, self.reason = record, field, reason

    def __str__(self) -> str:
        return f"Record {self.record}, field {self.field}: {self.reason}."


class UnknownNamespace(NodbError):
    """No namespace of that name is declared.

    :param namespace: the name asked for
    :param known: the declared names, comma separated
    """

    def __init__(self, namespace: str, known: str) -> None:
        super().__init__(namespace, known)
        self.namespace, self.known = namespace, known

    def __str__(self) -> str:
        return f"Namespace {self.namespace!r} is not declared (declared: {self.known})."


class NotOwner(NodbError):
    """A writer is not the owner of the namespace it wants to write.

    :param namespace: the namespace
    :param owner: who owns it
    :param writer: who asked
    """

    def __init__(self, namespace: str, owner: str, writer: str) -> None:
        super().__init__(namespace, owner, writer)
        self.namespace, self.owner, self.writer = namespace, owner, writer

    def __str__(self) -> str:
        return (
            f"Namespace {self.namespace} belongs to {self.owner!r}; "
            f"{self.writer!r} may read it but not write it."
        )


class LimitExceeded(NodbError):
    """A request is larger or more frequent than the server accepts.

    :param what: the quantity that is bounded
    :param value: what was asked
    :param limit: the bound
    :param option: the option that sets it
    """

    def __init__(self, what: str, value: float, limit: float, option: str) -> None:
        super().__init__(what, value, limit, option)
        self.what, self.value, self.limit, self.option = what, value, limit, option

    def __str__(self) -> str:
        return (
            f"{self.what} is {self.value:g}, the limit is {self.limit:g}: send "
            f"less at a time, or raise {self.option}."
        )


class InvalidArgument(NodbError):
    """An argument of an RPC method is not what the method takes.

    :param method: the method
    :param argument: which of its arguments
    :param reason: what is wrong with it, and what would be right
    """

    def __init__(self, method: str, argument: str, reason: str) -> None:
        super().__init__(method, argument, reason)
        self.method, self.argument, self.reason = method, argument, reason

    def __str__(self) -> str:
        return f"{self.method} cannot take its argument {self.argument}: {self.reason}."


class InvalidPredicate(NodbError):
    """A condition on a namespace's columns cannot be evaluated.

    :param namespace: whose columns
    :param condition: the condition as given
    :param reason: what is wrong with it, choices included
    """

    def __init__(self, namespace: str, condition: str, reason: str) -> None:
        super().__init__(namespace, condition, reason)
        self.namespace, self.condition, self.reason = namespace, condition, reason

    def __str__(self) -> str:
        return f"Condition {self.condition} on namespace {self.namespace}: {self.reason}."


class MarkerNotFound(NodbError):
    """The host behind which a page should begin is not there.

    :param marker: as it was given
    """

    def __init__(self, marker: str) -> None:
        super().__init__(marker)
        self.marker = marker

    def __str__(self) -> str:
        return (
            f"There is no compute node {self.marker} behind which a page could begin: it was "
            "deleted, or never was. List again from the start, or give the next_marker of the page "
            "before, which stands although its host is gone."
        )


class PendingNotFound(NodbError):
    """No request that waits for room is known for a server.

    :param server: uuid, as it was given
    """

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.server = server

    def __str__(self) -> str:
        return (
            f"No request of server {self.server} waits for room: it was placed, has ended, or "
            "never waited. nova-nodb-manage queue list shows those that do."
        )


class StatesNotProved(NodbError):
    """A scheduler cannot prove that it holds all hosts as they are; it lists none.

    :param scheduler: its host, and where it stands
    :param reasons: by cell, as text
    """

    def __init__(self, scheduler: str, reasons: str) -> None:
        super().__init__(scheduler, reasons)
        self.scheduler, self.reasons = scheduler, reasons

    def __str__(self) -> str:
        return (
            f"Scheduler {self.scheduler} cannot prove its host states, so hosts may be missing or "
            f"old: {self.reasons}. Ask again in a few seconds, or another scheduler (server); name "
            "a cell that is proved (cell), or take what it has (unproved=True)."
        )


class MethodNotServed(NodbError):
    """The scheduler that answered is of an older release than the caller.

    :param method: what was called
    :param version: of the RPC API that has it
    """

    def __init__(self, method: str, version: str) -> None:
        super().__init__(method, version)
        self.method, self.version = method, version

    def __str__(self) -> str:
        return (
            f"The scheduler that answered does not know {self.method} of version {self.version} of "
            "the nodb API: restart it with this release of the plugin, or ask one that has it."
        )


class InvalidRequest(NodbError):
    """A request that is to be explained cannot be understood.

    :param argument: what is wrong
    :param reason: in which way, and what would be right
    """

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, reason)
        self.argument, self.reason = argument, reason

    def __str__(self) -> str:
        return f"The request cannot be explained, for its {self.argument}: {self.reason}."


class NoAnswer(NodbError):
    """No scheduler answered over RPC.

    :param asked: which one was asked
    :param reason: what the messaging library said
    """

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(asked, reason)
        self.asked, self.reason = asked, reason

    def __str__(self) -> str:
        return (
            f"No answer from {self.asked}: {self.reason}. 'nova-nodb-manage status' lists "
            "the schedulers that run the plugin; check the message bus, too."
        )


class NoAnswerInTime(NodbError):
    """Something that was asked did not answer within its bound.

    :param bound_seconds: the bound
    :param why: what was heard of the reason meanwhile
    """

    def __init__(self, bound_seconds: float, why: str = "") -> None:
        super().__init__(bound_seconds, why)
        self.bound_seconds, self.why = bound_seconds, why

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"no answer within {self.bound_seconds:.2g} s{why}"


class NotReached(NodbError):
    """What a command needs is not reached; it has done nothing.

    :param what: what it is, with its address where that is known
    :param reason: what the client library said
    :param remedy: what to look at
    """

    def __init__(self, what: str, reason: str, remedy: str) -> None:
        super().__init__(what, reason, remedy)
        self.what, self.reason, self.remedy = what, reason, remedy

    def __str__(self) -> str:
        return f"{self.what} is not reached: {self.reason}. {self.remedy}."


class ConfigurationMissing(NodbError):
    """No configuration of Nova was found, and none was named.

    :param looked_at: the files that were looked for, comma separated
    """

    def __init__(self, looked_at: str) -> None:
        super().__init__(looked_at)
        self.looked_at = looked_at

    def __str__(self) -> str:
        return (
            f"There is no configuration of Nova to read: looked at {self.looked_at}. Name it with "
            "--config-file, or run this where nova-manage is run."
        )
