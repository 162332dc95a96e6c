"""The configurable times, limits and optional behaviours of the emulated service, in one place.

Fixed limits, such as the length of a SOQL query, are constants of the modules that enforce them.
Tests set smaller values. The client does not use these values. A `Settings` is immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from sfpubsub.emulator.faults.kinds import AnswerTip
from sfpubsub.emulator.faults.refusals import FAILURES, STATUSES

IdleClose = Literal["ok", "error"]
OldVersions = Literal["refuse", "newest"]
WithheldEvents = Literal["lost", "kept"]
StreamingAdvice = Literal["first", "always", "never"]

REPLAY_ID_LENGTHS = (8, 10, 12, 24)
"""Supported lengths of replay ids, in bytes. The service sends 10; the others were never observed
there and are for testing that a client treats ids as opaque.
"""


@dataclass(frozen=True)
class Settings:
    """Times, limits and optional behaviours of the service. Times are in seconds, sizes in bytes.

    Raises:
        ValueError: A value is out of range; the message names the setting.
    """

    keepalive_s: float = 120.0
    """An empty response is sent after this long without a response while requested events are
    outstanding. Observed: 120; the service promises 270 at most.
    """

    idle_close_s: float = 60.0
    """A stream without outstanding requested events is closed this long after its last response.
    Documented: 60.
    """

    idle_close: IdleClose = "ok"
    """How an idle stream is closed: with status OK ("ok") or with an error ("error"). Not known for
    the real service.
    """

    commits_reset_idle: bool = False
    """Whether a commit also resets the timer of `idle_close_s`. Not known for the real service;
    False is the harder case for a client.
    """

    commit_deadline_s: float = 1800.0
    """A managed stream without commit requests is closed after this time, counted from the last
    request or from its start. Observed: 1,800.
    """

    retention_s: float = 72 * 3600.0
    """Events and positions are deleted after this long. Documented: 72 h."""

    tip_refresh_s: float = 60.0
    """A keepalive creates a new position if the newest one is older than this, because the real bus
    advances through other traffic of the org. This keeps the position of an idle topic valid. It
    must be at most half of `retention_s`; a larger value raises an error.
    """

    propagation_s: float = 0.0
    """Delay until streams see that a managed subscription was created, or that the Tooling API set
    it to RUN or changed its presets. Minutes on the real service; 0 here so that by default tests
    do not wait.
    """

    rights_propagation_s: float = 0.0
    """Delay until streams see that a user lost or gained View All: which change events are
    delivered depends on the rights of this long ago. Documented: within 10 minutes, without an
    error; 0 here so that by default tests do not wait.
    """

    withheld_events: WithheldEvents = "lost"
    """What becomes of change events that were published while their user lacked View All: once the
    user has it again, they are not delivered ("lost"), or a stream that starts before them delivers
    them ("kept"). Not known for the real service; "lost" is the harder case for a client.
    """

    deletes_move_stamp: bool = True
    """Whether a deletion and an undeletion move a record's SystemModstamp. Not known for the real
    service.
    """

    archived_by_id: bool = False
    """Whether a request for several records by id returns archived ones. Not known for the real
    service; False is the harder case for a client.
    """

    token_lifetime_s: float = 0.0
    """An access token expires this long after it was issued, and streams that use it end; 0 means
    never. On the real service this is a session policy of the org, counted from the last use. Here
    it is counted from the sign-in, which is the harder case for a client.
    """

    rotate_refresh_tokens: bool = False
    """Whether a refresh token can be used only once, and each response contains the next one. A
    token that is used again ends its family: the newest refresh token and all access tokens. On the
    real service each connected app configures this.
    """

    refresh_idle_s: float = 0.0
    """A refresh token that was not used for this long is refused; 0 means never. On the real
    service each connected app configures this; reported: 30 days for partners' apps.
    """

    assertion_s: float = 300.0
    """A JWT of the bearer flow is refused if its expiry time is more than this in the future.
    Reported: 3 or 5 min.
    """

    managed_limit: int = 200
    """Maximum number of managed subscriptions in an org. Documented: 200."""

    slot_release_s: float = 0.0
    """The slot of a managed subscription stays occupied for this long after its stream has ended.
    Seconds on the real service; 0 here so that a client can reconnect immediately.
    """

    state_delay_s: float = 0.05
    """The open stream of a managed subscription continues for this long after STOP or deletion, and
    then ends. Documented as a small delay.
    """

    commit_answer_delay_s: float = 0.005
    """Time from a commit request to its response. About 1 s on the real service; commit requests
    within this time share a response.
    """

    commit_answer_tip: AnswerTip = "sent"
    """`latest_replay_id` of a commit response: absent ("none"), the last position sent on the
    stream ("sent"), or the org's newest position ("org"), which may be ahead of events that have
    not been sent yet.
    """

    commit_answer_pending: bool = True
    """Whether a commit response contains `pending_num_requested`."""

    publish_stream_idle_s: float = 70.0
    """A PublishStream is closed this long after its last request. Documented: 70."""

    max_outstanding: int = 100
    """Maximum number of requested events that a stream can have outstanding; any excess in a
    request is discarded without an error. Documented: 100.
    """

    events_per_response: int = 100
    """Maximum number of events in one response."""

    response_bytes: int = 3 * 1024 * 1024
    """Maximum size of one response, unless a single event is larger. Reported: 3 MB."""

    event_bytes: int = 1024 * 1024
    """Maximum size of an event. A larger event is rejected; the other events of its request are
    not. Documented: 1 MB.
    """

    publish_request_bytes: int = 4 * 1024 * 1024
    """Maximum size of a PublishRequest. A larger one ends the call as a proxy would. Documented:
    4 MB.
    """

    replay_id_bytes: int = 10
    """Length of replay ids: 8, 10, 12 or 24."""

    change_event_ids: bool = True
    """Whether change events have `event.id`. Documented: no. Observed: yes, in all captures."""

    accept_old_schemas: bool = True
    """Whether events encoded with an earlier schema of the topic are accepted. Not known for the
    real service; False is the harder case for a client.
    """

    streaming_timeout_s: float = 110.0
    """The Streaming API holds a connect request for this long. Documented: 110."""

    streaming_interval_s: float = 0.0
    """The delay before the next connect request, as the Streaming API advises it to clients."""

    streaming_session_s: float = 40.0
    """A Streaming API session ends this long after its last response if no connect is pending.
    Documented: 40.
    """

    streaming_retention_s: float = 24 * 3600.0
    """Events of PushTopics and generic channels are deleted after this long; platform and change
    events after `retention_s`. Documented: 24 h."""

    streaming_id_gap: int = 2
    """Maximum number of unused ids between two events of a PushTopic or generic channel."""

    streaming_reply_events: int = 1000
    """Maximum number of events from one channel in one Streaming API response."""

    streaming_old_versions: OldVersions = "newest"
    """How requests to API versions 23 to 36 are handled: like the newest version ("newest"), as the
    service has done since 2026, or rejected ("refuse"), as the error messages still state.
    """

    streaming_events_first: bool = True
    """Whether events come before the reply to the connect message in an HTTP response of the
    Streaming API; otherwise they come after it.
    """

    streaming_events_on_subscribe: bool = False
    """Whether the HTTP response to a subscribe message includes the first events of the
    subscription.
    """

    streaming_flush_anywhere: bool = False
    """Whether the response to a subscribe or unsubscribe message includes pending events of all
    channels of the session, as a response to a connect message does.
    """

    streaming_event_ids: bool = False
    """Whether event messages from the Streaming API have an `id`, which may be the same as the `id`
    of a client's message.
    """

    streaming_advice: StreamingAdvice = "first"
    """Which connect responses contain advice: the first of a session ("first"), all ("always") or
    none ("never").
    """

    change_event_records: int = 20
    """Maximum number of records in one change event: the same change to several records in one
    transaction becomes one event. Largest observed: 20. With 1, each record gets its own event.
    """

    change_event_formulas: bool = False
    """Whether change events contain custom formula fields. The guides of different releases
    disagree.
    """

    overflow_changes: int = 100_000
    """Maximum number of changes in one transaction that become change events; further changes
    become one overflow event for each object. Documented: 100,000.
    """

    bulk_result_records: int = 100_000
    """Maximum number of rows in one response with results of a bulk query. The real service limits
    the size in bytes instead.
    """

    rest_lag_s: float = 0.0
    """Reads of records return the state of this long ago, while events are sent immediately. On the
    real service, a lag of 1 to 3 s has been measured.
    """

    max_streams: int = 400
    """Maximum number of open streams. Further streams are rejected with
    service.protection.triggered; unary calls still work. No limit is published; each stream uses
    two threads here.
    """

    headers_at_once: bool = False
    """Whether a stream's response headers are sent as soon as the stream opens; otherwise they are
    sent with its first message. Not known for the service. With False, a client that waits for the
    headers (tonic) hangs until the first event or keepalive; this is the harder case.
    """

    first_request_s: float = 60.0
    """A stream on which the client has sent no request is closed after this long, as `idle_close`
    specifies. Not known for the service; the default is the service's timeout for a stream without
    outstanding requests.
    """

    daily_deliveries: int = 50_000
    """Limit of event deliveries in 24 hours, as shown by the limits resource; the limit is not
    enforced. Documented for Performance and Unlimited Edition.
    """

    hourly_publications: int = 250_000
    """Limit of published platform events in an hour, as shown by the limits resource; the limit is
    not enforced. Documented for the same editions.
    """

    daily_api_requests: int = 1_000_000
    """Limit of REST, Tooling and Bulk API calls in 24 hours; further calls fail with
    REQUEST_LIMIT_EXCEEDED. Documented: 100,000 for Enterprise Edition plus 1,000 per licence.
    """

    cors_origins: str = "loopback"
    """Origins of web pages that may use the org's HTTP APIs, separated by spaces; `loopback` allows
    any port of this machine, `*` allows all. In a real org an administrator lists them.
    """

    statuses: Mapping[str, str] = field(default_factory=dict)
    """gRPC status names by error-code suffix, which override those in `refusals.FAILURES`."""

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            if not getattr(self, name) >= low:
                raise ValueError(
                    f"setting {name} must be at least {low}, not {getattr(self, name)}"
                )
        if self.keepalive_s > _LONGEST_KEEPALIVE_S:
            raise ValueError(
                f"setting keepalive_s must be at most {_LONGEST_KEEPALIVE_S}, not"
                f" {self.keepalive_s}"
            )
        if self.tip_refresh_s > self.retention_s / 2:
            raise ValueError(
                f"setting tip_refresh_s must be at most {self.retention_s / 2}, half of"
                f" retention_s, not {self.tip_refresh_s}"
            )
        if self.replay_id_bytes not in REPLAY_ID_LENGTHS:
            raise ValueError(
                f"setting replay_id_bytes must be one of {REPLAY_ID_LENGTHS}, not"
                f" {self.replay_id_bytes}"
            )
        for name, kind in (
            ("idle_close", IdleClose),
            ("commit_answer_tip", AnswerTip),
            ("streaming_old_versions", OldVersions),
            ("streaming_advice", StreamingAdvice),
            ("withheld_events", WithheldEvents),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"setting {name} must be one of {get_args(kind)}, not {getattr(self, name)!r}"
                )
        for suffix, status in self.statuses.items():
            if suffix not in FAILURES or status not in STATUSES:
                raise ValueError(
                    f"setting statuses: {suffix} = {status} is not valid: each key must be an"
                    " error-code suffix of the service, and each value the name of a gRPC status"
                )

    def status_of(self, suffix: str) -> str:
        """Return the gRPC status name for an error-code suffix."""
        return self.statuses.get(suffix, FAILURES[suffix].status)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Create settings from names and values, such as the `[settings]` table of a seed.

        Raises:
            ValueError: A name is unknown, or a value has the wrong type or is out of range.
        """
        types = get_type_hints(cls)
        known = {item.name for item in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(
                    f"unknown setting {name}; valid names are {', '.join(sorted(known))}"
                )
            if not _fits(value, types[name]):
                raise ValueError(
                    f"setting {name}: {value!r} has the wrong type or is not an allowed value; see"
                    " sfpubsub.emulator.org.settings.Settings"
                )
        return cls(**values)


_LONGEST_KEEPALIVE_S = 270.0
"""Maximum of `keepalive_s`: the longest interval that the service promises."""

_LOWEST: dict[str, float] = {
    "keepalive_s": 0.001,  # zero would cause a busy loop
    "idle_close_s": 0.0,
    "commit_deadline_s": 0.0,
    "retention_s": 0.001,
    "tip_refresh_s": 0.0,
    "propagation_s": 0.0,
    "rights_propagation_s": 0.0,
    "token_lifetime_s": 0.0,
    "refresh_idle_s": 0.0,
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
