"""Tests of the streaming protocol's core: requests, deliveries, and the reaction to each failure.

A Script plays the server, without I/O or a clock. ASK and POLL are its two lanes (connections):
POLL for the held /meta/connect, ASK for all other requests.
"""

from __future__ import annotations

import math
import random

import pytest

from sfpubsub.errors import (
    AuthenticationError,
    LocalProtocolError,
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    ReplayIdRejectedError,
    StreamError,
    StreamUnavailableError,
)
from sfpubsub.streaming.bayeux import Cut, Lane, Send
from sfpubsub.streaming.protocol import Pace

from .script import BROKEN, CLIENT, TOPIC, Script, event

ASK, POLL = Lane.ASK, Lane.POLL
UNKNOWN = "403::Unknown client"
INVALID = "400::The replayId {7} you provided was invalid.  Please provide a valid ID"
OTHER = "/u/News"


# Opening.


def test_opening_does_a_handshake_and_a_first_connect():
    """open() succeeds after a handshake and a first connect, which asks the server not
    to hold it.
    """
    script = Script()
    script.open()
    ((handshake,),) = script.sent
    assert handshake["supportedConnectionTypes"] == ["long-polling"]
    assert handshake["ext"] == {"replay": True}
    assert "clientId" not in handshake
    script.confirm(ASK)
    (connect,) = script.sent[-1]
    assert (connect["clientId"], connect["advice"]) == (CLIENT, {"timeout": 0})
    assert script.outcome("open") is None
    script.confirm(POLL)
    assert script.outcome("open") == "done"
    (connect,) = script.sent[-1]
    assert "advice" not in connect


@pytest.mark.parametrize(
    ("speak", "kind"),
    [
        (lambda s: s.fail(ASK), StreamUnavailableError),
        (lambda s: s.refuse(ASK, "403::Handshake denied", "none"), PermissionDeniedError),
        (
            lambda s: s.refuse(ASK, "403::Handshake denied", "none", "503::Server is too busy"),
            StreamUnavailableError,
        ),
        (
            lambda s: s.refuse(
                ASK,
                "403::Handshake denied",
                "none",
                "403::Organization concurrent user limit exceeded",
            ),
            QuotaExceededError,
        ),
        (lambda s: s.confirm(ASK, clientId=5), RemoteProtocolError),
        (lambda s: s.answer(ASK), RemoteProtocolError),
        (lambda s: s.answer(ASK, "x"), RemoteProtocolError),
        (lambda s: s.answer(ASK, {"channel": 5}), RemoteProtocolError),
        (lambda s: (s.confirm(ASK), s.refuse(POLL, "500::x", "retry")), StreamError),
        (lambda s: s.wait(), StreamUnavailableError),
        (lambda s: s.close(), LocalProtocolError),
    ],
)
def test_opening_fails_at_once(speak, kind):
    """Any failure while opening ends open() with the matching error at once, without a retry."""
    script = Script()
    script.open()
    speak(script)
    assert type(script.outcome("open")) is kind
    assert script.protocol.over
    assert script.errors == []


def test_opening_renews_a_token_that_has_expired_once():
    """If the first token is refused while opening, it is renewed once; a second refusal is an
    error.
    """
    script = Script()
    script.open()
    script.refuse(ASK, "403::Handshake denied", "none", "401::Authentication invalid")
    assert script.renewals == 1
    script.refuse(ASK, "403::Handshake denied", "none", "401::Authentication invalid")
    assert script.renewals == 1
    assert type(script.outcome("open")) is AuthenticationError


@pytest.mark.parametrize("advised", ["retry", "handshake"])
def test_a_handshake_refused_for_its_token_renews_it_despite_other_advice(advised):
    """A handshake refused with a 401 renews the token, even if the server advises to repeat it."""
    script = Script()
    script.open()
    script.refuse(ASK, "401::Request requires authentication", advised)
    assert script.renewals == 1
    script.confirm(ASK)
    script.confirm(POLL)
    assert script.outcome("open") == "done"


# Polling.


def test_the_advised_times_are_respected():
    """The next poll is sent after the interval that the server advises, in milliseconds.

    The client waits for its response for 1.2 times the advised timeout.
    """
    script = Script()
    script.open()
    script.confirm(ASK)
    script.confirm(POLL, advice={"reconnect": "retry", "interval": 250, "timeout": 110_000})
    assert POLL not in script.flying
    assert script.protocol.deadline == pytest.approx(100.25)
    script.wait()
    assert script.flying[POLL].timeout == pytest.approx(132.0)
    script.confirm(POLL, advice={"reconnect": "retry", "interval": 0})
    assert script.flying[POLL].timeout == pytest.approx(132.0)


def test_there_is_never_more_than_one_connect_in_flight():
    """After an unsubscribe and a lost connection, exactly one connect is in flight again.

    The Script checks at every request that its lane is free.
    """
    script = Script().connected(TOPIC)
    script.wait(1.0)
    script.unsubscribe()
    script.confirm(ASK)
    script.fail(POLL)
    script.reconnect()
    assert POLL in script.flying


def test_multiple_clients_advice_suspends_long_polling(caplog):
    """With the advice "multiple-clients", connects are not held but sent at intervals of 1 s, with
    one warning. Later advice without it restores long polling.
    """
    script = Script().connected()
    for _ in range(2):
        script.confirm(POLL, advice={"multiple-clients": True, "interval": 0})
        script.wait() if POLL not in script.flying else None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    script.confirm(POLL)
    assert POLL not in script.flying
    before = script.now
    script.wait()
    assert script.now == pytest.approx(before + 1.0)
    assert script.sent[-1][0]["advice"] == {"timeout": 0}
    script.confirm(POLL, advice={"reconnect": "retry", "interval": 0, "timeout": 110_000})
    assert "advice" not in script.sent[-1][0], "the advice no longer mentions multiple clients"


def test_events_are_recognized_by_their_data():
    """A message with data is an event, wherever it is in a response and whatever id it has."""
    script = Script().connected(TOPIC)
    script.answer(
        POLL,
        event(1, id="4"),
        {
            "channel": "/meta/connect",
            "id": script.messages(POLL)[0]["id"],
            "successful": True,
            "x": 1,
        },
        event(3),
    )
    assert script.ids == [1, 3]
    assert POLL in script.flying


@pytest.mark.parametrize("wrong", [None, "5", True, 1.5])
def test_an_event_without_a_replay_id_is_delivered(wrong):
    """An event without a valid replay id is delivered without one, and leaves the position
    unchanged.
    """
    script = Script().connected(TOPIC)
    bare = {"channel": TOPIC, "data": "text"}
    script.confirm(POLL, event(4), event(wrong), bare, event(5, "/topic/Other"))
    assert script.ids == [4, None, None, 5]
    script.fail(POLL)
    script.reconnect()
    assert script.positions == {TOPIC: 4}


def test_an_event_with_an_empty_channel_name_is_delivered():
    """An event whose channel name is empty is delivered like any other."""
    script = Script().connected(TOPIC)
    script.confirm(POLL, event(4, ""), event(5))
    assert script.ids == [4, 5]


def test_replies_that_match_no_request_are_ignored():
    """A reply whose channel and id match no request changes nothing, and polling continues."""
    script = Script().connected(TOPIC)
    (connect,) = script.messages(POLL)
    strangers = [
        {"channel": "/meta/subscribe", "id": [1], "successful": False},
        {"channel": "/meta/subscribe", "id": connect["id"], "successful": False},
        {"channel": "/meta/connect", "id": "999", "successful": False},
    ]
    script.confirm(POLL, *strangers)
    assert not script.protocol.over
    assert script.messages(POLL) != [connect]


# Subscribing.


def test_a_filter_is_part_of_the_subscription_but_not_of_the_position():
    """A subscribe request contains the filter in the subscription's name.

    The replay position is sent under the channel's name without the filter.
    """
    script = Script().connected()
    script.subscribe(f"{TOPIC}?Name='a'", 7)
    (message,) = script.sent[-1]
    assert message["subscription"] == f"{TOPIC}?Name='a'"
    assert message["ext"] == {"replay": {TOPIC: 7}}
    script.confirm(ASK)
    assert script.outcome(f"{TOPIC}?Name='a'") == "done"
    script.confirm(POLL, event(8, f"{TOPIC}?Name='a'"), event(9))
    assert {item.subscription for item in script.queued} == {f"{TOPIC}?Name='a'"}


@pytest.mark.parametrize("name", ["", "topic/X", "/", "/meta/x", "/service/x"])
def test_an_invalid_channel_name_is_rejected(name):
    """Empty and relative names, and names under /meta or /service, raise LocalProtocolError."""
    with pytest.raises(LocalProtocolError, match="not a channel"):
        Script().connected().subscribe(name)


def test_two_filters_on_one_channel_are_rejected():
    """Subscribing to a channel with a second filter raises, because both would share
    one position.
    """
    script = Script().connected(TOPIC)
    with pytest.raises(LocalProtocolError, match="another client"):
        script.subscribe(f"{TOPIC}?Name='a'")


def test_a_channel_is_subscribed_once():
    """Repeating a completed subscribe sends nothing and succeeds.

    Subscribing with another position, or while the first subscribe is in flight, raises.
    """
    script = Script().connected(TOPIC)
    count = len(script.sent)
    script.subscribe(TOPIC, waiter="again")
    assert script.outcome("again") == "done"
    assert len(script.sent) == count
    with pytest.raises(LocalProtocolError, match="unsubscribe it first"):
        script.subscribe(TOPIC, -2, rewind=True)
    script.subscribe(OTHER)
    with pytest.raises(LocalProtocolError, match="already"):
        script.subscribe(OTHER, waiter="twice")


def test_subscribing_to_a_pubsub_api_channel_logs_a_hint(caplog):
    """Subscribing to a channel that the Pub/Sub API also carries logs a hint; other channels do
    not.
    """
    caplog.set_level("INFO", "sfpubsub.streaming")
    script = Script().connected(TOPIC)
    assert "Pub/Sub API" not in caplog.text
    script.subscribe("/event/Order__e")
    assert "/event/Order__e can be read through the Pub/Sub API" in caplog.text


def test_subscribes_are_split_into_requests_below_the_size_limit():
    """Many subscribes are split into requests below the size limit.

    A filter that is too long for any request is rejected.
    """
    script = Script().connected()
    script.subscribe("/u/first")
    names = [f"/u/{number}?{'x' * 9_000}" for number in range(10)]
    for name in names:
        script.subscribe(name)
    for _ in range(5):
        script.confirm(ASK)
    assert all(script.outcome(name) == "done" for name in names)
    with pytest.raises(LocalProtocolError, match="too long"):
        script.subscribe(f"/u/long?{'x' * 33_000}")
    assert script.protocol.channels.names == {"/u/first", *names}


def test_events_that_overtake_a_subscribe_reply_wait_for_it():
    """Events that a poll returns before the reply to a subscribe are queued after the older events
    in that reply.
    """
    script = Script().connected()
    script.subscribe(TOPIC, -2)
    script.confirm(POLL, event(3), event(4))
    assert script.ids == []
    assert POLL not in script.flying, "events that wait outside the queue are not bounded"
    script.confirm(ASK, event(1), event(2))
    assert script.ids == [1, 2, 3, 4]
    assert POLL in script.flying


def test_events_that_overtook_a_lost_subscribe_reply_are_replayed():
    """If the reply to a subscribe is lost, events that arrived before it are dropped and replayed.

    The lost reply may have contained older events, which must come first.
    """
    script = Script().connected()
    script.subscribe(TOPIC, -2)
    script.confirm(POLL, event(3))
    script.fail(ASK)
    script.reconnect()
    assert script.positions == {TOPIC: -2}
    assert script.ids == []
    script.confirm(ASK, event(1), event(3))
    script.wait(Pace().reorder)
    assert script.ids == [1, 3]


def test_polling_continues_after_an_abandoned_subscribe_is_refused():
    """If an interrupted caller's subscribe is refused, polling continues.

    Events of its channel that arrived before the reply are dropped.
    """
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.confirm(POLL, event(3, OTHER))
    assert POLL not in script.flying
    script.tick(lambda: script.protocol.abandon(script.calls[OTHER]))
    script.refuse(ASK, "403::Restricted channel")
    assert POLL in script.flying
    assert script.ids == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (INVALID, ReplayIdRejectedError),
        ("403::Restricted channel", PermissionDeniedError),
        ("403::Subscription limit exceeded for this topic", QuotaExceededError),
    ],
)
def test_a_refused_subscribe_raises_in_its_caller(error, kind):
    """A refused subscribe raises the matching error in its caller.

    It does not renew the token or subscribe the channel.
    """
    script = Script().connected()
    script.subscribe(TOPIC, 7)
    script.refuse(ASK, error)
    assert type(script.outcome(TOPIC)) is kind
    assert script.renewals == 0
    assert script.errors == []
    assert script.protocol.channels.names == set()
    if kind is ReplayIdRejectedError:
        gap = script.outcome(TOPIC).gap
        assert bytes(gap.after) == (7).to_bytes(8, "big")
        assert (gap.subscription, gap.error_code) == (TOPIC, "400")


def test_an_unsubscribe_waits_for_the_servers_reply():
    """An unsubscribe succeeds once it is confirmed, or at once if the channel is not subscribed.

    If it is refused, it raises and the channel stays subscribed.
    """
    script = Script().connected(TOPIC)
    script.unsubscribe()
    with pytest.raises(LocalProtocolError, match="wait"):
        script.unsubscribe(TOPIC, "twice")
    script.confirm(ASK)
    assert script.outcome("left") == "done"
    script.unsubscribe(TOPIC, "none")
    assert script.outcome("none") == "done"
    script.subscribe(TOPIC, waiter="back")
    script.confirm(ASK)
    script.unsubscribe(TOPIC, "refused")
    script.refuse(ASK, "500::no")
    assert type(script.outcome("refused")) is StreamError
    assert script.protocol.channels.names == {TOPIC}


def test_an_event_that_arrives_after_an_unsubscribe_is_delivered():
    """An event that arrives after an unsubscribe is delivered.

    It names its subscription, including the filter.
    """
    name = f"{TOPIC}?Name='a'"
    script = Script().connected(name)
    script.unsubscribe(name)
    script.confirm(ASK)
    script.confirm(POLL, event(5))
    assert [(item.replay_id, item.subscription) for item in script.queued] == [(5, name)]
    assert POLL in script.flying


@pytest.mark.parametrize("stage", ["between", "flying", "queued"])
def test_a_channel_left_during_an_outage_is_not_resumed(stage):
    """An unsubscribe succeeds although the session is lost, and its channel is not subscribed
    again.
    """
    script = Script().connected(TOPIC, OTHER)
    if stage == "queued":
        script.subscribe("/u/third")
        script.unsubscribe()
    if stage == "flying":
        script.unsubscribe()
    script.fail(POLL)
    if stage == "between":
        script.unsubscribe()
    script.reconnect()
    assert script.outcome("left") == "done"
    assert TOPIC not in script.positions
    assert OTHER in script.positions


def channels_of_last_request(script: Script) -> list[str]:
    """Return the channels of the messages in the last request, such as ["/meta/unsubscribe"]."""
    return [message["channel"] for message in script.sent[-1]]


@pytest.mark.parametrize("answer", ["yes", "no", "lost"])
def test_unsubscribing_while_the_resubscribe_is_in_flight(answer):
    """An unsubscribe succeeds even if a resubscribe in flight is refused or gets no reply.

    If the resubscribe succeeds, an unsubscribe request is sent afterwards.
    """
    script = Script().connected(TOPIC)
    script.confirm(POLL, event(5))
    script.fail(POLL)
    script.reconnect()
    script.unsubscribe()
    assert script.outcome("left") is None
    if answer == "yes":
        script.confirm(ASK)
        assert channels_of_last_request(script) == ["/meta/unsubscribe"]
        assert script.outcome("left") is None
        script.confirm(ASK)
    elif answer == "no":
        script.refuse(ASK, "403::Restricted channel")
    else:
        script.fail(ASK)
    assert script.outcome("left") == "done"
    assert script.errors == []
    assert script.protocol.channels.names == set()


def test_a_subscribe_confirmed_after_its_timeout_is_unsubscribed():
    """If the server confirms a subscribe after its caller was told that it failed, the channel is
    unsubscribed.
    """
    script = Script(connection_timeout=5.0).connected(TOPIC)
    script.refuse(POLL, "500::oops", "retry")
    script.subscribe(OTHER)
    script.now += 5.0
    script.wait(0.0)
    assert type(script.outcome(OTHER)) is StreamUnavailableError
    script.confirm(ASK)
    assert channels_of_last_request(script) == ["/meta/unsubscribe"]
    script.confirm(ASK)
    assert script.protocol.channels.names == {TOPIC}


def test_a_subscribe_can_be_retried_after_its_timeout():
    """If a subscribe has timed out, a retry is sent with its own start position.

    It is sent once the response to the first subscribe has arrived.
    """
    script = Script(connection_timeout=5.0).connected(TOPIC)
    script.refuse(POLL, "500::oops", "retry")
    script.subscribe(OTHER)
    script.now += 5.0
    script.wait(0.0)
    script.subscribe(OTHER, 7, waiter="again")
    script.confirm(ASK)
    assert script.outcome("again") is None
    assert script.positions == {OTHER: 7}
    script.confirm(ASK)
    assert script.outcome("again") == "done"


def test_requests_of_an_interrupted_caller_are_undone():
    """If a caller is interrupted, its subscribe is undone, and its open() ends the client.

    Its unsubscribe is still completed.
    """
    script = Script().connected(TOPIC)
    script.subscribe(OTHER, waiter="other")
    script.tick(lambda: script.protocol.abandon(script.calls["other"]))
    assert script.protocol.channels.names == {TOPIC}
    script.confirm(ASK)
    assert channels_of_last_request(script) == ["/meta/unsubscribe"]
    script.confirm(ASK)
    script.unsubscribe(TOPIC)
    script.tick(lambda: script.protocol.abandon(script.calls["left"]))
    script.confirm(ASK)
    assert script.protocol.channels.names == set()
    opening = Script()
    opening.open()
    opening.tick(lambda: opening.protocol.abandon(opening.calls["open"]))
    assert opening.protocol.over


@pytest.mark.parametrize(
    ("name", "resumes", "position"),
    [(TOPIC, True, 6), (TOPIC, False, -2), (f"{TOPIC}?Name='a'", True, -2)],
)
def test_a_resubscribed_channel_resumes_if_its_position_is_stored(name, resumes, position):
    """A resubscribed channel whose position is stored resumes after its last queued event.

    If its position is not stored, or its filter differs, it starts at the requested position.
    """
    script = Script().connected(TOPIC, start=-2)
    script.confirm(POLL, event(5))
    script.unsubscribe()
    script.confirm(POLL, event(6))
    script.confirm(ASK)
    call = script.call("back")
    script.protocol.channels.subscribe(name, -2, call, rewind=False, resumes=resumes)
    script.tick()
    assert script.positions == {TOPIC: position}
    script.confirm(ASK)
    assert script.protocol.channels.names == {name}


# Resuming.


def test_a_channel_resumes_after_its_last_queued_event():
    """After a reconnect, a channel resumes after its last queued event, even an unread one.

    A channel without events restarts at its first start position.
    """
    script = Script().connected(TOPIC, OTHER, start=-2)
    script.confirm(POLL, event(103), event(105))
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 105, OTHER: -2}
    assert script.gaps == []
    assert script.renewals == 0


def test_a_reconnect_before_the_first_event_reports_a_gap():
    """A channel started at -1 reports a Gap if no event has arrived; after an event it resumes."""
    script = Script().connected(TOPIC)
    script.fail(POLL)
    script.reconnect()
    assert script.gaps == [("unanchored", TOPIC)]
    script.confirm(ASK)
    script.confirm(POLL, event(5))
    script.fail(POLL)
    script.reconnect()
    assert script.gaps == [("unanchored", TOPIC)]
    assert script.positions == {TOPIC: 5}


def test_a_reconnect_without_replay_reports_a_gap():
    """If the handshake of a reconnect does not offer replay, a Gap is reported although the last
    replay id is known.
    """
    script = Script().connected(TOPIC)
    script.confirm(POLL, event(5))
    script.fail(POLL)
    script.fail_cancelled()
    script.wait()
    script.confirm(ASK, ext={})
    script.confirm(POLL)
    assert script.gaps == [("unanchored", TOPIC)]


def test_a_subscribe_that_was_never_answered_reports_no_gap():
    """If a subscribe is retried in a new session without ever having been confirmed, no Gap is
    reported.
    """
    script = Script().connected()
    script.subscribe(TOPIC)
    script.fail(ASK)
    script.reconnect()
    script.confirm(ASK)
    assert script.outcome(TOPIC) == "done"
    assert script.gaps == []


def test_the_fallback_is_used_at_every_subscribe():
    """The fallback replaces a rejected position in the first subscribe and after every reconnect.

    It applies to each channel separately, with a Gap each time.
    """
    script = Script(fallback=-2).connected()
    script.subscribe(TOPIC, 7)
    script.subscribe(OTHER, 9)
    script.refuse(ASK, INVALID)
    assert script.positions == {OTHER: 9, TOPIC: -2}
    script.confirm(ASK)
    assert script.outcome(TOPIC) == script.outcome(OTHER) == "done"
    assert script.gaps == [("rejected", TOPIC)]
    script.confirm(POLL, event(20), event(21, OTHER))
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    script.refuse(ASK, INVALID)
    assert script.positions == {TOPIC: -2, OTHER: -2}
    assert script.gaps == [("rejected", TOPIC), ("rejected", TOPIC), ("rejected", OTHER)]
    assert script.errors == []


def test_a_refused_fallback_is_an_error():
    """If the server rejects the fallback too, the subscribe raises ReplayIdRejectedError."""
    script = Script(fallback=-2).connected()
    script.subscribe(TOPIC, 7)
    script.refuse(ASK, INVALID)
    script.refuse(ASK, INVALID)
    assert type(script.outcome(TOPIC)) is ReplayIdRejectedError


def test_a_rejected_position_without_a_fallback_is_reported():
    """If a position is rejected on reconnect, the reader raises and the channel ends.

    The other channels continue.
    """
    script = Script().connected(TOPIC, OTHER)
    script.confirm(POLL, event(5), event(6, OTHER))
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    first, second = script.messages(ASK)
    yes = {"channel": "/meta/subscribe", "id": second["id"], "successful": True}
    no = {**yes, "id": first["id"], "successful": False, "error": INVALID}
    script.answer(ASK, no, yes)
    (error,) = script.errors
    assert type(error) is ReplayIdRejectedError
    assert script.protocol.channels.names == {OTHER}
    assert not script.protocol.over


# Failures.


@pytest.mark.parametrize(
    "speak",
    [
        lambda s: s.fail(POLL),
        lambda s: s.answer(POLL),
        lambda s: s.answer(POLL, "nonsense"),
        lambda s: s.wait(),
        lambda s: (s.unsubscribe(OTHER), s.fail(ASK)),
        lambda s: (s.unsubscribe(OTHER), s.answer(ASK)),
        lambda s: s.confirm(POLL, {"channel": "/meta/disconnect"}),
        lambda s: s.confirm(POLL, {"channel": "/meta/disconnect"}, advice={"reconnect": "none"}),
        lambda s: s.confirm(POLL, advice={"reconnect": "handshake"}),
    ],
    ids=["broken", "empty", "nonsense", "late", "ask", "unanswered", "goodbye", "end", "advice"],
)
def test_a_session_that_may_have_lost_a_response_is_replaced(speak):
    """If a response may have been lost, a new session resumes after the last queued event.

    The token is not renewed, and no error is reported.
    """
    script = Script().connected(TOPIC, OTHER)
    script.confirm(POLL, event(5), event(6, OTHER))
    speak(script)
    script.reconnect()
    assert script.positions[TOPIC] == 5
    assert len({m[0]["clientId"] for m in script.sent if "clientId" in m[0]}) == 1
    handshakes = [m for m in script.sent if m[0]["channel"] == "/meta/handshake"]
    assert len(handshakes) == 2
    assert script.renewals == 0
    assert script.errors == []


@pytest.mark.parametrize("speak", [lambda s: s.answer(ASK), lambda s: s.refuse(ASK, UNKNOWN)])
def test_a_failed_request_of_many_messages_counts_as_one_failure(speak):
    """A failed request that resubscribes two channels counts as one failure, so the retry delay is
    doubled only once.
    """
    script = Script(connection_timeout=None).connected(TOPIC, OTHER)
    script.fail(POLL)
    script.reconnect()
    assert len(script.messages(ASK)) == 2
    speak(script)
    assert script.protocol._next_at == pytest.approx(script.now + 2.0)


def test_a_held_connect_is_cancelled_before_a_new_session():
    """A new session starts only after the held connect of the lost session has been cancelled.

    Events that still arrive in its response are delivered.
    """
    script = Script(connection_timeout=None).connected(TOPIC)
    script.unsubscribe("/u/none")
    script.subscribe(OTHER)
    script.fail(ASK)
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL]
    script.wait(60.0)
    assert ASK not in script.flying
    script.answer(POLL, event(8))
    assert script.ids == [8]
    script.confirm(ASK)
    script.confirm(POLL)
    assert script.positions == {TOPIC: 8, OTHER: -1}


@pytest.mark.parametrize("late", [True, False])
def test_events_before_a_lost_subscribe_reply_do_not_move_the_position(late):
    """If the reply to a subscribe is lost, a newer event from a poll does not move the position.

    That event and the older ones in the lost reply are all replayed.
    """
    script = Script(connection_timeout=None).connected()
    script.subscribe(TOPIC, -2)
    if late:
        script.fail(ASK)
        script.answer(POLL, event(3))
        script.wait()
    else:
        script.answer(POLL, event(3))
        script.fail(ASK)
        script.wait()
    script.confirm(ASK)
    script.confirm(POLL)
    assert script.ids == []
    assert script.positions == {TOPIC: -2}
    script.confirm(ASK, event(1), event(3))
    script.wait(Pace().reorder)
    assert script.ids == [1, 3]


def test_an_invalid_answer_to_a_cancelled_request_is_ignored():
    """An invalid response to a cancelled request does not count as a second failure, so the retry
    delay is not doubled.
    """
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.fail(ASK)
    before = script.protocol._next_at
    script.answer(POLL, "nonsense")
    assert script.protocol._next_at == before


def test_a_response_that_is_never_readable_stops_the_client():
    """If three held connects in a row cannot be read, the client stops with an error.

    A connect that is answered well in between starts the count again.
    """
    unreadable = RemoteProtocolError("the server sent invalid JSON", retryable=True)
    script = Script(connection_timeout=None).connected(TOPIC)
    for good in (True, False):
        for _ in range(2):
            script.fail(POLL, unreadable)
            script.reconnect()
            script.confirm(ASK)
        if good:
            script.confirm(POLL)
    assert script.errors == []
    script.fail(POLL, unreadable)
    (error,) = script.errors
    assert type(error) is RemoteProtocolError
    assert error.__cause__ is unreadable
    assert script.protocol.over


def test_a_sign_in_may_take_longer_than_a_request():
    """A handshake fails only after the time allowed for the sign-in plus the request timeout."""
    script = Script()
    script.open()
    assert script.flying[ASK].timeout == Pace().request
    script.wait(Pace().sign_in)
    assert script.outcome("open") is None
    script.wait(Pace().request)
    assert type(script.outcome("open")) is StreamUnavailableError


def test_a_slow_token_renewal_is_reported_as_an_outage():
    """A token renewal that takes longer than connection_timeout is reported to the application."""
    script = Script(connection_timeout=10.0).connected(TOPIC)
    script.refuse(POLL, "401::Authentication invalid", "none")
    script.wait(10.0)
    assert [type(error) for error in script.errors] == [StreamUnavailableError]


def test_the_retry_delay_doubles_and_is_half_random():
    """The retry delay doubles from 1 s to 60 s, and half of it is random.

    A completed reconnect resets it.
    """
    script = Script(connection_timeout=None).connected(TOPIC)
    script.chance = 0.0
    script.fail(POLL)
    assert script.protocol.deadline == pytest.approx(script.now + 0.5)
    script.chance = 1.0
    delays = []
    for _ in range(8):
        script.wait()
        script.fail(ASK)
        delays.append(round(script.protocol.deadline - script.now, 3))
    assert delays == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    script.wait()
    script.confirm(ASK)
    script.confirm(POLL)
    script.confirm(ASK)
    script.fail(POLL)
    assert script.protocol.deadline == pytest.approx(script.now + 1.0)


def test_an_unknown_client_does_not_cause_a_handshake_loop():
    """A session that is lost after at least a second is replaced at once.

    One that is lost immediately is replaced only after a delay.
    """
    script = Script().connected(TOPIC)
    script.now += 1.0
    script.refuse(POLL, UNKNOWN, "handshake")
    assert ASK in script.flying
    script.confirm(ASK)
    script.refuse(POLL, UNKNOWN, "handshake")
    assert not script.flying
    assert script.protocol.deadline == pytest.approx(script.now + 1.0)


@pytest.mark.parametrize(
    "speak",
    [
        lambda s: s.confirm(POLL, {"channel": "/meta/disconnect"}),
        lambda s: s.confirm(POLL, advice={"reconnect": "handshake"}),
        lambda s: s.refuse(POLL, UNKNOWN, "handshake"),
    ],
    ids=["goodbye", "advice", "unknown"],
)
def test_sessions_that_end_at_once_are_replaced_slowly(speak):
    """If the server ends each session at its first poll, new ones are opened with a pause of half a
    second or more.
    """
    script = Script().connected(TOPIC)
    for _ in range(20):
        begun = script.now
        speak(script)
        script.reconnect()
        script.confirm(ASK)
        assert script.now >= begun + 0.5
    script.now += 1.0
    speak(script)
    assert ASK in script.flying


def test_retry_advice_repeats_the_connect_in_the_same_session():
    """If the server advises "retry", the connect is repeated in the same session after a delay."""
    script = Script().connected(TOPIC)
    script.refuse(POLL, "500::oops", "retry")
    assert POLL not in script.flying
    script.wait()
    assert script.sent[-1][0]["channel"] == "/meta/connect"
    script.confirm(POLL)
    assert script.protocol.deadline == script.now + Pace().held * Pace().held_factor


def test_a_busy_server_is_retried_after_the_busy_delay():
    """A server that is too busy is asked again after the busy delay.

    The token is not renewed, even if the error is a 401.
    """
    script = Script(connection_timeout=None).connected(TOPIC)
    script.refuse(POLL, "401::Authentication invalid", "none", "503::Server is too busy")
    assert script.renewals == 0
    assert script.protocol.deadline == pytest.approx(script.now + Pace().busy)


def test_a_handshake_denied_by_a_limit_is_retried():
    """A handshake that an org limit denies is retried after the delay for busy servers.

    After connection_timeout, an error caused by the limit is reported. A later attempt still
    succeeds.
    """
    script = Script(connection_timeout=300.0).connected(TOPIC)
    script.fail(POLL)
    script.wait()
    limit = "403::Organization concurrent user limit exceeded"
    script.refuse(ASK, "403::Handshake denied", "none", limit)
    assert script.protocol.deadline == pytest.approx(script.now + Pace().busy)
    while not script.errors:
        script.wait()
        if ASK in script.flying:
            script.refuse(ASK, "403::Handshake denied", "none", limit)
    (error,) = script.errors
    assert type(error) is StreamUnavailableError
    assert type(error.__cause__) is QuotaExceededError
    assert script.renewals == 0
    script.reconnect()
    script.confirm(ASK)
    assert script.protocol.channels.names == {TOPIC}


def test_a_revoked_token_is_renewed_once():
    """After a revoked token is renewed, all channels resume; a refusal right after the renewal is
    an error.
    """
    script = Script().connected(TOPIC)
    script.confirm(POLL, event(5))
    script.refuse(POLL, "401::Authentication invalid", "none")
    assert script.renewals == 1
    script.confirm(ASK)
    script.confirm(POLL)
    assert script.positions == {TOPIC: 5}
    script.confirm(ASK)
    script.refuse(POLL, "401::Authentication invalid", "none")
    assert script.renewals == 1
    (error,) = script.errors
    assert type(error) is AuthenticationError
    assert script.protocol.over


@pytest.mark.parametrize("use", ["poll", "time"])
def test_a_token_that_worked_is_renewed_again(use):
    """A token that worked for a minute or for one held connect is renewed again when it
    is refused.
    """
    script = Script(connection_timeout=None).connected(TOPIC)
    for number in (1, 2):
        script.refuse(POLL, "401::Authentication invalid", "none")
        assert script.renewals == number
        script.confirm(ASK)
        script.confirm(POLL)
        script.confirm(ASK)
        if use == "poll":
            script.confirm(POLL)
        else:
            script.now += 61.0


def test_a_subscribe_refused_for_its_token_renews_the_token():
    """A subscribe refused because of the token is repeated with its position and a new token."""
    script = Script().connected()
    script.subscribe(TOPIC, 7)
    script.refuse(ASK, "401::Authentication invalid")
    script.fail_cancelled()
    assert script.renewals == 1
    script.confirm(ASK)
    script.confirm(POLL)
    assert script.positions == {TOPIC: 7}
    script.confirm(ASK)
    assert script.outcome(TOPIC) == "done"


def test_a_failed_sign_in_is_reported():
    """If signing in fails permanently, its error is reported; a temporary failure is retried."""
    script = Script(connection_timeout=None).connected(TOPIC)
    script.refuse(POLL, "401::Authentication invalid", "none")
    script.fail(ASK, StreamUnavailableError("the login host is down"))
    assert script.errors == []
    script.wait()
    assert script.flying[ASK].refused == "session"
    refused = AuthenticationError("invalid_grant")
    script.fail(ASK, refused)
    assert script.errors == [refused]
    assert script.protocol.over


def test_a_page_of_the_login_host_does_not_end_a_client():
    """If a session is renewed and the login host, or a proxy, answers with a page, the client goes
    on: it tries again after a delay. While it is being opened, the error is reported.
    """
    page = RemoteProtocolError("the login host returned status 200 with HTML")
    script = Script(connection_timeout=None).connected(TOPIC)
    script.refuse(POLL, "401::Authentication invalid", "none")
    for _ in range(5):
        script.fail(ASK, page)
        assert script.errors == []
        script.wait()
    script.confirm(ASK)
    script.confirm(POLL)
    assert not script.protocol.over
    script = Script()
    script.open()
    script.fail(ASK, page)
    assert script.outcome("open") is page


def test_advice_not_to_reconnect_is_reported():
    """If the server advises "none" for a reason other than the token, the client stops with one
    error.

    This applies whether the connect was refused or successful.
    """
    for speak in (
        lambda s: s.refuse(POLL, "403::Organization says no", "none"),
        lambda s: s.confirm(POLL, advice={"reconnect": "none"}),
    ):
        script = Script().connected(TOPIC)
        speak(script)
        assert len(script.errors) == 1
        assert script.protocol.over


def test_a_non_retryable_error_stops_the_client():
    """An error such as an untrusted certificate fails all waiting calls, and nothing is retried."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.fail(POLL, StreamUnavailableError("certificate", retryable=False))
    assert len(script.errors) == 1
    assert script.outcome(OTHER) is script.errors[0]
    assert script.protocol.deadline == math.inf


# The outage.


def test_an_outage_is_reported_after_each_connection_timeout():
    """The application gets an error each time connection_timeout has passed, and none after the
    reconnect.
    """
    script = Script(connection_timeout=10.0).connected(TOPIC)
    script.confirm(POLL, event(5))
    begun = script.now
    script.fail(POLL)
    told = []
    while len(told) < 3:
        script.wait()
        if ASK in script.flying:
            script.fail(ASK)
        script.read()
        if len(script.errors) > len(told):
            told.append(script.now - begun)
    assert told == pytest.approx([10.0, 20.0, 30.0])
    assert all(type(error) is StreamUnavailableError for error in script.errors)
    assert script.errors[0].__cause__ is BROKEN
    script.reconnect()
    script.confirm(ASK)
    script.wait(100.0)
    assert len(script.errors) == 3


def test_an_outage_lasts_until_all_channels_are_subscribed_again():
    """If the server answers every request except subscribes, an outage is still reported."""
    script = Script(connection_timeout=10.0).connected(TOPIC)
    begun = script.now
    script.fail(POLL)
    while not script.errors and script.now < begun + 100.0:
        if ASK not in script.flying:
            script.wait()
        elif "subscription" in script.messages(ASK)[0]:
            script.fail(ASK)
            script.fail_cancelled()
        else:
            script.confirm(ASK)
            script.confirm(POLL)
    assert script.now == pytest.approx(begun + 10.0)


def test_an_outage_queues_only_one_error_while_none_is_read():
    """However long an outage lasts, at most one unread error is in the queue, so memory
    is bounded.
    """
    script = Script(connection_timeout=1.0).connected(TOPIC)
    script.fail(POLL)
    for _ in range(50):
        script.wait()
        if ASK in script.flying:
            script.fail(ASK)
    assert len(script.errors) == 1


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_timeout_no_outage_is_reported(timeout):
    """With a connection_timeout of None or 0, an outage is never reported."""
    script = Script(connection_timeout=timeout).connected(TOPIC)
    script.fail(POLL)
    for _ in range(20):
        script.wait()
        script.fail(ASK)
    assert script.errors == []


def test_a_subscribe_times_out():
    """After connection_timeout a subscribe raises, and its channel is not subscribed later."""
    script = Script(connection_timeout=1.5).connected()
    script.subscribe(TOPIC)
    script.fail(ASK)
    script.fail_cancelled()
    while script.outcome(TOPIC) is None:
        script.wait()
        if ASK in script.flying:
            script.fail(ASK)
    assert type(script.outcome(TOPIC)) is StreamUnavailableError
    assert script.protocol.channels.names == set()


# The queue.


def test_polling_pauses_while_the_queue_is_full():
    """No connect is sent while the queue is full.

    With a limit of 5, polling resumes when 4 events are left.
    """
    script = Script(max_pending_count=5).connected(TOPIC)
    script.confirm(POLL, *map(event, range(6)))
    assert POLL not in script.flying
    assert script.protocol.deadline == math.inf
    script.read(1)
    assert POLL not in script.flying
    script.read(1)
    assert POLL in script.flying


def test_a_session_that_expired_during_a_pause_is_replaced():
    """If the session expires while the queue is full, the new one resumes after the last queued
    event.
    """
    script = Script(max_pending_count=1).connected(TOPIC)
    script.confirm(POLL, event(1), event(2))
    script.now += 3600.0
    script.read(2)
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 2}


def test_a_channel_without_events_reports_a_gap_after_a_pause():
    """If the session expires while the queue is full, a channel without events reports a Gap."""
    script = Script(max_pending_count=1).connected(TOPIC, OTHER)
    script.confirm(POLL, event(1))
    script.now += 3600.0
    script.read()
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 1, OTHER: -1}
    assert script.gaps == [("unanchored", OTHER)]


@pytest.mark.parametrize("most", [0, -1])
def test_the_queue_can_be_unbounded(most):
    """With a max_pending_count of 0 or less, polling continues however many events are queued."""
    script = Script(max_pending_count=most).connected(TOPIC)
    script.confirm(POLL, *map(event, range(10_000)))
    assert POLL in script.flying


# Closing.


def test_closing_sends_a_disconnect():
    """Closing sends a disconnect as the last request and cancels the held connect.

    Closing again sends nothing.
    """
    script = Script().connected(TOPIC)
    script.close()
    assert script.sent[-1] == [
        {"channel": "/meta/disconnect", "id": script.sent[-1][0]["id"], "clientId": CLIENT}
    ]
    assert script.protocol.over
    assert script.protocol.deadline == math.inf
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL]
    assert script.errors == []
    count = len(script.sent)
    script.close()
    script.wait(1000.0)
    assert len(script.sent) == count


def test_a_cancelled_request_is_not_cancelled_again():
    """A connect that was cancelled when the session was lost is not cancelled again on closing."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.fail(ASK)
    script.close()
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL]
    assert script.protocol.over


def test_closing_cancels_a_subscribe_in_flight():
    """Closing cancels a subscribe that is in flight, and its caller receives an error."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.close()
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL, ASK]
    assert isinstance(script.out[-1], Send), "the disconnect comes after the cancellations"
    assert script.sent[-1][0]["channel"] == "/meta/disconnect"
    assert type(script.outcome(OTHER)) is LocalProtocolError


def test_events_fetched_before_the_close_are_kept():
    """Events that were queued before the close can still be read."""
    script = Script().connected(TOPIC)
    script.confirm(POLL, event(5))
    script.close()
    assert script.ids == [5]


def test_closing_without_a_session_is_immediate():
    """Without a session there is nothing to disconnect, so closing finishes at once."""
    script = Script().connected(TOPIC)
    script.fail(POLL)
    script.close()
    assert script.protocol.over


def test_a_bug_in_the_driver_stops_the_protocol():
    """If the driver fails, the reader and each waiting caller receive its error.

    Nothing more is sent.
    """
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    bug = StreamUnavailableError("a bug", retryable=False)
    script.protocol.stop(bug)
    script.tick()
    assert script.errors == [bug]
    assert script.outcome(OTHER) is bug
    assert script.protocol.over
    script.now += 1000.0
    assert script.tick() == []


# Random failures.


def test_random_failures_neither_lose_nor_repeat_an_event():
    """Against a randomly failing server, the client receives each event exactly once, in order."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(60):
        walk(chance)


def walk(chance: random.Random) -> None:
    """Run 200 random steps against a server with a log, and check what the client received."""
    script = Script(connection_timeout=None, max_pending_count=0)
    script.connected()
    log: list[int] = []
    sent = 0  # number of events that the client had received before this step
    script.subscribe(TOPIC, -2)
    position: int | None = None
    for _ in range(200):
        if chance.random() < 0.5:
            log.append((log[-1] if log else 0) + chance.randint(1, 4))
        if not script.flying:
            script.wait()
            continue
        lane = chance.choice(list(script.flying))
        message = script.messages(lane)[0]
        kind = message["channel"]
        luck = chance.random()
        if script.was_cut(lane):
            script.fail(lane)
        elif kind == "/meta/connect":
            found = [] if position is None else [i for i in log if i > position]
            if found:
                position = found[-1]  # the server never repeats them, even if the answer is lost
            events = [event(i) for i in found]
            if luck < 0.1:
                script.fail(lane)
                position = None
            elif luck < 0.15:
                script.refuse(lane, UNKNOWN, "handshake")
                position = None if not found else position
            elif luck < 0.2:
                script.confirm(lane, *events, {"channel": "/meta/disconnect"})
                position = None
            else:
                script.confirm(lane, *events)
        elif kind == "/meta/subscribe":
            start = message["ext"]["replay"][TOPIC]
            if luck < 0.15:
                script.fail(lane)
                position = None
            else:
                position = max(start, 0)
                early = [i for i in log if i > position][: chance.randint(0, 2)]
                if early:
                    position = early[-1]
                script.confirm(lane, *[event(i) for i in early])
        else:
            position = None
            script.fail(lane) if luck < 0.2 else script.confirm(lane)
        assert sent <= len(script.ids)
        sent = len(script.ids)
    assert script.ids == log[: len(script.ids)]
    assert not script.gaps
    assert all(isinstance(c, Send) is False or c.timeout > 0 for c in script.out)
