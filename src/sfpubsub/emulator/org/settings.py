"""Every time, size and habit that the service knows, in one place.

No other module of the emulator has a number of its own for these. Tests scale them; the client has
a counterpart for each. A `Settings` is immutable and holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from sfpubsub.emulator.faults.kinds import AnswerTip
from sfpubsub.emulator.faults.refusals import FAILURES, STATUSES

IdleClose = Literal["ok", "error"]
OldVersions = Literal["refuse", "newest"]
StreamingAdvice = Literal["first", "always", "never"]

REPLAY_ID_LENGTHS = (8, 10, 12, 24)
"""Bytes of the replay ids that can be minted. 10 is what the service sends; the others were never
seen there and show that a client treats ids as opaque."""


@dataclass(frozen=True)
class Settings:
    """The service's times, sizes and habits. Times are in seconds, sizes in bytes.

    Raises:
        ValueError: A value is out of range; the text names the setting.
    """

    keepalive_s: float = 120.0
    """An empty response after this long without one while events are wanted. Seen live: 120; the
    service promises 270 at most."""

    idle_close_s: float = 60.0
    """A stream that wants no events is closed this long after its last response. Documented: 60."""

    idle_close: IdleClose = "ok"
    """How it is closed: with status OK or with an error. Not known of the real service."""

    commits_reset_idle: bool = False
    """Whether a commit also restarts the time of `idle_close_s`. Not known; False is the harder
    case for a client."""

    commit_deadline_s: float = 1800.0
    """A managed stream is closed this long after its last commit request. Seen live: 1,800."""

    retention_s: float = 72 * 3600.0
    """Events and positions are forgotten after this long. Documented: 72 h."""

    tip_refresh_s: float = 60.0
    """A keepalive mints a new position when the newest is older than this, as the real bus moves on
    by other traffic of the org; so the position of an idle topic stays valid. It must be well below
    `retention_s`; `__post_init__` lowers nothing, it refuses."""

    propagation_s: float = 0.0
    """Streams learn this long after the Tooling API took it that a managed subscription was
    created, set to RUN, or given other presets. On the real service minutes; 0 so that nobody waits
    without asking for it."""

    token_lifetime_s: float = 0.0
    """An access token expires this long after it was issued, and what is open with it ends; 0
    is never. On the real service a session policy of the org, counted from the last use; from the
    sign-in here, which is the harder case for a client."""

    rotate_refresh_tokens: bool = False
    """Whether a refresh token is valid once, and its answer brings the next. On the real service a
    choice of each connected app."""

    assertion_s: float = 300.0
    """A JWT of the bearer flow that expires later than this is refused. Reported: 3 or 5 min."""

    managed_limit: int = 200
    """Managed subscriptions that an org can have. Documented: 200."""

    slot_release_s: float = 0.0
    """The slot of a managed subscription stays taken this long after its stream's end. On the real
    service seconds; 0 so that a restart is immediate."""

    state_delay_s: float = 0.05
    """The open stream of a managed subscription is told this long after STOP or deletion, and goes
    on until then. Documented as a small delay."""

    commit_answer_delay_s: float = 0.005
    """Time from a commit to its answer. On the real service about 1 s; commits that come within it
    share an answer."""

    commit_answer_tip: AnswerTip = "sent"
    """`latest_replay_id` of a commit answer: absent, the last position sent on the stream, or the
    org's newest, which may be ahead of events still to be sent."""

    commit_answer_pending: bool = True
    """Whether a commit answer carries `pending_num_requested`."""

    publish_stream_idle_s: float = 70.0
    """A PublishStream is closed this long after its last request. Documented: 70."""

    max_outstanding: int = 100
    """Events that a stream can have asked for; more counts as this many. Documented: 100."""

    events_per_response: int = 100
    """Events in one response, at most."""

    response_bytes: int = 3 * 1024 * 1024
    """Size of one response, at most, unless a single event is larger. Reported: 3 MB."""

    event_bytes: int = 1024 * 1024
    """A larger event is refused, and the others of its request are not. Documented: 1 MB."""

    publish_request_bytes: int = 4 * 1024 * 1024
    """A larger PublishRequest breaks the call as a proxy would. Documented: 4 MB."""

    replay_id_bytes: int = 10
    """Length of minted replay ids: 8, 10, 12 or 24."""

    change_event_ids: bool = True
    """Whether change events carry `event.id`. Documented: no; every capture: yes."""

    accept_old_schemas: bool = True
    """Whether events are taken that were encoded by a schema which the topic had before. Not known
    of the real service; False is the harder case for a client."""

    streaming_timeout_s: float = 110.0
    """The Streaming API holds a connect this long. Documented: 110."""

    streaming_interval_s: float = 0.0
    """What it advises to wait before the next connect."""

    streaming_session_s: float = 40.0
    """A session of it dies this long after its last answer, while no connect is held. Documented:
    40."""

    streaming_retention_s: float = 24 * 3600.0
    """Events of PushTopics and generic channels are forgotten after this long; platform and change
    events after `retention_s`. Documented: 24 h."""

    streaming_id_gap: int = 2
    """At most so many ids lie unused between two events of PushTopics and generic channels."""

    streaming_reply_events: int = 1000
    """Events of one channel in one answer of the Streaming API, at most."""

    streaming_old_versions: OldVersions = "newest"
    """What becomes of requests to API versions 23 to 36: treated as the newest, as since 2026, or
    refused, as the error texts still say."""

    streaming_events_first: bool = True
    """Whether events come before the answer to the connect that brings them, or after it."""

    streaming_events_on_subscribe: bool = False
    """Whether the answer to a subscribe brings its first events."""

    streaming_event_ids: bool = False
    """Whether events carry an id, which may equal that of a request."""

    streaming_advice: StreamingAdvice = "first"
    """Which answers to connects carry advice."""

    change_event_records: int = 20
    """Records that one change event names, at most: the same change of several records in one
    transaction is one event. The most seen in a capture: 20. 1 gives each an event of its own."""

    change_event_formulas: bool = False
    """Whether change events have custom formula fields. Documented both ways, in guides of
    different releases."""

    overflow_changes: int = 100_000
    """Changes of one transaction that become change events; those beyond become one overflow event
    an object. Documented: 100,000."""

    bulk_result_records: int = 100_000
    """Rows of a bulk query's results in one answer, at most. On the real service by size."""

    rest_lag_s: float = 0.0
    """Reads of records show what was there this long ago, while events come at once. On the real
    service 1 to 3 s have been measured."""

    max_streams: int = 400
    """Streams open at once; one more is refused at once with service.protection.triggered, and
    unary calls go on. No number is published; each stream holds two threads here."""

    headers_at_once: bool = False
    """Whether a stream's response headers come as soon as it is open, or with its first message.
    Not known of the service; a client that waits for them before it goes on (tonic) hangs without
    them until the first event or keepalive, so the default is the harder case."""

    first_request_s: float = 60.0
    """A stream that has sent no request is closed after this long, in the way of `idle_close`. Not
    known of the service; this is its time for a stream that asks for no events."""

    daily_deliveries: int = 50_000
    """Events that the org may have delivered in 24 hours, as the limits resource tells; nothing is
    refused beyond. Documented of Performance and Unlimited Edition."""

    hourly_publications: int = 250_000
    """Platform events that the org may publish in an hour. As above."""

    daily_api_requests: int = 1_000_000
    """Calls of REST, Tooling and Bulk that the org answers in 24 hours; beyond, it refuses with
    REQUEST_LIMIT_EXCEEDED. Documented: 100,000 of an Enterprise Edition and 1,000 a licence."""

    cors_origins: str = "loopback"
    """Whose web pages may use the org's HTTP: origins with spaces between; `loopback` stands for
    any port of this machine, `*` for all. In an org an administrator lists them."""

    statuses: Mapping[str, str] = field(default_factory=dict)
    """gRPC status names by error-code suffix, instead of those of `failures.FAILURES`."""

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"setting {name} must be at least {low}")
        if self.keepalive_s > _LONGEST_KEEPALIVE_S:
            raise ValueError(f"setting keepalive_s must be at most {_LONGEST_KEEPALIVE_S}")
        if self.tip_refresh_s > self.retention_s / 2:
            raise ValueError("setting tip_refresh_s must be at most half of retention_s")
        if self.replay_id_bytes not in REPLAY_ID_LENGTHS:
            raise ValueError(f"setting replay_id_bytes must be one of {REPLAY_ID_LENGTHS}")
        for name, kind in (
            ("idle_close", IdleClose),
            ("commit_answer_tip", AnswerTip),
            ("streaming_old_versions", OldVersions),
            ("streaming_advice", StreamingAdvice),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"setting {name} must be one of {get_args(kind)}")
        for suffix, status in self.statuses.items():
            if suffix not in FAILURES or status not in STATUSES:
                raise ValueError(
                    f"setting statuses: unknown suffix or status in {suffix} = {status}"
                )

    def status_of(self, suffix: str) -> str:
        """Name of the gRPC status that goes with an error-code suffix."""
        return self.statuses.get(suffix, FAILURES[suffix].status)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from names and values, such as the `[settings]` table of a seed.

        Raises:
            ValueError: An unknown name, a value of the wrong type or out of range.
        """
        types = get_type_hints(cls)
        known = {item.name for item in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"unknown setting {name}; known are {', '.join(sorted(known))}")
            if not _fits(value, types[name]):
                raise ValueError(f"setting {name} cannot be {value!r}")
        return cls(**values)


_LONGEST_KEEPALIVE_S = 270.0
"""What the service promises; a longer interval would test nothing that can happen."""

_LOWEST: dict[str, float] = {
    "keepalive_s": 0.001,  # zero would be a loop
    "idle_close_s": 0.0,
    "commit_deadline_s": 0.0,
    "retention_s": 0.001,
    "tip_refresh_s": 0.0,
    "propagation_s": 0.0,
    "token_lifetime_s": 0.0,
    "assertion_s": 0.0,
    "managed_limit": 0,
    "slot_release_s": 0.0,
    "state_delay_s": 0.0,
    "commit_answer_delay_s": 0.0,
    "publish_stream_idle_s": 0.0,
    "max_outstanding": 1,
    "events_per_response": 1,
    "response_bytes": 1,
    "event_bytes": 1,
    "publish_request_bytes": 1,
    "streaming_timeout_s": 0.0,
    "streaming_interval_s": 0.0,
    "streaming_session_s": 0.0,
    "streaming_retention_s": 0.001,
    "streaming_id_gap": 0,
    "streaming_reply_events": 1,
    "change_event_records": 1,
    "overflow_changes": 1,
    "bulk_result_records": 1,
    "rest_lag_s": 0.0,
    "max_streams": 1,
    "daily_deliveries": 0,
    "hourly_publications": 0,
    "daily_api_requests": 0,
    "first_request_s": 0.0,
}


def _fits(value: object, kind: object) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in (bool, str):
        return isinstance(value, kind)
    if get_args(kind) and all(isinstance(item, str) for item in get_args(kind)):
        return value in get_args(kind)
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
