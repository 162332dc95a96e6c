"""Tests of the streaming clients at their edges: responses that overtake each other or are broken,
forks, positions of other clients.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import ConfigurationError, RemoteProtocolError
from sfpubsub.stores.file_replay_store import FileReplayStore
from sfpubsub.streaming import as_replay_id

from ..cli.test_cli import environment
from ..conftest import PATIENCE, wait_for_exit
from .conftest import TOPIC, numbered
from .faces import QUICK
from .fake import TOKEN, fake_bayeux

NEWS = "/u/News"


def news(text: str, replay_id: int = 1) -> dict:
    return {"channel": NEWS, "data": {"event": {"replayId": replay_id}, "payload": text}}


@pytest.mark.parametrize(("reorder", "order"), [(PATIENCE, [4, 5, 6]), (0.0, [4, 6, 5])])
def test_events_on_a_reply_wait_for_the_connect_in_flight(face, reorder, order):
    """An event on the reply to a subscribe waits for the connect in flight, unless told otherwise.

    An earlier one that comes later is delivered and counted.
    """
    with fake_bayeux() as fake:
        pace = replace(QUICK, reorder=reorder)
        client = face(fake.session, NEWS, replay=-2, pace=pace)
        fake.polls.put([news("a", 4)])
        found = client.ids(1)
        fake.more.append([news("c", 6)])
        client.subscribe(TOPIC)
        found += [] if reorder else client.ids(1)
        fake.polls.put([news("b", 5)])
        assert found + client.ids(3 - len(found)) == order
        assert client.late_count == (0 if reorder else 1)


@pytest.mark.parametrize("policy", ["automatic", "manual"])
def test_a_lost_connect_loses_no_event_that_came_with_a_reply(face, policy):
    """If a connect is lost after a reply brought a later event, no event is lost or repeated.

    The position in the store is never above the one at which the connect was sent.
    """
    store: dict = {}
    with fake_bayeux() as fake:
        pace = replace(QUICK, reorder=0.0)
        client = face(fake.session, replay=store, replay_policy=policy, pace=pace)
        store[NEWS] = bytes(as_replay_id(3))
        client.subscribe(NEWS)

        def receive() -> int:
            (message,) = client.collect(1)
            if policy == "manual":
                client.ack(message)
            return message.replay_id

        fake.polls.put([news("a", 4)])
        assert receive() == 4
        fake.more.append([news("c", 6)])
        client.subscribe(TOPIC)
        assert receive() == 6
        assert store[NEWS] == bytes(as_replay_id(4)), "a crash now would lose event 5"
        fake.polls.put(None)  # event 5 was in the response
        fake.polls.put([news("b", 5), news("c", 6)])
        fake.polls.put([news("d", 7)])
        assert [receive(), receive()] == [5, 7]
        assert [start[NEWS] for start in fake.starts if NEWS in start] == [3, 4]
        assert store[NEWS] == bytes(as_replay_id(7))


def test_a_new_numbering_is_reported_and_delivered(face):
    """If an org numbers its events anew after a session has ended, all of them are delivered."""
    gaps: list = []
    with fake_bayeux() as fake:
        client = face(fake.session, NEWS, replay=-2, pace=QUICK, on_gap=gaps.append)
        fake.polls.put([news("old", 100)])
        assert client.ids(1) == [100]
        fake.polls.put(None)
        fake.polls.put([news("new", 1), news("new", 2)])
        assert client.ids(2) == [1, 2]
        assert [gap.reason for gap in gaps] == ["reset"]


def test_acks_are_a_contiguous_prefix(face, emulator):
    """With replay_policy="manual", a crash after acks out of order repeats what was not acked."""
    store: dict = {}
    client = face(emulator, TOPIC, replay=store, replay_policy="manual")
    found = emulator.publish_streaming(TOPIC, numbered(4))
    messages = client.collect(4)
    for message in (messages[0], messages[3], messages[2]):
        client.ack(message)
    assert store == {TOPIC: bytes(as_replay_id(found[0]))}
    after_crash = face(emulator, TOPIC, replay=dict(store), replay_policy="manual")
    assert after_crash.ids(3) == found[1:]
    client.close()
    client.ack(messages[1])
    assert store == {TOPIC: bytes(as_replay_id(found[3]))}


def test_a_server_that_flushes_anywhere_loses_and_repeats_no_event(face, run_emulator):
    """With an emulator that puts the events of all channels into any response, and random failures,
    both channels get each event once.
    """
    emulator = run_emulator(settings=Settings(streaming_flush_anywhere=True))
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    published: dict = {channel: [] for channel in (TOPIC, NEWS)}
    toggled = "/u/Third"
    for channel in (toggled, NEWS):
        emulator.publish_streaming(channel, [{"payload": "x"}])
    emulator.publish_streaming(TOPIC, numbered(1))
    emulator.bus.age_out()
    pace = replace(QUICK, reorder=0.05)
    client = face(emulator, TOPIC, NEWS, replay=-2, pace=pace, connection_timeout=None)
    for _ in range(40):
        for channel, events in ((TOPIC, numbered(1)), (NEWS, [{"payload": "x"}])):
            published[channel] += emulator.publish_streaming(channel, events)
        luck = chance.random()
        if luck < 0.2:
            emulator.faults.add(Fault("cut_poll"))
        elif luck < 0.3:
            emulator.faults.add(Fault("end_cometd_session"))
        elif toggled in client.subscriptions:
            client.unsubscribe(toggled)
        else:
            client.subscribe(toggled, -1)
    found = client.collect(80)
    for channel, ids in published.items():
        received = [item.replay_id for item in found if item.channel == channel]
        assert sorted(received) == ids
    assert client.rest() == []


def test_broken_utf_8_is_an_error(face):
    """An event whose bytes are not UTF-8 is never delivered with replaced letters.

    If the same is sent in one session after another, the client ends with an error that says so.
    """
    broken = json.dumps([news("Zo@")]).encode()[:-1].replace(b"@", b"\xff") + b",@reply]"
    with fake_bayeux() as fake:
        fake.held = lambda: broken
        client = face(fake.session, NEWS, replay=-2, pace=QUICK)
        with pytest.raises(RemoteProtocolError, match="UTF-8"):
            client.receive(PATIENCE)
        assert client.closed


def test_one_unreadable_response_is_survived(face):
    """A response that cannot be read, once, is an interruption: the events are fetched again."""
    with fake_bayeux() as fake:
        fake.polls.put(b"\xff\xfe")
        fake.polls.put(b"<html>the proxy is restarting</html>")
        fake.polls.put([news("text")])
        fake.polls.put(b"\xff\xfe")
        fake.polls.put(b"[1")
        fake.polls.put([news("more", 2)])
        client = face(fake.session, NEWS, replay=-2, pace=QUICK)
        assert [item.payload for item in client.collect(2)] == ["text", "more"]


def test_pages_of_a_proxy_do_not_end_a_client(face):
    """However often a page with status 200 answers a held connect, the client goes on: it says
    nothing about an event that cannot be read.
    """
    with fake_bayeux() as fake:
        for _ in range(4):
            fake.polls.put(b"<html>the proxy is restarting</html>")
        fake.polls.put([news("text")])
        client = face(fake.session, NEWS, replay=-2, pace=QUICK)
        assert [item.payload for item in client.collect(1)] == ["text"]


def test_a_payload_that_contains_the_token_is_unchanged(face):
    """Masking the token in the server's replies never alters an event."""
    with fake_bayeux() as fake:
        fake.polls.put([news(f"the token is {TOKEN}")])
        client = face(fake.session, NEWS, replay=-2, pace=QUICK)
        assert client.collect(1)[0].payload == f"the token is {TOKEN}"


class Renewing:
    """A session provider that counts renewals."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.renewals = 0

    def get_session(self, expired: Session | None) -> Session:
        if expired is not None:
            self.renewals += 1
            old = self.session
            self.session = Session(f"{TOKEN}{self.renewals}", old.instance_url, old.tenant_id)
        return self.session


@pytest.mark.parametrize("advised", ["retry", "handshake"])
def test_a_handshake_refused_with_401_renews_the_session(face, advised):
    """A handshake refused with a 401 renews the session, whatever the server advises.

    Repeating it with the same token would never succeed.
    """
    with fake_bayeux() as fake:
        fake.refusals.append(
            {"error": "401::Request requires authentication", "advice": {"reconnect": advised}}
        )
        provider = Renewing(fake.session)
        face(provider, NEWS, pace=QUICK)
        assert provider.renewals == 1
        assert fake.tokens == [TOKEN, f"{TOKEN}1"]


def test_a_position_of_the_pubsub_client_is_refused(face, emulator, connect, tmp_path):
    """A position that `PubSubClient` stored is refused, and the error says whose it is."""
    topic = "/event/Order_Event__e"
    emulator.publish(topic, [{"Order_Number__c": "1"}])
    with FileReplayStore(tmp_path / "positions.json") as store:
        with connect(emulator).subscribe(topic, replay="earliest", replay_store=store) as stream:
            batch = stream.next_batch(PATIENCE)
            batch.ack()
        client = face(emulator, replay=store)
        with pytest.raises(ConfigurationError, match="PubSubClient") as refused:
            client.subscribe(topic)
        assert topic in str(refused.value)
        client.subscribe(TOPIC)
        found = emulator.publish_streaming(TOPIC, numbered(1))
        assert client.ids(1) == found


# In a forked child every call of either client is refused. Leaving the `with` block there does not
# cut the connections, which the parent still uses: it receives an event without a reconnect.
FORKED = f"""
import asyncio, logging, os, signal
from sfpubsub import AsyncStreamingClient, LocalProtocolError, StreamingClient
seen = []
class Seen(logging.Handler):
    def emit(self, record):
        seen.append(record.getMessage())
logging.getLogger("sfpubsub.streaming").addHandler(Seen())
logging.getLogger("sfpubsub.streaming").setLevel("INFO")
refused = os.pipe()
calls = [
    lambda client: client.open(),
    lambda client: client.subscribe("{TOPIC}"),
    lambda client: client.unsubscribe("{NEWS}"),
    lambda client: client.receive(1),
    lambda client: client.push("{NEWS}", "x"),
]
async def use(client, call):
    waiting = call(client)
    if asyncio.iscoroutine(waiting):
        await waiting
with StreamingClient.from_env(replay=-2) as client:
    client.subscribe("{NEWS}")
    other = AsyncStreamingClient.from_env()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        for each in (client, other):
            for call in calls:
                try:
                    asyncio.run(use(each, call))
                except LocalProtocolError as error:
                    assert "create a new client after the fork" in str(error), error
                    os.write(refused[1], b".")
        asyncio.run(use(other, lambda client: client.close()))
    else:
        os.waitpid(child, 0)
        client.push("{NEWS}", "after the fork")
        message = client.receive(20)
        assert message.payload == "after the fork"
        assert not [line for line in seen if "trying again" in line], seen
if child == 0:
    os._exit(0)
os.close(refused[1])
print(len(os.read(refused[0], 100)))
"""


def test_a_forked_child_neither_uses_nor_cuts_the_clients(emulator):
    """In a forked child every call is refused, and leaving the block there disturbs nothing."""
    emulator.publish_streaming(NEWS, [{"payload": "old"}])
    emulator.bus.age_out()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", FORKED],
        env={**os.environ, **environment(emulator)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, said = wait_for_exit(process)
    assert (process.returncode, output) == (0, "10\n"), said
