"""Every way in which the service refuses, as data.

A refusal has a suffix (the end of the `error-code` trailer), a gRPC status by name and a text. No
grpc here: the servicer turns names into statuses. Rows marked `confirmed` were seen on the real
service; the status of the others is a guess, which `Settings.statuses` can override.
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
"""The gRPC status names that a refusal can have: all but OK."""


@dataclass(frozen=True)
class Failure:
    """One row of the table.

    Attributes:
        status: Name of the gRPC status.
        text: Status text, without the rpc id; `{…}` are the names given to `Refused`.
        confirmed: Whether the status was seen on the real service.
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
        "RESOURCE_EXHAUSTED", "Too many requests came in on this stream."
    ),
    "service.tenant.license": Failure("PERMISSION_DENIED", "The org has no licence for this API."),
    "concurrent.client.limit.exceeded": Failure(
        "RESOURCE_EXHAUSTED", "The org has reached its number of concurrent clients."
    ),
    # Topics and schemas.
    "topic.not.found": Failure(
        "NOT_FOUND", "Org {tenant} has no topic {topic} that you may see.", confirmed=True
    ),
    "topic.meta.permission": Failure(
        "PERMISSION_DENIED", "Metadata of topic {topic} in org {tenant} is not open to you."
    ),
    "topic.api.unavailable": Failure("UNAVAILABLE", "Topic metadata can't be read at the moment."),
    "topic.validation.empty": Failure("INVALID_ARGUMENT", "The topic name can't be blank."),
    "schema.meta.permission": Failure("PERMISSION_DENIED", "The schema is not open to you."),
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
        "INTERNAL", "An event came with a position before that of its predecessor."
    ),
    "subscription.fetch.requested.events.invalid": Failure(
        "INVALID_ARGUMENT", "The number of requested events must be above 0.", confirmed=True
    ),
    "subscription.fetch.overflow": Failure(
        "INVALID_ARGUMENT", "Events asked for earlier have not been taken yet."
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
    # Used only when Settings.idle_close says "error"; the real suffix is not known.
    "subscription.fetch.idle.timeout": Failure(
        "DEADLINE_EXCEEDED", "No events were asked for in the last {seconds} seconds."
    ),
    # Publish.
    "publish.event.count.invalid": Failure("INVALID_ARGUMENT", "The request has no events."),
    "publish.topic.mismatch": Failure(
        "INVALID_ARGUMENT",
        "Topic {topic} differs from {expected}, with which the stream began.",
        confirmed=True,
    ),
    "publish.topic.validation.empty": Failure("INVALID_ARGUMENT", "The topic name can't be blank."),
    # The real suffix for publishing where it is not allowed is not known.
    "publish.topic.cannot.publish": Failure(
        "PERMISSION_DENIED", "You may not publish to topic {topic}."
    ),
    "publish.stream.sweeper.timeout": Failure(
        "DEADLINE_EXCEEDED", "No PublishRequest came in the last {seconds} seconds."
    ),
    # ManagedSubscribe.
    "managed.subscription.already.active": Failure(
        "ALREADY_EXISTS",
        "An active stream holds managed subscription {subscription}. Its end can take a while to "
        "be noticed: try again later.",
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
    # Status seen live; the suffix is not known.
    "managed.subscription.commit.deadline.exceeded": Failure(
        "DEADLINE_EXCEEDED",
        "No CommitReplayRequests came in the last {seconds} seconds. The stream is closed.",
        confirmed=True,
    ),
}
"""The rows, by suffix."""


class Refused(Exception):  # noqa: N818 - the service's own word for what it does, not a bug of ours
    """The service ends a call, with trailers.

    Args:
        suffix: Key of `FAILURES`.
        status: Status name instead of the row's; for faults.
        text: Instead of the row's, where one suffix stands for several causes.
        **names: What the row's text mentions.
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
    """The infrastructure ends a call: no error-code, no rpc-id.

    Args:
        status: Name of a gRPC status; "OK" for a clean end, "RESET" to cut the HTTP/2 stream.
        text: What is said; blank for what proxies say.
    """

    def __init__(self, status: str, text: str = "") -> None:
        self.status = status
        self.text = text
        super().__init__(status)


class _Names(dict[str, object]):
    """Names for a text; one that a fault does not know becomes a dash."""

    def __missing__(self, key: str) -> str:
        return "-"
