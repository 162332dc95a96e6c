"""The kinds of faults, as data: where each can occur and which parameters it takes.

The web page, `sfpubsub emulator faults kinds` and the checks in `plan` read this table; the
behaviour of each kind is implemented where it occurs. For most kinds, a fault occurs in the next
matching call. A fault of an immediate kind (`Kind.acts`) changes the org when it is added, and is
counted each time a client encounters its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

AnswerTip = Literal["none", "sent", "org"]
"""What a commit response contains as `latest_replay_id`: nothing ("none"), the last position sent
on the stream ("sent"), or the org's newest position ("org").
"""

RPCS = ("Subscribe", "GetSchema", "GetTopic", "Publish", "PublishStream", "ManagedSubscribe")
"""The RPCs, in the order of the proto file."""

SIGN_IN = "SignIn"
"""The name used for sign-ins in place of an RPC."""

BAYEUX = tuple(
    f"/meta/{kind}" for kind in ("handshake", "connect", "subscribe", "unsubscribe", "disconnect")
)
"""The names used for messages of the Streaming API in place of an RPC."""

CHANGE = "Change"
"""The name used for the publication of a change event in place of an RPC."""

BULK = "BulkQuery"
"""The name used for the query jobs of the Bulk API in place of an RPC."""

_POLL = ("/meta/connect",)
_STREAMS = ("Subscribe", "ManagedSubscribe")
_MANAGED = ("ManagedSubscribe",)

AT_START = ("refuse", "drop_call", "delay_call")
"""Kinds of faults that occur at the start of a call, before its request is examined."""

OPENED_LATER = (*_STREAMS, "PublishStream")
"""RPCs whose target is unknown until the first request, so the kinds in `AT_START` cannot have a
target there.
"""

OF_A_SUBSCRIPTION = ("stop_managed", "delete_managed")
"""Kinds that require a target: the developer name of a managed subscription."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault: where it can occur, and its parameters.

    Attributes:
        rpcs: The calls in which a fault of this kind can occur: names from `RPCS`, `SIGN_IN`,
            `BAYEUX`, `CHANGE` or `BULK`. Empty for an immediate kind.
        params: Parameter names and defaults; the type of a default is the type of the parameter.
        text: Description shown on the web page and by `sfpubsub emulator faults kinds`.
        acts: Whether the kind is immediate: such a fault changes the org when it is added.
    """

    rpcs: tuple[str, ...]
    params: Mapping[str, object]
    text: str
    acts: bool = False


_CALLS: dict[str, Kind] = {
    "refuse": Kind(
        RPCS,
        {"error_code": "service.unavailable", "status": ""},
        "End a call at its start with this error code (the suffix) and, if given, this status.",
    ),
    "drop_call": Kind(
        RPCS,
        {"status": "UNAVAILABLE"},
        "End a call at its start without trailers, as the infrastructure would. RESET resets "
        "the HTTP/2 stream.",
    ),
    "delay_call": Kind(
        RPCS, {"seconds": 1.0}, "Wait for this long at the start of a call, then continue."
    ),
    "drop_stream": Kind(
        _STREAMS,
        {"after_responses": 0, "status": "UNAVAILABLE"},
        "After this many responses, end a stream without trailers. OK ends it cleanly, RESET "
        "resets the HTTP/2 stream.",
    ),
    "fail_stream": Kind(
        _STREAMS,
        {"after_responses": 0, "error_code": "service.unavailable", "status": ""},
        "After this many responses, end a stream with this error code.",
    ),
}

_DELIVERY: dict[str, Kind] = {
    "activate_late": Kind(
        _STREAMS,
        {"seconds": 5.0},
        "A stream that starts at LATEST skips the events published in its first seconds.",
    ),
    "split_response": Kind(
        _STREAMS, {"events": 1}, "The next response with events has at most this many events."
    ),
    "merge_responses": Kind(
        _STREAMS,
        {"events": 10, "within_s": 5.0},
        "Hold events for this long, or until this many or all requested events are pending. Then "
        "send them in one response.",
    ),
    "withhold_keepalive": Kind(
        _STREAMS,
        {},
        "Skip a keepalive that is due; each skipped keepalive counts as one occurrence.",
    ),
    "move_keepalive_tip": Kind(
        _STREAMS,
        {"advance": 0},
        "The next keepalive repeats the last position of its stream. If advance is above 0, it is "
        "that many positions ahead of the org's tip, as if there were other traffic.",
    ),
}

_PUBLISHING: dict[str, Kind] = {
    "lose_answer": Kind(
        ("Publish", "PublishStream"),
        {"after_responses": 0, "status": "UNAVAILABLE"},
        "Once the call has sent this many responses, publish the events of the next request and "
        "end the call without a response. RESET resets the HTTP/2 stream.",
    ),
    "refuse_event": Kind(
        ("Publish", "PublishStream"),
        {"text": "PLATFORM_EVENT_PUBLISHING_UNAVAILABLE: Try again later."},
        "Refuse the first event of a request with this text, and publish the others.",
    ),
}

_COMMITS: dict[str, Kind] = {
    "drop_before_commit_answer": Kind(
        _MANAGED,
        {"status": "UNAVAILABLE"},
        "Store a commit durably, then end the stream without answering the commit.",
    ),
    "fail_commit": Kind(
        _MANAGED,
        {"message": "The commit failed."},
        "Answer a commit with an error; the committed position does not change.",
    ),
    "leave_commit_unanswered": Kind(
        _MANAGED, {}, "Store a commit durably and never answer it; the stream continues."
    ),
    "coalesce_commits": Kind(
        _MANAGED,
        {"count": 2, "within_s": 5.0},
        "Hold commit responses for this long, or until this many commits are pending. Then send "
        "one response for all.",
    ),
    "shape_commit_answer": Kind(
        _MANAGED,
        {"pending": True, "tip": "sent"},
        "In the next commit response, include or omit pending_num_requested, and use the tip none, "
        "sent or org, regardless of the settings.",
    ),
    "answer_with_events": Kind(
        _MANAGED,
        {"within_s": 5.0},
        "Send a commit response in the same message as the next events, or without events if none "
        "are sent within this time.",
    ),
    "hold_slot": Kind(
        _MANAGED,
        {"seconds": 1.0},
        "Keep the slot of a managed subscription for this long after its stream has ended.",
    ),
}

_SIGN_IN: dict[str, Kind] = {
    "refuse_sign_in": Kind(
        (SIGN_IN,),
        {"error": "rate_limit_exceeded", "description": ""},
        "Refuse a sign-in with this error of the token endpoint. If an error has several "
        "descriptions, a blank one means the first.",
    ),
}

_COMETD: dict[str, Kind] = {
    "refuse_message": Kind(
        BAYEUX,
        {"text": "403::Unknown client", "reconnect": "", "reason": ""},
        "Refuse a message with this error, this reconnect advice and this failureReason; blank "
        "values are omitted.",
    ),
    "end_cometd_session": Kind(
        _POLL,
        {},
        "Forget a session, even while its connect request is open; the response is 403::Unknown "
        "client.",
    ),
    "say_goodbye": Kind(
        _POLL, {}, "Send a session's pending events, and end it with /meta/disconnect."
    ),
    "answer_with_page": Kind(
        BAYEUX, {"status": 500}, "Answer a request with an HTML page and this HTTP status."
    ),
    "cut_poll": Kind(
        _POLL,
        {"with_events": True},
        "Reset the connection of an open connect request. If with_events is true, wait until "
        "events are pending; they are lost with the connection.",
    ),
    "drip_answer": Kind(
        BAYEUX, {"seconds": 1.0}, "Send a response in two halves, this many seconds apart."
    ),
}

_CHANGES: dict[str, Kind] = {
    "gap_event": Kind(
        (CHANGE,), {}, "Publish a gap event, which has only a header, for the next record change."
    ),
    "lose_event": Kind(
        (CHANGE,),
        {},
        "Publish no event for the next record change; the record's SystemModstamp moves as usual.",
    ),
    "delay_event": Kind(
        (CHANGE,),
        {"seconds": 5.0},
        "Publish the next change event this many seconds after its change; events of later "
        "changes can overtake it.",
    ),
}

_JOBS: dict[str, Kind] = {
    "end_query_job": Kind(
        (BULK,),
        {
            "state": "Failed",
            "message": "InvalidBatch : Failed to process query: QUERY_TIMEOUT: Your query request"
            " was running for too long.",
        },
        "The next query job of the Bulk API ends in the state Failed, with this errorMessage, or "
        "in the state Aborted. The target is an object.",
    ),
}

_ORG: dict[str, Kind] = {
    "expire_token": Kind(
        (),
        {},
        "All tokens expire: open streams end immediately with service.auth.error, and new calls "
        "fail with the same error.",
        acts=True,
    ),
    "revoke_token": Kind(
        (), {}, "All tokens are revoked; open streams continue, new calls are refused.", acts=True
    ),
    "corrupt_id": Kind((), {"replay_id": ""}, "One replay id (hex) becomes invalid.", acts=True),
    "age_out": Kind(
        (),
        {"replay_id": ""},
        "Delete the events up to a replay id (hex), or all events if it is blank; their ids "
        "become invalid.",
        acts=True,
    ),
    "reset_stream": Kind(
        (),
        {},
        "All retained events are deleted and all ids become invalid; open streams are dropped.",
        acts=True,
    ),
    "move_org": Kind(
        (),
        {},
        "All retained events get new replay ids and keep event.id; old ids become invalid; open "
        "streams are dropped; commit numbers restart.",
        acts=True,
    ),
    "purge_record": Kind(
        (),
        {"record_id": ""},
        "Delete a record permanently, without an event, as when the Recycle Bin is emptied.",
        acts=True,
    ),
    "stop_managed": Kind(
        (),
        {},
        "Set a managed subscription to STOP: its committed position is deleted and its stream "
        "ends.",
        acts=True,
    ),
    "delete_managed": Kind((), {}, "Delete a managed subscription; its stream ends.", acts=True),
}

KINDS: dict[str, Kind] = {
    **_CALLS,
    **_DELIVERY,
    **_PUBLISHING,
    **_COMMITS,
    **_SIGN_IN,
    **_COMETD,
    **_CHANGES,
    **_JOBS,
    **_ORG,
}
"""All kinds, by name."""
