"""Default values of timings and limits, each with its unit and reason."""

from __future__ import annotations

from dataclasses import dataclass

# Maximum number of events outstanding over all requests of one call; the service treats more as
# 100 (Salesforce documentation: flow control, allocations).
WINDOW = 100

# Number of events after which credit is returned. Returning 50 at a time needs half as many
# requests as 25, and never leaves the window empty on a fast link; measured best of 1, 10, 25, 50,
# 100.
RETURN_CREDIT_AT = 50

# Events requested before any event's size is known: ten of the largest fit into the default
# `Limits.max_bytes` several times, and reaching the whole window takes only one more round trip.
FIRST_CREDIT = 10

# Size of the largest event that the service accepts, in bytes (Salesforce documentation,
# allocations).
LARGEST_EVENT = 1024 * 1024


# Maximum events and bytes of one PublishRequest (Salesforce documentation, allocations: at most 200
# events and 3 MB are recommended; over 4 MB the call fails).
MAX_PUBLISH_EVENTS = 200
MAX_PUBLISH_BYTES = 3_000_000

# Overhead of an event in a request, in bytes: an upper bound for tags and lengths.
EVENT_OVERHEAD = 64

# Maximum length of an event's id, in characters; the service replaces a longer one (Publish RPC).
LONGEST_EVENT_ID = 36


@dataclass(frozen=True)
class Timings:
    """Timings of the service and of this client, in seconds. Tests use shorter times."""

    keepalive: float = 270.0
    """Maximum time between messages from the service while events are requested (Subscribe RPC)."""
    keepalive_margin: float = 30.0
    """A stream that has been silent for `keepalive` plus this time is replaced."""
    reserve: float = 50.0
    """If no events are outstanding for this long, one event is requested, because the service
    closes an idle stream after 60 s (Subscribe RPC). The difference is a margin for a slow link.
    """
    commit_interval: float = 1200.0
    """Maximum time between commits of a managed stream. The service closes the stream after 1,800 s
    without a commit. The default is two thirds of that, to leave time for a lost response and a
    retry.
    """
    commit_pause: float = 0.1
    """Minimum time between commits of acked events; `commit` and `drain` do not wait for it. It has
    little effect with the service, which answers in about 1 s. A server that answers immediately
    would otherwise receive a commit for each response, which doubles the work.
    """
    commit_timeout: float = 30.0
    """A commit unanswered for this long counts as failed; answers take about 1 s."""
    commit_budget: float = 900.0
    """How long commits may fail before the subscription ends, not counting time without a stream.
    The default is half of the 1,800 s after which the service would end the stream, and long enough
    to outlast an outage of the service's store.
    """
    session_budget: float = 600.0
    """How long sessions may be refused although each sign-in succeeds: permission changes take up
    to 10 min to reach the service (Salesforce documentation, considerations).
    """
    drain_timeout: float = 10.0
    """How long `drain` waits for the response to the last commit."""
    close_timeout: float = 5.0
    """How long a half-closed stream may take to end before it is cancelled."""
    backoff_initial: float = 1.0
    """Upper bound of the first random delay before a reconnect."""
    backoff_max: float = 60.0
    """Upper bound at which the delay before a reconnect stops doubling: long enough to spare a
    service that is down, short compared to the 72 h of retention.
    """
    steady: float = 30.0
    """Time after which a stream that has received nothing counts as healthy, in addition to the
    time in which an unanswered ping would have ended the stream. A refusal arrives within about
    11 s, and a failed connection attempt ends within 20 s.
    """
    slot_initial: float = 0.5
    """First delay before retrying a managed subscription that another client uses; after a clean
    close the slot is free within seconds.
    """
    slot_max: float = 15.0
    """Maximum delay before retrying a managed subscription that another client uses; a retry after
    15 s has been observed to succeed.
    """
    slot_timeout: float = 1260.0
    """How long to wait for a managed subscription that another client uses; after a half-open
    connection loss, a subscription was observed to stay occupied for 19 minutes.
    """
    store_interval: float = 1.0
    """Minimum time between writes to a replay store while events keep arriving. A store that
    flushes to disk can write about 100 positions per second. After a crash, events acked after the
    stored position are redelivered.
    """
    unacked_stall: float = 300.0
    """If more than ``max_unacked`` events are unacked or behind an unacked one, and the oldest is
    not acked for this long, the subscription fails instead of stalling silently. Beyond
    ``max_unacked``, only single events are requested, to keep the stream open.
    """
    unacked_warning: float = 180.0
    """If events are delivered and none is acked for this long, a warning is logged, then at four
    times this time, and so on. Handlers rarely take minutes before they ack the first event.
    """
    retention: float = 72 * 3600.0
    """How long the service keeps an event, and accepts its position (Salesforce documentation,
    event message durability).
    """
    retention_margin: float = 3600.0
    """A managed subscription's position counts as lost this long before `retention` has passed
    since the time up to which the service is known to have had it. The margin covers the seconds
    between a position and its confirmation, and a publisher's clock that is ahead.
    """
    publish_idle: float = 50.0
    """A PublishStream is closed this long after its last request and reopened for the next event,
    because the service ends an idle stream after 70 s (PublishStream RPC). The difference is a
    margin for a slow link.
    """
    publish_answer: float = 30.0
    """A publish request that is unanswered for this long is sent again on another stream; responses
    take well under 1 s. The service ends a stream only after 70 s.
    """
    ping_interval: float = 30.0
    """Time between HTTP/2 pings, which detect a dead connection; 0 disables them. Other clients use
    this interval, and the timeout below, without being rejected by the service (GOAWAY).
    """
    ping_timeout: float = 10.0
    """A ping unanswered for this long ends the connection."""


@dataclass(frozen=True)
class Limits:
    """Limits on the events that one subscription keeps in memory."""

    max_pending_count: int = 1000
    """Maximum number of events received and not yet delivered: ten windows, so that a short pause
    of the handler does not stop the stream. Can be exceeded by the event that keeps a full stream
    open.
    """
    max_bytes: int = 32 * 1024 * 1024
    """Maximum payload bytes of the undelivered events. The sizes of earlier events determine how
    many events are requested. If the events turn out to be much larger, the stream is closed at
    twice this value, and reopened when there is room again.
    """
    max_unacked: int = 100_000
    """Maximum number of events received and not yet acked or, for a managed subscription, not yet
    committed. Beyond it, only the events that keep the stream open are requested.
    """

    def __post_init__(self) -> None:
        for name in ("max_pending_count", "max_bytes", "max_unacked"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class PublishLimits:
    """Limits on the events that one publisher keeps in memory, and on its requests."""

    max_pending_count: int = 2000
    """Maximum number of events accepted from the application and not yet answered. The default is
    enough for the events in flight (at most 800), and for the same number waiting to be sent.
    """
    max_pending_bytes: int = 32 * 1024 * 1024
    """Maximum bytes of the events accepted and not yet answered; can be exceeded by one event."""
    max_requests: int = 4
    """Maximum number of requests in flight: enough to keep the connection busy while responses
    return. With 1, the order of events is preserved.
    """

    def __post_init__(self) -> None:
        for name in ("max_pending_count", "max_pending_bytes", "max_requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class RestTimings:
    """Timeouts and delays of HTTP requests to an org, in seconds, and the number of attempts."""

    request: float = 130.0
    """Timeout of one request: the service itself abandons a query after 120 s (QUERY_TIMEOUT)."""
    download: float = 900.0
    """Timeout of one page of Bulk results: 50,000 rows of 2 kB at 1 Mbit/s."""
    attempts: int = 5
    """Maximum number of attempts for one request, including the first. With the delays below, the
    retries take at most 15 s plus the time of the requests, unless the service asks for longer
    delays (Retry-After).
    """
    backoff_initial: float = 1.0
    """Upper bound of the first random delay before a retry."""
    backoff_max: float = 30.0
    """Upper bound at which the delay before a retry stops doubling, and the longest Retry-After
    that is honoured.
    """
    poll_initial: float = 1.0
    """Delay before a job is polled for the second time; each poll counts against the daily limit on
    calls.
    """
    poll_max: float = 30.0
    """Maximum delay between polls: a job of one hour takes about 120 calls."""
