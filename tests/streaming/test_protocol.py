"""The core: what is sent, what is delivered, what happens after each kind of failure."""

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


def test_opening_shakes_hands_and_gets_a_first_connect_over():
    """M14: the handshake goes alone, and the first connect asks not to be held."""
    script = Script()
    script.open()
    ((handshake,),) = script.sent
    assert handshake["supportedConnectionTypes"] == ["long-polling"]
    assert handshake["ext"] == {"replay": True}
    assert "clientId" not in handshake
    script.well(ASK)
    (connect,) = script.sent[-1]
    assert (connect["clientId"], connect["advice"]) == (CLIENT, {"timeout": 0})
    assert script.outcome("open") is None
    script.well(POLL)
    assert script.outcome("open") == "done"
    (connect,) = script.sent[-1]
    assert "advice" not in connect


@pytest.mark.parametrize(
    ("speak", "kind"),
    [
        (lambda s: s.fail(ASK), StreamUnavailableError),
        (lambda s: s.no(ASK, "403::Handshake denied", "none"), PermissionDeniedError),
        (
            lambda s: s.no(ASK, "403::Handshake denied", "none", "503::Server is too busy"),
            StreamUnavailableError,
        ),
        (
            lambda s: s.no(
                ASK,
                "403::Handshake denied",
                "none",
                "403::Organization concurrent user limit exceeded",
            ),
            QuotaExceededError,
        ),
        (lambda s: s.well(ASK, clientId=5), RemoteProtocolError),
        (lambda s: s.answer(ASK), RemoteProtocolError),
        (lambda s: s.answer(ASK, "x"), RemoteProtocolError),
        (lambda s: s.answer(ASK, {"channel": 5}), RemoteProtocolError),
        (lambda s: (s.well(ASK), s.no(POLL, "500::x", "retry")), StreamError),
        (lambda s: s.wait(), StreamUnavailableError),
        (lambda s: s.close(), LocalProtocolError),
    ],
)
def test_opening_fails_at_once(speak, kind):
    """A wrong host or a denied handshake is an error now, and no silent wait."""
    script = Script()
    script.open()
    speak(script)
    assert type(script.outcome("open")) is kind
    assert script.protocol.over
    assert script.errors == []


def test_opening_renews_a_token_that_has_expired_once():
    """The first token may be an old one; a second refusal is an error."""
    script = Script()
    script.open()
    script.no(ASK, "403::Handshake denied", "none", "401::Authentication invalid")
    assert script.renewals == 1
    script.no(ASK, "403::Handshake denied", "none", "401::Authentication invalid")
    assert script.renewals == 1
    assert type(script.outcome("open")) is AuthenticationError


# Polling.


def test_the_advised_times_are_kept_to():
    """M7, H5: the interval is in milliseconds, and a poll may take 1.2 times the timeout."""
    script = Script()
    script.open()
    script.well(ASK)
    script.well(POLL, advice={"reconnect": "retry", "interval": 250, "timeout": 110_000})
    assert POLL not in script.flying
    assert script.protocol.deadline == pytest.approx(100.25)
    script.wait()
    assert script.flying[POLL].timeout == pytest.approx(132.0)
    script.well(POLL, advice={"reconnect": "retry", "interval": 0})
    assert script.flying[POLL].timeout == pytest.approx(132.0)


def test_there_is_never_more_than_one_connect_in_flight():
    """2.1: whatever happens meanwhile. (The script checks it at every request.)"""
    script = Script().connected(TOPIC)
    script.wait(1.0)
    script.unsubscribe()
    script.well(ASK)
    script.fail(POLL)
    script.reconnect()
    assert POLL in script.flying


def test_several_clients_of_one_browser_are_polled_slowly(caplog):
    """2.7: with "multiple-clients" no connect is held, there is a pause between, and a warning."""
    script = Script().connected()
    for _ in range(2):
        script.well(POLL, advice={"multiple-clients": True, "interval": 0})
        script.wait() if POLL not in script.flying else None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    script.well(POLL)
    assert POLL not in script.flying
    before = script.now
    script.wait()
    assert script.now == pytest.approx(before + 1.0)
    assert script.sent[-1][0]["advice"] == {"timeout": 0}
    script.well(POLL, advice={"reconnect": "retry", "interval": 0, "timeout": 110_000})
    assert "advice" not in script.sent[-1][0], "the other client has gone"


def test_events_are_recognised_by_their_data():
    """2.5: wherever they stand, whatever id they carry, whatever else is in them."""
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
def test_an_event_without_a_number_is_delivered_without_one(wrong):
    """Servers without replay have none; the position stays where it was."""
    script = Script().connected(TOPIC)
    bare = {"channel": TOPIC, "data": "text"}
    script.well(POLL, event(4), event(wrong), bare, event(5, "/topic/Other"))
    assert script.ids == [4, None, None, 5]
    script.fail(POLL)
    script.reconnect()
    assert script.positions == {TOPIC: 4}


def test_an_event_of_a_channel_without_a_name_is_delivered():
    """Nothing is made of it, and nothing breaks."""
    script = Script().connected(TOPIC)
    script.well(POLL, event(4, ""), event(5))
    assert script.ids == [4, 5]


def test_answers_to_nobody_are_ignored():
    """A reply is the one with the channel and the id of the request; all others change nothing."""
    script = Script().connected(TOPIC)
    (connect,) = script.messages(POLL)
    strangers = [
        {"channel": "/meta/subscribe", "id": [1], "successful": False},
        {"channel": "/meta/subscribe", "id": connect["id"], "successful": False},
        {"channel": "/meta/connect", "id": "999", "successful": False},
    ]
    script.well(POLL, *strangers)
    assert not script.protocol.over
    assert script.messages(POLL) != [connect]


# Subscribing.


def test_a_subscribe_carries_the_position_of_the_path():
    """M13: the filter goes with the subscription, and not with the position."""
    script = Script().connected()
    script.subscribe(f"{TOPIC}?Name='a'", 7)
    (message,) = script.sent[-1]
    assert message["subscription"] == f"{TOPIC}?Name='a'"
    assert message["ext"] == {"replay": {TOPIC: 7}}
    script.well(ASK)
    assert script.outcome(f"{TOPIC}?Name='a'") == "done"
    script.well(POLL, event(8, f"{TOPIC}?Name='a'"), event(9))
    assert {item.subscription for item in script.queued} == {f"{TOPIC}?Name='a'"}


@pytest.mark.parametrize("name", ["", "topic/X", "/", "/meta/x", "/service/x"])
def test_what_is_no_channel_is_refused(name):
    """Before anything is sent."""
    with pytest.raises(LocalProtocolError, match="not a channel"):
        Script().connected().subscribe(name)


def test_two_filters_on_one_channel_are_refused():
    """Their positions would be one."""
    script = Script().connected(TOPIC)
    with pytest.raises(LocalProtocolError, match="another client"):
        script.subscribe(f"{TOPIC}?Name='a'")


def test_a_channel_is_subscribed_once():
    """D3: again is fine and sends nothing; from another position, or at once, is a mistake."""
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


def test_channels_of_the_pubsub_api_are_pointed_out(caplog):
    """A log line when one is subscribed, and none for the others."""
    caplog.set_level("INFO", "sfpubsub.streaming")
    script = Script().connected(TOPIC)
    assert "Pub/Sub API" not in caplog.text
    script.subscribe("/event/Order__e")
    assert "/event/Order__e can be read through the Pub/Sub API" in caplog.text


def test_requests_stay_below_the_limit():
    """2.1: many channels are split over requests; a filter that can never fit is refused."""
    script = Script().connected()
    script.subscribe("/u/first")
    names = [f"/u/{number}?{'x' * 9_000}" for number in range(10)]
    for name in names:
        script.subscribe(name)
    for _ in range(5):
        script.well(ASK)
    assert all(script.outcome(name) == "done" for name in names)
    with pytest.raises(LocalProtocolError, match="too long"):
        script.subscribe(f"/u/long?{'x' * 33_000}")
    assert script.protocol.channels.names == {"/u/first", *names}


def test_events_that_overtake_the_answer_wait_for_it():
    """Two lanes: the subscribe's own events are the older ones."""
    script = Script().connected()
    script.subscribe(TOPIC, -2)
    script.well(POLL, event(3), event(4))
    assert script.ids == []
    assert POLL not in script.flying, "what waits outside of the queue has no bound"
    script.well(ASK, event(1), event(2))
    assert script.ids == [1, 2, 3, 4]
    assert POLL in script.flying


def test_events_that_overtook_a_lost_answer_come_again():
    """The answer that got lost may have carried older ones."""
    script = Script().connected()
    script.subscribe(TOPIC, -2)
    script.well(POLL, event(3))
    script.fail(ASK)
    script.reconnect()
    assert script.positions == {TOPIC: -2}
    assert script.ids == []
    script.well(ASK, event(1), event(3))
    assert script.ids == [1, 3]


def test_early_events_of_a_subscribe_that_fails_do_not_stop_the_polls():
    """Its caller has given up, and the server refuses it: nobody waits for them any more."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.well(POLL, event(3, OTHER))
    assert POLL not in script.flying
    script.tick(lambda: script.protocol.abandon(script.calls[OTHER]))
    script.no(ASK, "403::Restricted channel")
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
def test_a_refused_subscribe_is_told_to_its_caller(error, kind):
    """D1, B8: no sign-in is wasted on it, and the channel is not subscribed."""
    script = Script().connected()
    script.subscribe(TOPIC, 7)
    script.no(ASK, error)
    assert type(script.outcome(TOPIC)) is kind
    assert script.renewals == 0
    assert script.errors == []
    assert script.protocol.channels.names == set()
    if kind is ReplayIdRejectedError:
        gap = script.outcome(TOPIC).gap
        assert bytes(gap.after) == (7).to_bytes(8, "big")
        assert (gap.subscription, gap.error_code) == (TOPIC, "400")


def test_unsubscribing():
    """D2: confirmed by the server; what is not subscribed needs nothing."""
    script = Script().connected(TOPIC)
    script.unsubscribe()
    with pytest.raises(LocalProtocolError, match="wait"):
        script.unsubscribe(TOPIC, "twice")
    script.well(ASK)
    assert script.outcome("left") == "done"
    script.unsubscribe(TOPIC, "none")
    assert script.outcome("none") == "done"
    script.subscribe(TOPIC, waiter="back")
    script.well(ASK)
    script.unsubscribe(TOPIC, "refused")
    script.no(ASK, "500::no")
    assert type(script.outcome("refused")) is StreamError
    assert script.protocol.channels.names == {TOPIC}


def test_an_event_that_comes_after_the_unsubscribe_is_delivered():
    """A poll was in flight: the event has its channel's name, and polling goes on."""
    name = f"{TOPIC}?Name='a'"
    script = Script().connected(name)
    script.unsubscribe(name)
    script.well(ASK)
    script.well(POLL, event(5))
    assert [(item.replay_id, item.subscription) for item in script.queued] == [(5, name)]
    assert POLL in script.flying


@pytest.mark.parametrize("stage", ["between", "flying", "queued"])
def test_what_leaves_while_the_session_is_lost_is_not_resumed(stage):
    """It is gone with the session, which is what was wanted."""
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


def kinds(script: Script) -> list[str]:
    return [message["channel"] for message in script.sent[-1]]


@pytest.mark.parametrize("answer", ["yes", "no", "lost"])
def test_unsubscribing_while_the_resubscribe_is_in_flight(answer):
    """The server must not go on sending a channel that the caller was told is gone."""
    script = Script().connected(TOPIC)
    script.well(POLL, event(5))
    script.fail(POLL)
    script.reconnect()
    script.unsubscribe()
    assert script.outcome("left") is None
    if answer == "yes":
        script.well(ASK)
        assert kinds(script) == ["/meta/unsubscribe"]
        assert script.outcome("left") is None
        script.well(ASK)
    elif answer == "no":
        script.no(ASK, "403::Restricted channel")
    else:
        script.fail(ASK)
    assert script.outcome("left") == "done"
    assert script.errors == []
    assert script.protocol.channels.names == set()


def test_a_subscribe_that_was_given_up_is_taken_back():
    """Its caller was told that it failed: the yes that comes later is answered by a goodbye."""
    script = Script(connection_timeout=5.0).connected(TOPIC)
    script.no(POLL, "500::oops", "retry")
    script.subscribe(OTHER)
    script.now += 5.0
    script.wait(0.0)
    assert type(script.outcome(OTHER)) is StreamUnavailableError
    script.well(ASK)
    assert kinds(script) == ["/meta/unsubscribe"]
    script.well(ASK)
    assert script.protocol.channels.names == {TOPIC}


def test_a_subscribe_that_was_given_up_can_be_asked_for_again():
    """The new one is sent when the old one was answered, and has its own start."""
    script = Script(connection_timeout=5.0).connected(TOPIC)
    script.no(POLL, "500::oops", "retry")
    script.subscribe(OTHER)
    script.now += 5.0
    script.wait(0.0)
    script.subscribe(OTHER, 7, waiter="again")
    script.well(ASK)
    assert script.outcome("again") is None
    assert script.positions == {OTHER: 7}
    script.well(ASK)
    assert script.outcome("again") == "done"


def test_what_an_interrupted_caller_asked_for_is_taken_back():
    """A subscribe is unsubscribed when the yes comes, an unsubscribe is done, an opening ends."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER, waiter="other")
    script.tick(lambda: script.protocol.abandon(script.calls["other"]))
    assert script.protocol.channels.names == {TOPIC}
    script.well(ASK)
    assert kinds(script) == ["/meta/unsubscribe"]
    script.well(ASK)
    script.unsubscribe(TOPIC)
    script.tick(lambda: script.protocol.abandon(script.calls["left"]))
    script.well(ASK)
    assert script.protocol.channels.names == set()
    opening = Script()
    opening.open()
    opening.tick(lambda: opening.protocol.abandon(opening.calls["open"]))
    assert opening.protocol.over


@pytest.mark.parametrize(
    ("name", "resumes", "position"),
    [(TOPIC, True, 6), (TOPIC, False, -2), (f"{TOPIC}?Name='a'", True, -2)],
)
def test_a_channel_that_was_left_continues_if_a_store_keeps_its_position(name, resumes, position):
    """The store knows what was read, not what is queued; a fixed start stays, as another filter."""
    script = Script().connected(TOPIC, start=-2)
    script.well(POLL, event(5))
    script.unsubscribe()
    script.well(POLL, event(6))
    script.well(ASK)
    call = script.call("back")
    script.protocol.channels.subscribe(name, -2, call, rewind=False, resumes=resumes)
    script.tick()
    assert script.positions == {TOPIC: position}
    script.well(ASK)
    assert script.protocol.channels.names == {name}


# Resuming.


def test_a_channel_resumes_after_its_last_queued_event():
    """M4, M5: neither what is unread nor all retained events come again."""
    script = Script().connected(TOPIC, OTHER, start=-2)
    script.well(POLL, event(103), event(105))
    script.no(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 105, OTHER: -2}
    assert script.gaps == []
    assert script.renewals == 0


def test_without_any_id_the_gap_is_told():
    """M6: a channel that started with new events and has seen none has nothing to go on from."""
    script = Script().connected(TOPIC)
    script.fail(POLL)
    script.reconnect()
    assert script.gaps == [("unanchored", TOPIC)]
    script.well(ASK)
    script.well(POLL, event(5))
    script.fail(POLL)
    script.reconnect()
    assert script.gaps == [("unanchored", TOPIC)]
    assert script.positions == {TOPIC: 5}


def test_a_server_without_replay_leaves_a_gap_each_time():
    """Its handshake says that it has none; then an id is of no use."""
    script = Script().connected(TOPIC)
    script.well(POLL, event(5))
    script.fail(POLL)
    script.land_cut()
    script.wait()
    script.well(ASK, ext={})
    script.well(POLL)
    assert script.gaps == [("unanchored", TOPIC)]


def test_a_subscribe_that_was_never_answered_is_no_gap():
    """Nothing was promised yet."""
    script = Script().connected()
    script.subscribe(TOPIC)
    script.fail(ASK)
    script.reconnect()
    script.well(ASK)
    assert script.outcome(TOPIC) == "done"
    assert script.gaps == []


def test_the_fallback_is_used_at_every_subscribe():
    """M3, M11, G1: at the start and after a reconnect, each channel for itself, with a Gap."""
    script = Script(fallback=-2).connected()
    script.subscribe(TOPIC, 7)
    script.subscribe(OTHER, 9)
    script.no(ASK, INVALID)
    assert script.positions == {OTHER: 9, TOPIC: -2}
    script.well(ASK)
    assert script.outcome(TOPIC) == script.outcome(OTHER) == "done"
    assert script.gaps == [("rejected", TOPIC)]
    script.well(POLL, event(20), event(21, OTHER))
    script.no(POLL, UNKNOWN, "handshake")
    script.reconnect()
    script.no(ASK, INVALID)
    assert script.positions == {TOPIC: -2, OTHER: -2}
    assert script.gaps == [("rejected", TOPIC), ("rejected", TOPIC), ("rejected", OTHER)]
    assert script.errors == []


def test_a_refused_fallback_is_an_error():
    """It is tried once."""
    script = Script(fallback=-2).connected()
    script.subscribe(TOPIC, 7)
    script.no(ASK, INVALID)
    script.no(ASK, INVALID)
    assert type(script.outcome(TOPIC)) is ReplayIdRejectedError


def test_without_a_fallback_a_refused_resumption_is_told_to_the_reader():
    """M3: no silent loss; the channel is not subscribed, the others go on."""
    script = Script().connected(TOPIC, OTHER)
    script.well(POLL, event(5), event(6, OTHER))
    script.no(POLL, UNKNOWN, "handshake")
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
        lambda s: s.well(POLL, {"channel": "/meta/disconnect"}),
        lambda s: s.well(POLL, {"channel": "/meta/disconnect"}, advice={"reconnect": "none"}),
        lambda s: s.well(POLL, advice={"reconnect": "handshake"}),
    ],
    ids=["broken", "empty", "nonsense", "late", "ask", "unanswered", "goodbye", "end", "advice"],
)
def test_a_session_in_doubt_is_given_up(speak):
    """An answer that may be lost had events that the server has forgotten: they come by replay."""
    script = Script().connected(TOPIC, OTHER)
    script.well(POLL, event(5), event(6, OTHER))
    speak(script)
    script.reconnect()
    assert script.positions[TOPIC] == 5
    assert len({m[0]["clientId"] for m in script.sent if "clientId" in m[0]}) == 1
    handshakes = [m for m in script.sent if m[0]["channel"] == "/meta/handshake"]
    assert len(handshakes) == 2
    assert script.renewals == 0
    assert script.errors == []


@pytest.mark.parametrize("speak", [lambda s: s.answer(ASK), lambda s: s.no(ASK, UNKNOWN)])
def test_a_request_of_many_messages_fails_once(speak):
    """Two channels are resubscribed in one request: its failure is one, and so is the delay."""
    script = Script(connection_timeout=None).connected(TOPIC, OTHER)
    script.fail(POLL)
    script.reconnect()
    assert len(script.messages(ASK)) == 2
    speak(script)
    assert script.protocol._next_at == pytest.approx(script.now + 2.0)


def test_what_is_still_in_flight_is_cut_first():
    """No second connect while the first may still be held; its events still count."""
    script = Script(connection_timeout=None).connected(TOPIC)
    script.unsubscribe("/u/none")
    script.subscribe(OTHER)
    script.fail(ASK)
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL]
    script.wait(60.0)
    assert ASK not in script.flying
    script.answer(POLL, event(8))
    assert script.ids == [8]
    script.well(ASK)
    script.well(POLL)
    assert script.positions == {TOPIC: 8, OTHER: -1}


@pytest.mark.parametrize("late", [True, False])
def test_events_of_an_unanswered_subscribe_do_not_move_its_position(late):
    """A poll brings a newer event while the answer with the older ones is lost: all come again."""
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
    script.well(ASK)
    script.well(POLL)
    assert script.ids == []
    assert script.positions == {TOPIC: -2}
    script.well(ASK, event(1), event(3))
    assert script.ids == [1, 3]


def test_nonsense_for_a_request_that_was_given_up_is_ignored():
    """It was cut already; another failure would double the delay."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.fail(ASK)
    before = script.protocol._next_at
    script.answer(POLL, "nonsense")
    assert script.protocol._next_at == before


def test_a_slow_sign_in_is_not_a_slow_server():
    """A session may take a minute to fetch; only then the time of the handshake begins."""
    script = Script()
    script.open()
    assert script.flying[ASK].timeout == Pace().request
    script.wait(Pace().sign_in)
    assert script.outcome("open") is None
    script.wait(Pace().request)
    assert type(script.outcome("open")) is StreamUnavailableError


def test_a_renewal_that_takes_long_is_an_outage():
    """H3: the application hears of it after connection_timeout, as of every other."""
    script = Script(connection_timeout=10.0).connected(TOPIC)
    script.no(POLL, "401::Authentication invalid", "none")
    script.wait(10.0)
    assert [type(error) for error in script.errors] == [StreamUnavailableError]


def test_the_delay_doubles_and_is_half_chance():
    """2.7: 1, 2, 4 … 60 s; nobody comes back in step."""
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
    script.well(ASK)
    script.well(POLL)
    script.well(ASK)
    script.fail(POLL)
    assert script.protocol.deadline == pytest.approx(script.now + 1.0)


def test_an_unknown_client_is_not_shaken_hands_with_in_a_loop():
    """At once after a session that has lived for a second, with delays when it goes on."""
    script = Script().connected(TOPIC)
    script.now += 1.0
    script.no(POLL, UNKNOWN, "handshake")
    assert ASK in script.flying
    script.well(ASK)
    script.no(POLL, UNKNOWN, "handshake")
    assert not script.flying
    assert script.protocol.deadline == pytest.approx(script.now + 1.0)


@pytest.mark.parametrize(
    "speak",
    [
        lambda s: s.well(POLL, {"channel": "/meta/disconnect"}),
        lambda s: s.well(POLL, advice={"reconnect": "handshake"}),
        lambda s: s.no(POLL, UNKNOWN, "handshake"),
    ],
    ids=["goodbye", "advice", "unknown"],
)
def test_a_server_that_ends_every_session_is_not_asked_in_a_loop(speak):
    """All goes well until the first poll, and again: at most one session a second."""
    script = Script().connected(TOPIC)
    for _ in range(20):
        begun = script.now
        speak(script)
        script.reconnect()
        script.well(ASK)
        assert script.now >= begun + 0.5
    script.now += 1.0
    speak(script)
    assert ASK in script.flying


def test_a_connect_is_sent_again_in_the_same_session_if_the_server_says_so():
    """2.7: "retry" keeps the session, after a delay."""
    script = Script().connected(TOPIC)
    script.no(POLL, "500::oops", "retry")
    assert POLL not in script.flying
    script.wait()
    assert script.sent[-1][0]["channel"] == "/meta/connect"
    script.well(POLL)
    assert script.protocol.deadline == script.now + Pace().held * Pace().held_factor


def test_a_server_that_is_too_busy_is_left_alone():
    """2.7: whatever the error beside it says; no sign-in is wasted."""
    script = Script(connection_timeout=None).connected(TOPIC)
    script.no(POLL, "401::Authentication invalid", "none", "503::Server is too busy")
    assert script.renewals == 0
    assert script.protocol.deadline == pytest.approx(script.now + Pace().busy)


def test_a_limit_of_the_org_is_waited_for_as_long_as_the_application_likes():
    """2.7: a handshake denied by a limit is tried again after minutes; the timeout tells of it."""
    script = Script(connection_timeout=300.0).connected(TOPIC)
    script.fail(POLL)
    script.wait()
    limit = "403::Organization concurrent user limit exceeded"
    script.no(ASK, "403::Handshake denied", "none", limit)
    assert script.protocol.deadline == pytest.approx(script.now + Pace().busy)
    while not script.errors:
        script.wait()
        if ASK in script.flying:
            script.no(ASK, "403::Handshake denied", "none", limit)
    (error,) = script.errors
    assert type(error) is StreamUnavailableError
    assert type(error.__cause__) is QuotaExceededError
    assert script.renewals == 0
    script.reconnect()
    script.well(ASK)
    assert script.protocol.channels.names == {TOPIC}


def test_a_revoked_token_is_renewed_once():
    """H4, B8: then a new session, and every channel goes on."""
    script = Script().connected(TOPIC)
    script.well(POLL, event(5))
    script.no(POLL, "401::Authentication invalid", "none")
    assert script.renewals == 1
    script.well(ASK)
    script.well(POLL)
    assert script.positions == {TOPIC: 5}
    script.well(ASK)
    script.no(POLL, "401::Authentication invalid", "none")
    assert script.renewals == 1
    (error,) = script.errors
    assert type(error) is AuthenticationError
    assert script.protocol.over


@pytest.mark.parametrize("use", ["poll", "time"])
def test_a_token_that_was_of_use_is_renewed_again(use):
    """A session that is refused much later, or after a held connect, is another matter."""
    script = Script(connection_timeout=None).connected(TOPIC)
    for number in (1, 2):
        script.no(POLL, "401::Authentication invalid", "none")
        assert script.renewals == number
        script.well(ASK)
        script.well(POLL)
        script.well(ASK)
        if use == "poll":
            script.well(POLL)
        else:
            script.now += 61.0


def test_a_refused_subscribe_about_the_token_is_renewed_as_well():
    """Every form of an authentication error: here on a subscribe."""
    script = Script().connected()
    script.subscribe(TOPIC, 7)
    script.no(ASK, "401::Authentication invalid")
    script.land_cut()
    assert script.renewals == 1
    script.well(ASK)
    script.well(POLL)
    assert script.positions == {TOPIC: 7}
    script.well(ASK)
    assert script.outcome(TOPIC) == "done"


def test_a_failed_sign_in_is_told():
    """M9: the error itself; one that may pass is tried again."""
    script = Script(connection_timeout=None).connected(TOPIC)
    script.no(POLL, "401::Authentication invalid", "none")
    script.fail(ASK, StreamUnavailableError("the login host is down"))
    assert script.errors == []
    script.wait()
    assert script.flying[ASK].refused == "session"
    refused = AuthenticationError("invalid_grant")
    script.fail(ASK, refused)
    assert script.errors == [refused]
    assert script.protocol.over


def test_an_end_that_the_server_wants_is_told():
    """E4: "none" without a token to blame, at a refusal and at a success."""
    for speak in (
        lambda s: s.no(POLL, "403::Organization says no", "none"),
        lambda s: s.well(POLL, advice={"reconnect": "none"}),
    ):
        script = Script().connected(TOPIC)
        speak(script)
        assert len(script.errors) == 1
        assert script.protocol.over


def test_an_error_that_no_retry_cures_ends_it():
    """A certificate that is not accepted stays so."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.fail(POLL, StreamUnavailableError("certificate", retryable=False))
    assert len(script.errors) == 1
    assert script.outcome(OTHER) is script.errors[0]
    assert script.protocol.deadline == math.inf


# The outage.


def test_the_application_is_told_of_an_outage_and_told_again():
    """H3, E3, M2: after connection_timeout seconds, not before; the client goes on trying."""
    script = Script(connection_timeout=10.0).connected(TOPIC)
    script.well(POLL, event(5))
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
    script.well(ASK)
    script.wait(100.0)
    assert len(script.errors) == 3


def test_an_outage_lasts_until_all_channels_are_subscribed_again():
    """H3: a server that answers all but the subscribes is as good as none."""
    script = Script(connection_timeout=10.0).connected(TOPIC)
    begun = script.now
    script.fail(POLL)
    while not script.errors and script.now < begun + 100.0:
        if ASK not in script.flying:
            script.wait()
        elif "subscription" in script.messages(ASK)[0]:
            script.fail(ASK)
            script.land_cut()
        else:
            script.well(ASK)
            script.well(POLL)
    assert script.now == pytest.approx(begun + 10.0)


def test_an_outage_does_not_fill_the_queue_of_an_application_that_does_not_read():
    """I1: memory is bounded, however long the outage is."""
    script = Script(connection_timeout=1.0).connected(TOPIC)
    script.fail(POLL)
    for _ in range(50):
        script.wait()
        if ASK in script.flying:
            script.fail(ASK)
    assert len(script.errors) == 1


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_timeout_nothing_is_told(timeout):
    """H3: None and 0 are for ever."""
    script = Script(connection_timeout=timeout).connected(TOPIC)
    script.fail(POLL)
    for _ in range(20):
        script.wait()
        script.fail(ASK)
    assert script.errors == []


def test_a_subscribe_does_not_outlast_the_timeout():
    """M15: it ends with one of our errors, and the channel is not subscribed later."""
    script = Script(connection_timeout=1.5).connected()
    script.subscribe(TOPIC)
    script.fail(ASK)
    script.land_cut()
    while script.outcome(TOPIC) is None:
        script.wait()
        if ASK in script.flying:
            script.fail(ASK)
    assert type(script.outcome(TOPIC)) is StreamUnavailableError
    assert script.protocol.channels.names == set()


# The queue.


def test_polling_rests_while_the_queue_is_full():
    """I2: no connect is sent until there is room; the bound is the limit and one answer."""
    script = Script(max_pending_count=5).connected(TOPIC)
    script.well(POLL, *map(event, range(6)))
    assert POLL not in script.flying
    assert script.protocol.deadline == math.inf
    script.read(1)
    assert POLL not in script.flying
    script.read(1)
    assert POLL in script.flying


def test_a_session_that_died_during_the_rest_is_replaced():
    """The queue is full for longer than the session lives: it goes on after the last queued id."""
    script = Script(max_pending_count=1).connected(TOPIC)
    script.well(POLL, event(1), event(2))
    script.now += 3600.0
    script.read(2)
    script.no(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 2}


def test_a_channel_without_any_id_tells_of_its_gap_after_the_rest_as_well():
    """Another channel has filled the queue: what came on this one meanwhile is lost, and told."""
    script = Script(max_pending_count=1).connected(TOPIC, OTHER)
    script.well(POLL, event(1))
    script.now += 3600.0
    script.read()
    script.no(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 1, OTHER: -1}
    assert script.gaps == [("unanchored", OTHER)]


@pytest.mark.parametrize("most", [0, -1])
def test_the_queue_can_be_without_a_bound(most):
    """I1: 0 and less."""
    script = Script(max_pending_count=most).connected(TOPIC)
    script.well(POLL, *map(event, range(10_000)))
    assert POLL in script.flying


# Closing.


def test_closing_says_goodbye():
    """C2: it is over, with a disconnect as the last request; a connect that is held is cut."""
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


def test_what_was_cut_is_not_cut_again():
    """Closing while the connect of the lost session has not landed yet."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.fail(ASK)
    script.close()
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL]
    assert script.protocol.over


def test_closing_cuts_the_request_before_it():
    """A subscribe in flight is not awaited: its caller hears that the client was closed."""
    script = Script().connected(TOPIC)
    script.subscribe(OTHER)
    script.close()
    assert [cut.request.lane for cut in script.of(Cut)] == [POLL, ASK]
    assert isinstance(script.out[-1], Send), "it would be cut with the others"
    assert script.sent[-1][0]["channel"] == "/meta/disconnect"
    assert type(script.outcome(OTHER)) is LocalProtocolError


def test_events_that_were_fetched_before_the_goodbye_are_kept():
    """C5: they can be read."""
    script = Script().connected(TOPIC)
    script.well(POLL, event(5))
    script.close()
    assert script.ids == [5]


def test_closing_without_a_session_is_at_once():
    """Nobody is there to say goodbye to."""
    script = Script().connected(TOPIC)
    script.fail(POLL)
    script.close()
    assert script.protocol.over


def test_a_bug_of_the_driver_ends_it():
    """Everybody who waits is told; nothing is sent any more."""
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


# A walk.


def test_a_server_that_does_anything_loses_and_repeats_nothing():
    """0 lost, 0 repeated, in order, whatever fails: a server with a log, and a random walk."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(60):
        walk(chance)


def walk(chance: random.Random) -> None:
    script = Script(connection_timeout=None, max_pending_count=0)
    script.connected()
    log: list[int] = []
    sent = 0  # how far this session has been sent the log; None after the subscribe's start
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
                position = found[-1]  # forgotten by the server, however the answer fares
            events = [event(i) for i in found]
            if luck < 0.1:
                script.fail(lane)
                position = None
            elif luck < 0.15:
                script.no(lane, UNKNOWN, "handshake")
                position = None if not found else position
            elif luck < 0.2:
                script.well(lane, *events, {"channel": "/meta/disconnect"})
                position = None
            else:
                script.well(lane, *events)
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
                script.well(lane, *[event(i) for i in early])
        else:
            position = None
            script.fail(lane) if luck < 0.2 else script.well(lane)
        assert sent <= len(script.ids)
        sent = len(script.ids)
    assert script.ids == log[: len(script.ids)]
    assert not script.gaps
    assert all(isinstance(c, Send) is False or c.timeout > 0 for c in script.out)
