"""The service's error responses, as data.

An error has a suffix (the end of the `error-code` trailer), a gRPC status name and a message. This
module does not import grpc; the servicer maps names to statuses. The statuses of rows marked
`confirmed` were observed on the real service. The other statuses are guesses that
`Settings.statuses` can override.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "sfdc.platform.eventbus.grpc."
"""The part before the suffix in the `error-code` trailer."""

STATUSES = frozenset(
    {
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    }
)
"""gRPC status names that an error can have: all except OK."""


@dataclass(frozen=True)
class Failure:
    """The status and message of one error: a row of `FAILURES`.

    Attributes:
        status: Name of the gRPC status.
        text: Status message, without the rpc id. Its placeholders are filled with the keyword
            arguments of `Refused`.
        confirmed: Whether the status was observed on the real service.
    """

    status: str
    text: str
    confirmed: bool = False


FAILURES: dict[str, Failure] = {
    # Any RPC.
    "service.unavailable": Failure(
        "INTERNAL", "The service is unavailable. Try again later.", confirmed=True
    ),
    "service.auth.error": Failure(
        "UNAUTHENTICATED",
        "An authentication exception occurred. Provide valid authentication via metadata headers.",
        confirmed=True,
    ),
    "service.auth.headers.invalid": Failure(
        "UNAUTHENTICATED", "The metadata header {header} is missing, blank or malformed."
    ),
    "service.protection.triggered": Failure(
        "RESOURCE_EXHAUSTED",
        "The service received too many connections and doesn't have the resources to accept new "
        "connections.",
        confirmed=True,
    ),
    "service.protection.stream.limit.triggered": Failure(
        "RESOURCE_EXHAUSTED", "Too many requests were received on this stream."
    ),
    "service.tenant.license": Failure("PERMISSION_DENIED", "The org has no licence for this API."),
    "concurrent.client.limit.exceeded": Failure(
        "RESOURCE_EXHAUSTED", "The org has reached its limit of concurrent clients."
    ),
    # Topics and schemas.
    "topic.not.found": Failure(
        "NOT_FOUND", "Org {tenant} has no topic {topic} that you may see.", confirmed=True
    ),
    "topic.meta.permission": Failure(
        "PERMISSION_DENIED",
        "You don't have permission to read the metadata of topic {topic} in org {tenant}.",
    ),
    "topic.api.unavailable": Failure("UNAVAILABLE", "Topic metadata can't be read at the moment."),
    "topic.validation.empty": Failure("INVALID_ARGUMENT", "The topic name can't be blank."),
    "schema.meta.permission": Failure(
        "PERMISSION_DENIED", "You don't have permission to read the schema."
    ),
    "schema.api.unavailable": Failure("UNAVAILABLE", "Schemas can't be read at the moment."),
    "schema.validation.failed": Failure(
        "INVALID_ARGUMENT",
        "Schema validation failed. The schema ID can't be blank.",
        confirmed=True,
    ),
    # The real suffix for an unknown schema id is not known.
    "schema.not.found": Failure("NOT_FOUND", "There is no schema with the ID {schema_id}."),
    # Subscribe.
    "subscription.fetch.replayid.corrupted": Failure(
        "INVALID_ARGUMENT",
        "The Replay ID validation failed. Ensure that the Replay ID is valid.",
        confirmed=True,
    ),
    "subscription.fetch.replayid.validation.failed": Failure(
        "INVALID_ARGUMENT", "The CUSTOM replay preset needs a Replay ID.", confirmed=True
    ),
    "subscription.fetch.replay.repeated": Failure(
        "INTERNAL", "An event has a lower position than the event before it."
    ),
    "subscription.fetch.requested.events.invalid": Failure(
        "INVALID_ARGUMENT", "The number of requested events must be above 0.", confirmed=True
    ),
    "subscription.fetch.overflow": Failure(
        "INVALID_ARGUMENT", "The events requested earlier have not been delivered yet."
    ),
    "subscription.fetch.topic.mismatch": Failure(
        "INVALID_ARGUMENT",
        "Topic {topic} differs from {expected}, with which the stream began.",
        confirmed=True,
    ),
    "subscription.fetch.request.invalid": Failure("INVALID_ARGUMENT", "The request is empty."),
    "subscription.topic.cannot.subscribe": Failure(
        "PERMISSION_DENIED", "You may not subscribe to topic {topic}."
    ),
    "subscription.limit.exceeded": Failure(
        "RESOURCE_EXHAUSTED", "You have exceeded the event delivery limit for your org."
    ),
    "subscription.internal.error": Failure("INTERNAL", "The subscription failed."),
    # Used only if Settings.idle_close is "error"; the real suffix is not known.
    "subscription.fetch.idle.timeout": Failure(
        "DEADLINE_EXCEEDED", "No events were requested in the last {seconds} seconds."
    ),
    # Publish.
    "publish.event.count.invalid": Failure("INVALID_ARGUMENT", "The request has no events."),
    "publish.topic.mismatch": Failure(
        "INVALID_ARGUMENT",
        "Topic {topic} differs from {expected}, with which the stream began.",
        confirmed=True,
    ),
    "publish.topic.validation.empty": Failure("INVALID_ARGUMENT", "The topic name can't be blank."),
    # The real suffix for a topic that does not allow publishing is not known.
    "publish.topic.cannot.publish": Failure(
        "PERMISSION_DENIED", "You may not publish to topic {topic}."
    ),
    "publish.stream.sweeper.timeout": Failure(
        "DEADLINE_EXCEEDED", "No PublishRequest was received in the last {seconds} seconds."
    ),
    # ManagedSubscribe.
    "managed.subscription.already.active": Failure(
        "ALREADY_EXISTS",
        "Managed subscription {subscription} is in use by an active stream. If that stream has "
        "just ended, try again later.",
        confirmed=True,
    ),
    "managed.subscription.config.stopped": Failure(
        "FAILED_PRECONDITION", "Managed subscription {subscription} is in state STOP."
    ),
    "managed.subscription.config.deleted": Failure(
        "FAILED_PRECONDITION", "Managed subscription {subscription} was deleted."
    ),
    "managed.subscription.developer.name.not.found": Failure(
        "NOT_FOUND", "There is no managed subscription named {subscription}.", confirmed=True
    ),
    "managed.subscription.subscription.id.not.found": Failure(
        "NOT_FOUND", "There is no managed subscription with the ID {subscription}.", confirmed=True
    ),
    "managed.subscription.subscription.id.invalid": Failure(
        "INVALID_ARGUMENT",
        "{subscription} is not a managed subscription ID of 15 or 18 characters.",
    ),
    "managed.subscription.id.or.developer.name.empty": Failure(
        "INVALID_ARGUMENT",
        "Name the managed subscription by its ID or its developer name, not both.",
    ),
    "managed.subscription.fetch.request.events.invalid": Failure(
        "INVALID_ARGUMENT", "The number of requested events can't be below 0."
    ),
    "managed.subscription.fetch.request.invalid": Failure(
        "INVALID_ARGUMENT", "The request asks for no events, commits nothing and refreshes nothing."
    ),
    "managed.subscription.fetch.request.commit.request.restricted": Failure(
        "INVALID_ARGUMENT", "The first request can't commit."
    ),
    "managed.subscription.fetch.request.auth.request.restricted": Failure(
        "INVALID_ARGUMENT", "The first request can't refresh authentication."
    ),
    # The status was observed on the real service; the suffix is not known.
    "managed.subscription.commit.deadline.exceeded": Failure(
        "DEADLINE_EXCEEDED",
        "No CommitReplayRequest was received in the last {seconds} seconds. The stream is closed.",
        confirmed=True,
    ),
}
"""The errors, by suffix."""


class Refused(Exception):  # noqa: N818 - a response of the service, not a bug
    """Raised to end a call with one of the service's errors, including its trailers.

    Args:
        suffix: Key of `FAILURES`.
        status: Name of a gRPC status that replaces the status in `FAILURES`; used by faults.
        text: Message that replaces the text in `FAILURES`, for a suffix that has several causes.
        **names: Values for the placeholders in the text.
    """

    def __init__(
        self,
        suffix: str,
        *,
        status: str | None = None,
        text: str | None = None,
        **names: object,
    ) -> None:
        self.suffix = suffix
        self.status = status
        self.text: str = text or FAILURES[suffix].text.format_map(_Names(names))
        super().__init__(self.text)


class Dropped(Exception):  # noqa: N818 - as Refused
    """Raised to end a call as the infrastructure would, without the trailers error-code and rpc-id.

    Args:
        status: Name of a gRPC status; "OK" for a clean end, "RESET" to reset the HTTP/2 stream.
        text: Status message; if blank, the call ends with the message of a typical proxy.
    """

    def __init__(self, status: str, text: str = "") -> None:
        self.status = status
        self.text = text
        super().__init__(status)


class _Names(dict[str, object]):
    """Values for the placeholders in a message; a missing value becomes a dash."""

    def __missing__(self, key: str) -> str:
        return "-"
