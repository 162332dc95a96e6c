"""The numbers that the protocol lives by: defaults that can be changed, with unit and reason."""

from __future__ import annotations

from dataclasses import dataclass

# Maximum of outstanding events over all requests of one call; the service treats more as 100
# (Salesforce documentation: flow control, allocations).
WINDOW = 100

# Owed credit is returned from this many events on. One request for 50 costs half the requests of
# one for 25 and never leaves the window empty on a fast link; measured best of 1, 10, 25, 50, 100.
RETURN_CREDIT_AT = 50

# Events asked for before the size of any is known: ten of the largest fit several times into the
# default of `Limits.max_bytes`, and it takes one more round trip to reach the whole window.
FIRST_CREDIT = 10

# Bytes of the largest event that the service takes (Salesforce documentation, allocations).
LARGEST_EVENT = 1024 * 1024


# Events and bytes of one PublishRequest (Salesforce documentation, allocations: at most 200 events
# and 3 MB are recommended; over 4 MB the call breaks).
MAX_PUBLISH_EVENTS = 200
MAX_PUBLISH_BYTES = 3_000_000

# Bytes that an event takes in a request beside what is in it: tags and lengths, generously.
EVENT_OVERHEAD = 64

# Characters of an event's id; a longer one is replaced by the service (Publish RPC).
LONGEST_EVENT_ID = 36


@dataclass(frozen=True)
class Timings:
    """Times of the service and of this client, in seconds. Scaled down by tests."""

    keepalive: float = 270.0
    """The service sends something at least this often while events are wanted (Subscribe RPC)."""
    keepalive_margin: float = 30.0
    """Added before a silent stream is given up."""
    reserve: float = 50.0
    """With nothing pending, one event is asked for after this long: the service closes the stream
    after 60 s (Subscribe RPC), less a margin for a slow link."""
    commit_interval: float = 1200.0
    """A managed stream commits at least this often: the service closes it after 1,800 s without,
    and two thirds leave room for one lost answer and a retry."""
    commit_pause: float = 0.1
    """Commits of acked events keep this distance; `commit` and `drain` do not wait for it. The
    service answers in about 1 s, so it changes little there; a server that answers at once would be
    sent a commit for each response, which costs as much as to receive one."""
    commit_timeout: float = 30.0
    """A commit unanswered for this long counts as failed; answers take about 1 s."""
    commit_budget: float = 900.0
    """How long commits may fail, the time without a stream apart, before the subscription ends:
    half of the 1,800 s after which the service would end the stream, and time enough for an
    outage of its store."""
    session_budget: float = 600.0
    """How long sessions may be refused although each sign-in worked: changes of permission take up
    to 10 min to reach the service (Salesforce documentation, considerations)."""
    drain_timeout: float = 10.0
    """How long `drain` waits for the last commit's answer."""
    close_timeout: float = 5.0
    """How long a half-closed stream may take to end before it is cancelled."""
    backoff_initial: float = 1.0
    """Ceiling of the first random delay before a stream is opened again."""
    backoff_max: float = 60.0
    """Ceiling that the doubling stops at; long enough to spare a service that is down, short
    against 72 h of retention."""
    steady: float = 30.0
    """A stream that has brought nothing is known to be good after this long, and the time in which
    an unanswered ping would have ended it: a refusal comes within some 11 s, an attempt to connect
    fails within 20."""
    slot_initial: float = 0.5
    """First delay before a managed subscription that is held elsewhere is asked for again; after a
    clean close the slot is free within seconds."""
    slot_max: float = 15.0
    """Longest such delay; a retry after 15 s was seen to succeed."""
    slot_timeout: float = 1260.0
    """How long to wait for the slot; after a half-open loss it was seen held for 19 minutes."""
    store_interval: float = 1.0
    """A replay store gets the position at most this often while events keep coming: one that
    flushes to a disk takes some 100 positions a second. After a crash what was acked since then
    comes again."""
    unacked_stall: float = 300.0
    """With ``max_unacked`` exceeded (by the events that keep the stream open) and no ack for this
    long, the subscription fails instead of standing still in silence."""
    publish_idle: float = 50.0
    """A PublishStream is closed this long after its last request, and opened again for the next
    event: the service ends it after 70 s (PublishStream RPC), less a margin for a slow link."""
    publish_answer: float = 30.0
    """A request to publish that is unanswered for this long is sent again on another stream;
    answers take well under 1 s. With it nothing waits into the 70 s above."""
    ping_interval: float = 30.0
    """Between HTTP/2 pings, with which a dead connection is noticed; 0 for none. Others run these
    two values against the service without being told to go away."""
    ping_timeout: float = 10.0
    """A ping unanswered for this long ends the connection."""


@dataclass(frozen=True)
class Limits:
    """How much one subscription may hold in memory."""

    max_pending_count: int = 1000
    """Events received and not yet delivered; ten windows, so that a pause of the handler does not
    stop the stream. Overshoot: the event that keeps a full stream open."""
    max_bytes: int = 32 * 1024 * 1024
    """Payload bytes of those: so many events are asked for as fit at the size that was seen. Should
    they be larger by far, the stream is closed at twice this, until there is room."""
    max_unacked: int = 100_000
    """Events received and not yet acked: no more are asked for than that allows."""

    def __post_init__(self) -> None:
        for name in ("max_pending_count", "max_bytes", "max_unacked"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class PublishLimits:
    """How much one publisher may hold and send."""

    max_pending_count: int = 2000
    """Events taken from the application and not answered: what is in flight, and as much again."""
    max_pending_bytes: int = 32 * 1024 * 1024
    """Bytes of those; overshoot: one event."""
    max_requests: int = 4
    """Requests in flight: enough to keep the way to the service busy while answers come back. With
    1 the order of events is kept."""

    def __post_init__(self) -> None:
        for name in ("max_pending_count", "max_pending_bytes", "max_requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class RestTimings:
    """Times of reading an org over HTTP, in seconds, and how often a request is made."""

    request: float = 130.0
    """For one request: the service itself gives a query up after 120 s (QUERY_TIMEOUT)."""
    download: float = 900.0
    """For one page of Bulk results: 50,000 rows of 2 kB at 1 Mbit/s."""
    attempts: int = 5
    """Requests for one answer, the first included; with the delays below half a minute at most."""
    backoff_initial: float = 1.0
    """Ceiling of the first random delay before a request is made again."""
    backoff_max: float = 30.0
    """Ceiling that the doubling stops at, and the longest Retry-After that is waited for."""
    poll_initial: float = 1.0
    """Before a job is looked at for the second time; each look takes a call of the day's."""
    poll_max: float = 30.0
    """Longest time between two looks: an hour's job takes some 120 calls."""
