"""Tests of events that may come on both connections of a client, and of the positions that follow.

A server may put the next event into the response of either lane: POLL, the held connect, or ASK,
all other requests. The responses can overtake each other, and either can be lost.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sfpubsub.streaming import received, states, subscriptions
from sfpubsub.streaming.bayeux import Lane, StreamingMessage
from sfpubsub.streaming.positions import ALL_EVENTS
from sfpubsub.streaming.progress import Progress
from sfpubsub.streaming.protocol import Pace
from sfpubsub.streaming.states import TRANSITIONS, Signal, State

from .script import TOPIC, Script, event

ASK, POLL = Lane.ASK, Lane.POLL
UNKNOWN = "403::Unknown client"
INVALID = "400::The replayId {7} you provided was invalid.  Please provide a valid ID"
OTHER, THIRD = "/u/Other", "/u/Third"


def overtaken(**arguments: Any) -> Script:
    """Return a script that has received event 4, and then event 6 with the reply to a subscribe,
    while a connect is in flight.
    """
    script = Script(is_tracked=True, **arguments).connected(TOPIC, start=-2)
    script.confirm(POLL, event(4))
    script.subscribe(OTHER)
    script.confirm(ASK, event(6))
    return script


def read(script: Script) -> list[int | None]:
    """Receive and ack all messages, and return their replay ids."""
    found = []
    while (message := script.pending.head()) is not None:
        script.pending.take()
        assert isinstance(message, StreamingMessage)
        script.progress[message.subscription].ack(message.delivery_seq)
        found.append(message.replay_id)
    return found


def stored(script: Script, channel: str = TOPIC) -> int:
    """Store what may be stored of a channel, and return the stored position."""
    progress = script.progress[channel]
    storable = progress.storable()
    if storable is not None:
        progress.stored(storable)
    return progress._stored.position


# Order.


def test_events_on_a_reply_wait_for_the_connect_in_flight():
    """An event on a reply waits for the connect in flight, which brings an earlier one."""
    script = overtaken()
    assert script.ids == [4]
    script.confirm(POLL, event(5), event(7))
    assert script.ids == [4, 5, 6, 7]
    assert script.protocol.channels.late == 0


def test_events_of_a_connect_wait_for_the_request_in_flight():
    """An event on a connect waits for the request in flight, and fetching pauses meanwhile."""
    script = Script().connected(TOPIC, start=-2)
    script.subscribe(OTHER)
    script.confirm(POLL, event(6))
    assert script.ids == []
    assert POLL not in script.flying
    script.confirm(ASK, event(5))
    assert script.ids == [5, 6]
    assert POLL in script.flying


def test_events_wait_for_one_second_at_most(caplog):
    """After a second, an event is delivered without waiting any longer. An earlier one that comes
    later is delivered, counted and logged.
    """
    script = overtaken()
    assert script.protocol.deadline == pytest.approx(script.now + Pace().reorder)
    script.wait()
    assert script.ids == [4, 6]
    script.confirm(POLL, event(5))
    assert script.ids == [4, 6, 5]
    assert script.protocol.channels.late == 1
    assert "1 events of /topic/Accounts arrived after events with higher replay ids" in caplog.text
    caplog.clear()
    script.confirm(POLL, event(3))
    assert script.protocol.channels.late == 2
    assert caplog.text == "", "only the first is a warning"


def test_the_wait_does_not_start_again_with_each_reply():
    """An event waits for a second in total, however many replies with events follow."""
    script = overtaken()
    for number in range(2):
        script.wait(0.4)
        script.subscribe(f"/u/{number}")
        script.confirm(ASK, event(7 + number))
        assert script.ids == [4]
    script.wait(0.3)
    assert script.ids == [4, 6, 7, 8]


def test_with_no_wait_events_are_delivered_in_order_of_arrival():
    """With `Pace.reorder` 0, no event waits for another response."""
    script = overtaken(pace=Pace(reorder=0.0))
    assert script.ids == [4, 6]


def test_waiting_events_are_delivered_when_the_client_closes():
    """Events that still wait for another response are delivered when the client is closed."""
    script = overtaken()
    script.close()
    assert script.ids == [4, 6]


def test_an_event_without_an_id_stays_behind_the_one_before_it():
    """When two responses are put in order, an event without an id follows its predecessor."""
    script = Script().connected(TOPIC, start=-2)
    script.subscribe(OTHER)
    script.confirm(ASK, event(None), event(6), event(None, x=1))
    script.confirm(POLL, event(5), event(7))
    assert script.ids == [None, 5, 6, None, 7]
    script.confirm(POLL, event(None))
    script.confirm(POLL, event(8), event(None), event(8))
    assert script.ids[5:] == [None, 8, None]


# Positions.


def test_a_lost_connect_loses_no_event():
    """If a connect is lost, the channel resumes where the connect was sent, and what arrived on a
    reply meanwhile is not delivered again.
    """
    script = overtaken()
    script.fail(POLL)
    assert script.ids == [4, 6], "what has arrived does not wait for the outage to end"
    script.reconnect()
    assert script.positions[TOPIC] == 4
    script.confirm(ASK)
    script.confirm(POLL, event(5), event(6), event(7))
    assert script.ids == [4, 6, 5, 7]
    assert script.gaps == [("unanchored", OTHER)]


def test_a_lost_reply_loses_no_event():
    """If a reply is lost, the channel resumes where its request was sent, although connects that
    were sent later have brought later events.
    """
    script = Script(connection_timeout=None).connected(TOPIC, start=-2)
    script.confirm(POLL, event(4))
    script.subscribe(OTHER)
    script.confirm(POLL, event(6))
    script.wait(1.0)
    script.confirm(POLL, event(7))
    script.wait(1.0)
    assert script.ids == [4, 6, 7]
    script.fail(ASK)
    script.reconnect()
    assert script.positions[TOPIC] == 4
    script.confirm(ASK)
    script.confirm(POLL, event(5), event(6), event(7), event(8))
    assert script.ids == [4, 6, 7, 5, 8]


def test_a_position_is_stored_only_if_nothing_below_it_can_be_missing():
    """While a request is in flight, no position is stored above the one at which it was sent."""
    script = overtaken(pace=Pace(reorder=0.0))
    assert read(script) == [4, 6]
    assert stored(script) == 4
    script.confirm(POLL)
    assert stored(script) == 6
    script.subscribe(THIRD)
    script.confirm(ASK, event(8))
    assert read(script) == [8]
    script.fail(POLL)
    assert stored(script) == 6
    script.reconnect()
    script.confirm(ASK)
    script.confirm(POLL, event(7), event(8))
    assert stored(script) == 6, "event 7 is not acked"
    assert read(script) == [7]
    assert stored(script) == 8


def test_a_channel_resumes_at_its_first_event_if_earlier_ones_are_lost():
    """If a new channel has received an event, but a connect that may have carried an earlier one is
    lost, it resumes after the event, and the Gap before it is reported.
    """
    script = Script().connected()
    script.subscribe(TOPIC)
    script.confirm(ASK, event(6))
    script.fail(POLL)
    script.reconnect()
    assert script.positions == {TOPIC: 6}
    assert script.ids == [6]
    assert script.gaps == [("unanchored", TOPIC)]


def test_an_event_before_the_lost_reply_of_a_resumption_is_kept():
    """A channel without a position keeps an event that arrived before the reply to its subscribe,
    if that reply is lost: nothing could bring the event back.
    """
    script = Script(connection_timeout=None).connected(TOPIC)
    script.fail(POLL)
    script.reconnect()
    script.confirm(POLL, event(5))
    script.fail(ASK)
    assert script.ids == [5]
    script.reconnect()
    assert script.positions == {TOPIC: 5}


def test_a_repeated_event_is_delivered_once():
    """An event that comes on both lanes, or twice in a response, is delivered once."""
    script = overtaken()
    script.confirm(POLL, event(5), event(6), event(6), event(7))
    assert script.ids == [4, 5, 6, 7]


def test_fetching_pauses_while_too_many_ids_must_be_remembered(monkeypatch):
    """The ids to remember are bounded: fetching pauses while one request is in flight for long."""
    monkeypatch.setattr(received, "_IDS", 10)
    script = Script(max_pending_count=0, pace=Pace(reorder=0.0)).connected(TOPIC, start=-2)
    script.subscribe(OTHER)
    numbers = itertools.count(1)
    for _ in range(3):
        script.confirm(POLL, *(event(next(numbers)) for _ in range(4)))
    assert POLL not in script.flying
    assert len(script.ids) == 12
    script.confirm(ASK)
    assert POLL in script.flying
    for _ in range(5):
        script.confirm(POLL, *(event(next(numbers)) for _ in range(4)))
    (channel, _) = script.protocol.channels._by_path.values()
    assert len(channel.received._ids) <= 20
    assert script.ids == list(range(1, 33))


# A new numbering.


def test_ids_that_begin_anew_after_a_handshake_are_reported_and_delivered():
    """If an org begins to number its events anew, all of them are delivered, after a Gap."""
    script = Script().connected(TOPIC, start=-2)
    script.confirm(POLL, event(104), event(105))
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    assert script.positions == {TOPIC: 105}
    script.confirm(ASK)
    script.confirm(POLL, event(1), event(2))
    assert script.ids == [104, 105, 1, 2]
    assert script.gaps == [("reset", TOPIC)]
    (gap,) = script.out_gaps
    assert (int.from_bytes(bytes(gap.after)), int.from_bytes(bytes(gap.before))) == (105, 1)
    assert script.protocol.channels.late == 0
    script.fail(POLL)
    script.reconnect()
    assert script.positions == {TOPIC: 2}


def test_a_lost_connect_in_a_new_numbering_loses_no_event():
    """In a new numbering, a lost connect may have carried its first events, so all are fetched."""
    script = Script(pace=Pace(reorder=0.0)).connected(TOPIC, start=-2)
    script.confirm(POLL, event(105))
    script.refuse(POLL, UNKNOWN, "handshake")
    script.reconnect()
    script.confirm(ASK, event(2))
    assert script.gaps == [("reset", TOPIC)]
    script.fail(POLL)
    script.reconnect()
    assert script.positions == {TOPIC: ALL_EVENTS}
    script.confirm(ASK)
    script.confirm(POLL, event(1), event(2), event(3))
    assert script.ids == [105, 2, 1, 3]


def test_after_a_refused_position_nothing_is_taken_as_known():
    """The ids of a new numbering may be those of the old one, so after a refused position all
    events are delivered.
    """
    script = Script(fallback=-2).connected(TOPIC, start=-2)
    script.confirm(POLL, event(1), event(2))
    script.fail(POLL)
    script.reconnect()
    script.refuse(ASK, INVALID)
    script.confirm(ASK)
    script.confirm(POLL, event(1), event(2), event(3))
    assert script.ids == [1, 2, 1, 2, 3]
    assert script.gaps == [("rejected", TOPIC)]


# Acks.


def test_an_event_that_overtakes_two_requests_is_not_stored_too_early():
    """A position is not stored while an earlier event that came later is not acked, even if another
    request was sent in between.
    """
    script = overtaken(pace=Pace(reorder=0.0))
    script.subscribe(THIRD)
    assert read(script) == [4, 6]
    script.confirm(POLL, event(5))
    script.confirm(ASK)
    assert stored(script) == 4
    assert read(script) == [5]
    assert stored(script) == 6


def test_an_application_that_never_acks_is_told(monkeypatch, caplog):
    """If very many messages are not acked, a warning says that the position does not move."""
    monkeypatch.setattr(subscriptions, "_UNACKED", 5)
    script = Script(is_tracked=True).connected(TOPIC, start=-2)
    for number in range(4):
        script.confirm(POLL, event(2 * number), event(2 * number + 1))
    told = [text for text in caplog.messages if "not acked" in text]
    assert len(told) == 1
    assert told[0].startswith("6 messages of /topic/Accounts are not acked")


def test_acks_are_a_contiguous_prefix():
    """Whatever the order of the acks, a position is stored only if all messages up to it are acked.

    Messages without an id count as acked.
    """
    chance = random.Random(5)
    for _ in range(200):
        progress, seqs, ids = Progress(10), [], []
        first = 10
        for _ in range(4):
            run = [None if chance.random() < 0.2 else 100 + first + n for n in range(3)]
            progress.arrived(first, run, is_ordered=True)
            ids += run
            seqs += range(first, first + 3)
            first += 3 + chance.randint(0, 2)  # other channels' messages
        acked: set[int] = set()
        for seq in chance.sample(seqs, len(seqs)):
            if ids[seqs.index(seq)] is None:
                continue  # the client refuses to ack it
            progress.ack(seq)
            progress.ack(seq)
            acked.add(seq)
            done = -1
            for each, number in zip(seqs, ids, strict=True):
                if number is not None and each not in acked:
                    break
                done = done if number is None else number
            storable = progress.storable()
            assert (storable.position if storable else -1) == done
        assert progress.unacked == 0
        assert not progress._early


def test_acks_of_an_earlier_subscription_move_no_position():
    """A message from before a new subscription to its channel does not move the new position."""
    progress = Progress(10)
    progress.sealed(9, 5)
    progress.ack(9)
    assert progress.storable() is None


# Random servers.


class Server:
    """A server with two channels that flushes their events into any response.

    Args:
        chance: Random numbers.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.bases = dict.fromkeys((TOPIC, OTHER), 9000)
        self.log: dict[str, list[int]] = {channel: [] for channel in self.bases}
        self.ever: dict[str, list[int]] = {channel: [] for channel in self.bases}
        self.session: dict[str, int] = {}  # channel -> number of events of the log already sent
        self.answers: dict[Lane, list[dict[str, Any]]] = {}  # not yet received by the client

    def publish(self, channel: str) -> None:
        log = self.log[channel]
        log.append((log[-1] if log else self.bases[channel]) + self.chance.randint(1, 3))
        self.ever[channel].append(log[-1])

    def reset(self, channel: str) -> None:
        """Begin a new numbering, lower than all before, and end the session."""
        self.bases[channel] -= 2000
        self.log[channel] = []
        self.session.clear()

    def process(self, lane: Lane, messages: list[dict[str, Any]]) -> None:
        """Handle a request; the answer is received, or lost, later."""
        found: list[dict[str, Any]] = []
        for message in messages:
            reply = {"channel": message["channel"], "id": message["id"], "successful": True}
            kind = message["channel"]
            if kind == "/meta/handshake":
                reply |= {"clientId": "1", "ext": {"replay": True}}
                self.session = {"": 0}
            elif not self.session:
                reply |= {"successful": False, "error": UNKNOWN}
                reply["advice"] = {"reconnect": "handshake"}
            elif kind == "/meta/subscribe":
                ((channel, start),) = message["ext"]["replay"].items()
                log = self.log[channel]
                self.session[channel] = log.index(start) + 1 if start in log else 0
            elif kind == "/meta/unsubscribe":
                self.session.pop(message["subscription"], None)
            found.append(reply)
        for channel in self.bases:
            sent = self.session.get(channel)
            if sent is not None:
                upto = self.chance.randint(sent, len(self.log[channel]))
                found += [event(number, channel) for number in self.log[channel][sent:upto]]
                self.session[channel] = upto
        self.answers[lane] = found


@pytest.mark.parametrize("reorder", [0.0, 1.0])
@pytest.mark.parametrize("faults", ["none", "losses", "losses and resets"])
def test_a_server_that_uses_both_lanes_loses_and_repeats_no_event(faults, reorder):
    """With two channels, both lanes, lost answers on either and new numberings, the client delivers
    every event once, and never stores a position above one that is not acked.

    Without faults, and if no response takes longer than the wait, the order is that of the ids.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    for number in range(40):
        walk(random.Random(seed + number), faults, reorder)


def walk(chance: random.Random, faults: str, reorder: float) -> None:
    server = Server(chance)
    script = Script(
        connection_timeout=None, max_pending_count=0, is_tracked=True, pace=Pace(reorder=reorder)
    ).connected()
    for lane in list(script.flying):
        script.fail(lane)  # the server of this test knows nothing yet
    subscribed, acked = set(), {channel: set() for channel in server.bases}
    resets = 0

    def check_positions() -> None:
        for item in list(script.pending.messages()) if chance.random() < 0.3 else ():
            acked[item.subscription].add(item.replay_id)
            script.progress[item.subscription].ack(item.delivery_seq)
        for channel in subscribed:
            position = stored(script, channel)
            ever = server.ever[channel]
            if position >= 0:
                assert set(ever[: ever.index(position) + 1]) <= acked[channel], (channel, position)

    def turn(calm: bool) -> None:
        lanes = [lane for lane in script.flying if lane not in server.answers]
        if lanes and (chance.random() < 0.6 or not server.answers):
            lane = chance.choice(lanes)
            is_idle_poll = calm and lane is POLL and not unsent(server)
            if is_idle_poll and len(script.flying) > 1:
                lane = ASK
            server.process(lane, script.messages(lane))
        elif server.answers:
            lane = chance.choice(list(server.answers))
            answer = server.answers.pop(lane)
            if lane not in script.flying:
                return
            if not calm and faults != "none" and chance.random() < 0.08:
                script.fail(lane)
            else:
                script.answer(lane, *answer)
        else:
            script.wait()

    for _ in range(250):
        luck = chance.random()
        channel = chance.choice(list(server.bases))
        if luck < 0.35:
            server.publish(channel)
        elif luck < 0.4 and channel not in subscribed:
            subscribed.add(channel)
            script.subscribe(channel, -2)
        elif luck < 0.44 and faults.endswith("resets") and resets < 3:
            resets += 1
            # Without what was not sent: nobody can know of it.
            if channel in subscribed and server.ever[channel] == expected(script, channel):
                server.reset(channel)
        elif luck < 0.5 and reorder == 0.0:
            script.wait(0.0)
        else:
            turn(calm=False)
        check_positions()
    for channel in set(server.bases) - subscribed:
        subscribed.add(channel)
        script.subscribe(channel, -2)
    for _ in range(3000):
        turn(calm=True)
        if all(sorted(expected(script, c)) == sorted(server.ever[c]) for c in subscribed):
            break
    late = 0
    for channel in subscribed:
        found = expected(script, channel)
        assert sorted(found) == sorted(server.ever[channel]), channel
        late += sum(number < max(part) for number, part in numberings(found))
        if faults == "none" and reorder:
            assert found == server.ever[channel]
    # A new numbering is not noticed if nothing below the first id was known to be received.
    counted = script.protocol.channels.late
    assert counted >= late if faults.endswith("resets") else counted == late
    assert {reason for reason, _ in script.gaps} <= {"reset"}


def unsent(server: Server) -> bool:
    return any(server.session.get(c, 0) < len(server.log[c]) for c in server.bases)


def expected(script: Script, channel: str) -> list[int]:
    """Return the ids that were delivered of a channel, in order."""
    return [item.replay_id for item in script.queued if item.subscription == channel]


def numberings(ids: list[int]) -> Any:
    """Yield each id with those delivered before it in the same numbering."""
    for place, number in enumerate(ids):
        part = [other for other in ids[:place] if other // 2000 == number // 2000]
        if part:
            yield number, part


# The table of states.


@pytest.mark.parametrize(
    ("state", "signal"), [(state, signal) for state in State for signal in Signal]
)
def test_every_pair_is_in_the_table_or_raises(state, signal):
    """A pair that is not in the table raises an error that names both."""
    if signal in TRANSITIONS[state]:
        assert states.step(state, signal) is TRANSITIONS[state][signal]
        return
    with pytest.raises(AssertionError, match=f"{state.value} cannot handle {signal.value}"):
        states.step(state, signal)


def test_the_table_contains_exactly_the_pairs_that_occur(monkeypatch):
    """Whatever the application does while requests are answered, refused and lost, no other pair
    of state and signal occurs, and each one in the table does.
    """
    chance, seen, step = random.Random(7), set(), states.step

    def recorded(state: State, signal: Signal) -> State:
        seen.add((state, signal))
        return step(state, signal)

    monkeypatch.setattr(states, "step", recorded)
    table = {(state, signal) for state in TRANSITIONS for signal in TRANSITIONS[state]}
    for _ in range(400):
        if seen == table:
            break
        wander(chance)
    assert seen == table


def wander(chance: random.Random) -> None:
    script = Script(connection_timeout=None, fallback=-2).connected()

    def use(act: Callable[..., None], *arguments: Any, **options: Any) -> None:
        if name not in script.calls or script.calls[name].is_done:
            call = script.call(name)
            script.tick(lambda: act(name, *arguments, call, **options))

    for _ in range(60):
        channels, name = script.protocol.channels, chance.choice([TOPIC, OTHER])
        luck = chance.random()
        lane = chance.choice(list(script.flying)) if script.flying else None
        if luck < 0.2:
            use(channels.subscribe, 7, rewind=False, resumes=chance.random() < 0.5)
        elif luck < 0.4:
            use(channels.unsubscribe)
        elif luck < 0.55 and name in script.calls:
            script.tick(partial(script.protocol.abandon, script.calls[name]))
        elif lane is None:
            script.wait()
        elif script.was_cut(lane) or luck > 0.95:
            script.fail(lane)
        elif lane is ASK and "subscription" in script.messages(ASK)[0] and luck > 0.75:
            script.refuse(ASK, chance.choice([INVALID, "403::Restricted channel"]))
        elif lane is ASK or luck > 0.85:
            script.confirm(lane)
