"""Every error that sfpubsub raises, as one tree.

::

    SfPubSubError
     ├── ConfigurationError            a setting, option or destination is wrong
     │    ├── OtherOrgError            the session or the events are of another org than before
     │    ├── FilteredObjectError      a channel delivers only some events of a mirrored object
     │    └── MissingExtraError        an optional dependency is not installed (also an ImportError)
     ├── AuthenticationError           the credentials were refused
     │    └── SessionExpiredError      the session is no longer accepted; a new one may be
     ├── ProtocolError
     │    ├── LocalProtocolError       the caller broke a rule of this library
     │    │    └── SubscriptionClosedError  the subscription has already ended
     │    └── RemoteProtocolError      the service broke a rule of the wire contract
     ├── StreamError                   a call or stream failed
     │    ├── StreamUnavailableError   network, restart, overload: the same call may work later
     │    ├── StreamStalledError       no message, or no ack, for too long
     │    ├── ReplayIdRejectedError    the service does not accept the position (has a Gap)
     │    ├── TopicNotFoundError       no such topic or channel
     │    ├── SubscriptionNotFoundError  no such managed subscription
     │    ├── PermissionDeniedError    the user or the org lacks a permission
     │    ├── QuotaExceededError       an allocation of the org is used up
     │    ├── SubscriptionStoppedError an administrator stopped or deleted the subscription
     │    └── SubscriptionBusyError    another client uses the managed subscription
     ├── CommitError                   a position could not be committed
     ├── SchemaError
     │    ├── SchemaNotFoundError      the service has no schema with this id
     │    ├── DecodeError              a payload does not fit its schema
     │    └── EncodeError              a value does not fit the schema
     ├── PublishError                  events were refused, or got no result in time
     ├── HandlerError                  a handler failed on an event (has its position)
     ├── RequestRefusedError           the org refused an HTTP request (has its status)
     │    └── ReadExpiredError         a running query or job has expired: start it again
     └── WriteError                    a table, a file or the quarantine could not be written

Messages are lower-case sentences that name the affected object and what to do next. The cause is
chained.
"""

from __future__ import annotations

from typing import Any

from sfpubsub.types import Gap, PublishResult, ReplayId


class SfPubSubError(Exception):
    """Base of all errors of this package. Survives pickling with its attributes.

    Args:
        message: A lower-case sentence that names the cause and what to do next.
        retryable: Whether the same call may succeed later; by default, the value of the class.
        error_code: The service's ``error-code`` trailer, if any.
        rpc_id: The service's id for the failed call, for Salesforce support, if known.
    """

    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        error_code: str | None = None,
        rpc_id: str | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.error_code = error_code
        self.rpc_id = rpc_id

    def __reduce__(self) -> tuple[Any, ...]:
        # The inherited method calls the class with only args, which loses keyword arguments.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[SfPubSubError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigurationError(SfPubSubError):
    """A setting, an option or a destination is wrong."""


class OtherOrgError(ConfigurationError):
    """The session or the events are of another org than before, or than the data of a table."""


class FilteredObjectError(ConfigurationError):
    """A channel has a filter for an object, so its mirror would be a subset for ever."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package: pip install 'sfpubsub[{extra}]'")
        self.extra = extra


class AuthenticationError(SfPubSubError):
    """The service refused the credentials."""


class SessionExpiredError(AuthenticationError):
    """The session is no longer accepted; a new one may be accepted."""


class ProtocolError(SfPubSubError):
    """The caller or the service broke a protocol rule; see the subclasses."""


class LocalProtocolError(ProtocolError):
    """The caller broke a rule of this library, and the call had no effect.

    It is also raised if the service rejects a request as malformed. With the Pub/Sub API, that is a
    bug in this library, and the message says so. With the Streaming API, the cause may also be the
    name or the filter of the channel.
    """


class SubscriptionClosedError(LocalProtocolError):
    """A batch was requested from a subscription that was stopped, drained or aborted."""


class RemoteProtocolError(ProtocolError):
    """The service sent something that the wire contract does not allow."""


class StreamError(SfPubSubError):
    """A call or stream of the Pub/Sub API or the Streaming API failed; see the subclasses."""


class StreamUnavailableError(StreamError):
    """The service or the network is temporarily unavailable.

    Args:
        retry_after: Seconds to wait before the next attempt; None if the service does not say.
    """

    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class StreamStalledError(StreamError):
    """Nothing was received, or nothing was acked, for longer than allowed."""

    retryable = True


class ReplayIdRejectedError(StreamError):
    """The service does not accept the position to resume from.

    Args:
        gap: The gap that results if the subscription continues from another position; None if it is
            not known.
    """

    def __init__(self, message: str, *, gap: Gap | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.gap = gap


class TopicNotFoundError(StreamError):
    """There is no such topic or channel."""


class SubscriptionNotFoundError(StreamError):
    """There is no such managed subscription, or it is too new for the service to find it."""


class PermissionDeniedError(StreamError):
    """The user or the org lacks a permission for the call."""


class QuotaExceededError(StreamError):
    """An allocation of the org is used up."""


class SubscriptionStoppedError(StreamError):
    """The managed subscription is in state STOP, or was deleted."""


class SubscriptionBusyError(StreamError):
    """The managed subscription is in use by another client, or still held by a lost connection."""

    retryable = True


class CommitError(SfPubSubError):
    """A position could not be committed. Uncommitted events are redelivered after a reconnect."""


class SchemaError(SfPubSubError):
    """A problem with an Avro schema; see the subclasses."""


class SchemaNotFoundError(SchemaError):
    """The service has no schema with this id."""


class DecodeError(SchemaError):
    """An event's payload does not fit the event's schema."""


class EncodeError(SchemaError):
    """An event cannot be encoded: it does not fit the topic's schema, or is too large."""


class PublishError(SfPubSubError):
    """One or more events were refused, or got no result in time.

    Args:
        results: The results of all events in order (from `PubSubClient.publish`), or those of at
            most 1,000 failed events (from a `Publisher`). A failed event's result has an error.
    """

    def __init__(
        self, message: str, *, results: list[PublishResult] | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.results: list[PublishResult] = results or []


class HandlerError(SfPubSubError):
    """A handler, or the ``key`` function of `run`, failed permanently on an event. `run` has ended.

    The exception that the handler or ``key`` raised is chained as the cause.

    Args:
        event_id: Id of the event; can be empty.
        replay_id: Position of the event. The event was not acked; it will be redelivered if the
            subscription's position is stored, by the service or by a replay store.
        subscription: The topic, or the managed subscription's name or id, that delivered the event.
    """

    def __init__(
        self,
        message: str,
        *,
        event_id: str = "",
        replay_id: ReplayId | None = None,
        subscription: str = "",
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.event_id = event_id
        self.replay_id = replay_id
        self.subscription = subscription


class RequestRefusedError(SfPubSubError):
    """The org refused an HTTP request; ``error_code`` is Salesforce's own code.

    Args:
        status: HTTP status code; 0 if the org reported the refusal in another way, as for a failed
            bulk job.
    """

    def __init__(self, message: str, *, status: int = 0, **details: Any) -> None:
        super().__init__(message, **details)
        self.status = status


class ReadExpiredError(RequestRefusedError):
    """The query or job has expired in the org: start the read again."""


class WriteError(SfPubSubError):
    """A table, a file or the quarantine could not be written.

    Events that could not be written to the raw table or to the quarantine were not acked.
    """
