"""The kinds of faults that exist, as data: where each can happen and what it takes.

What a kind does is written where it happens; this table is what the docs, the admin endpoint and
the checks in `faults` read. Two sorts: most kinds wait for their occasion and happen then; those
that `act` are done to the org at once, when they are added, and count whenever a client meets what
they did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

AnswerTip = Literal["none", "sent", "org"]
"""The tip in a commit answer: absent, the stream's last position, or the org's newest."""

RPCS = ("Subscribe", "GetSchema", "GetTopic", "Publish", "PublishStream", "ManagedSubscribe")
"""In the order of the proto."""

SIGN_IN = "SignIn"
"""Not an RPC: the place of faults that happen to who asks for a token."""

BAYEUX = tuple(
    f"/meta/{kind}" for kind in ("handshake", "connect", "subscribe", "unsubscribe", "disconnect")
)
"""Not RPCs: the messages of the Streaming API."""

CHANGE = "Change"
"""Not an RPC: a change of a record, where its event is made."""

_POLL = ("/meta/connect",)
_STREAMS = ("Subscribe", "ManagedSubscribe")
_MANAGED = ("ManagedSubscribe",)

AT_START = ("refuse", "drop_call", "delay_call")
"""Kinds that happen before a call is looked into."""

OPENED_LATER = (*_STREAMS, "PublishStream")
"""At the start of a stream its target is not known yet: faults there cannot name one."""

OF_A_SUBSCRIPTION = ("stop_managed", "delete_managed")
"""Kinds that need a target: a managed subscription, by developer name."""


@dataclass(frozen=True)
class Kind:
    """What one kind of fault takes.

    Attributes:
        rpcs: Where it can happen; empty for kinds that act.
        params: Parameter names and defaults; the type of a default is the type of the parameter.
        text: What it does, for the docs and the admin endpoint.
        acts: Whether it is done to the org when it is added.
    """

    rpcs: tuple[str, ...]
    params: Mapping[str, object]
    text: str
    acts: bool = False


_CALLS: dict[str, Kind] = {
    "refuse": Kind(
        RPCS,
        {"error_code": "service.unavailable", "status": ""},
        "End a call at its start with this error code (its suffix) and, if given, another status.",
    ),
    "drop_call": Kind(
        RPCS,
        {"status": "UNAVAILABLE"},
        "End a call at its start as the infrastructure would: no trailers. RESET cuts the stream.",
    ),
    "delay_call": Kind(
        RPCS, {"seconds": 1.0}, "Wait for this long at the start of a call, then continue."
    ),
    "drop_stream": Kind(
        _STREAMS,
        {"after_responses": 0, "status": "UNAVAILABLE"},
        "End a stream once it has sent this many responses, without trailers. OK ends it cleanly, "
        "RESET cuts the HTTP/2 stream.",
    ),
    "fail_stream": Kind(
        _STREAMS,
        {"after_responses": 0, "error_code": "service.unavailable", "status": ""},
        "End a stream once it has sent this many responses, with this error code.",
    ),
}

_DELIVERY: dict[str, Kind] = {
    "activate_late": Kind(
        _STREAMS,
        {"seconds": 5.0},
        "A stream that starts at LATEST never delivers what is published in its first seconds.",
    ),
    "split_response": Kind(
        _STREAMS, {"events": 1}, "The next response with events has at most this many."
    ),
    "merge_responses": Kind(
        _STREAMS,
        {"events": 10, "within_s": 5.0},
        "Hold events until this many wait (or as many as the stream may have), or for this long, "
        "then send them in one response.",
    ),
    "withhold_keepalive": Kind(
        _STREAMS, {}, "Send nothing when a keepalive is due; each one left out counts."
    ),
    "move_keepalive_tip": Kind(
        _STREAMS,
        {"advance": 0},
        "The next keepalive repeats the last position of its stream, or, with advance, is ahead "
        "of the org's tip by that many positions of other traffic.",
    ),
}

_PUBLISHING: dict[str, Kind] = {
    "lose_answer": Kind(
        ("Publish", "PublishStream"),
        {"after_responses": 0, "status": "UNAVAILABLE"},
        "Publish the events of a request, then end the call instead of answering, once it has sent "
        "that many responses. RESET cuts the stream.",
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
        "Accept a commit durably, then end the stream instead of answering.",
    ),
    "fail_commit": Kind(
        _MANAGED,
        {"message": "The commit failed."},
        "Answer a commit with an error; the committed position stays.",
    ),
    "leave_commit_unanswered": Kind(
        _MANAGED, {}, "Accept a commit durably and never answer it; the stream continues."
    ),
    "coalesce_commits": Kind(
        _MANAGED,
        {"count": 2, "within_s": 5.0},
        "Hold answers until this many commits wait, or for this long, then answer all at once.",
    ),
    "shape_commit_answer": Kind(
        _MANAGED,
        {"pending": True, "tip": "sent"},
        "The next commit answer is with or without the pending number, and with the tip none, "
        "sent or org, whatever the settings say.",
    ),
    "answer_with_events": Kind(
        _MANAGED,
        {"within_s": 5.0},
        "Send a commit's answer in one message with the next events, or by itself after this long.",
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
        {"error": "rate_limit_exceeded"},
        "Refuse every token request with this error of the token endpoint.",
    ),
}

_COMETD: dict[str, Kind] = {
    "refuse_message": Kind(
        BAYEUX,
        {"text": "403::Unknown client", "reconnect": "", "reason": ""},
        "Refuse a message with this error, this advice (blank for none), and this failureReason "
        "(blank for none).",
    ),
    "end_cometd_session": Kind(
        _POLL, {}, "Forget a session, even while its connect is held: 403::Unknown client."
    ),
    "say_goodbye": Kind(
        _POLL, {}, "End a session with /meta/disconnect, after the events that wait for it."
    ),
    "answer_with_page": Kind(
        BAYEUX, {"status": 500}, "Answer a request with an HTML page and this HTTP status."
    ),
    "cut_poll": Kind(
        _POLL,
        {"with_events": True},
        "Reset the connection of a connect that is held; with_events waits for events, which are "
        "lost with it.",
    ),
    "drip_answer": Kind(
        BAYEUX, {"seconds": 1.0}, "Send an answer in two halves, with this much time between them."
    ),
}

_CHANGES: dict[str, Kind] = {
    "gap_event": Kind(
        (CHANGE,), {}, "The next change of a record makes a gap event, which has a header only."
    ),
    "delay_event": Kind(
        (CHANGE,),
        {"seconds": 5.0},
        "The next change event comes this much later than its change, after those of later ones.",
    ),
}

_ORG: dict[str, Kind] = {
    "expire_token": Kind(
        (),
        {},
        "All tokens expire; open streams end with service.auth.error at once, new calls are "
        "refused with it.",
        acts=True,
    ),
    "revoke_token": Kind(
        (), {}, "All tokens are revoked; open streams continue, new calls are refused.", acts=True
    ),
    "corrupt_id": Kind(
        (), {"replay_id": ""}, "One replay id (hex) is invalid from now on.", acts=True
    ),
    "age_out": Kind(
        (),
        {"replay_id": ""},
        "Events up to a replay id (hex) are forgotten, all without one, and so are their ids.",
        acts=True,
    ),
    "reset_stream": Kind(
        (),
        {},
        "All retained events are gone and all ids are invalid; open streams are dropped.",
        acts=True,
    ),
    "move_org": Kind(
        (),
        {},
        "All retained events get new replay ids and keep event.id; old ids are invalid; open "
        "streams are dropped; commit numbers start again.",
        acts=True,
    ),
    "purge_record": Kind(
        (),
        {"record_id": ""},
        "A record is gone for good, without an event, as from an emptied Recycle Bin.",
        acts=True,
    ),
    "stop_managed": Kind(
        (),
        {},
        "STOP a managed subscription: its committed position is forgotten, its stream is ended.",
        acts=True,
    ),
    "delete_managed": Kind(
        (), {}, "Delete a managed subscription; its stream is ended.", acts=True
    ),
}

KINDS: dict[str, Kind] = {
    **_CALLS,
    **_DELIVERY,
    **_PUBLISHING,
    **_COMMITS,
    **_SIGN_IN,
    **_COMETD,
    **_CHANGES,
    **_ORG,
}
"""The kinds, by name."""
