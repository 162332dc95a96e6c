"""Tests of faults of the Streaming API: each one is triggered where planned, and counted."""

from __future__ import annotations

import http.client
import threading

import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings

from .bayeux import ALL, Bayeux, ids, records
from .support import until

TOPIC = "/topic/Accounts"


@pytest.fixture
def emulator(start):
    """An emulator with one retained event; at the end, checks that every fault was triggered."""
    emulator = start(settings=Settings(streaming_timeout_s=60.0))[0]
    emulator.publish_streaming(TOPIC, records("old"))
    yield emulator
    emulator.faults.assert_consumed()


@pytest.fixture
def client(emulator):
    """A Bayeux client that is connected and subscribed to `TOPIC`."""
    client = Bayeux(emulator).ready()
    assert client.subscribe(TOPIC)["successful"]
    return client


def held(emulator, client):
    """Send a connect in a thread, and wait until the emulator holds it.

    Return a function that waits for the outcome: the messages of the response, or an exception.
    """
    outcome = []

    def poll():
        try:
            outcome.append(client.connect())
        except (OSError, http.client.HTTPException) as error:
            outcome.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    until(lambda: any(item.pending for item in emulator.cometd.sessions._sessions.values()))

    def result():
        thread.join(10)
        return outcome[0]

    return result


def test_refuse_message_rejects_a_message_with_any_text(emulator):
    """The fault `refuse_message` rejects a message with the given error text, advice and reason."""
    emulator.faults.add(
        Fault(
            "refuse_message",
            rpc="/meta/handshake",
            text="403::Handshake denied",
            reconnect="none",
            reason="503::Server is too busy. Please try your request again later.",
        )
    )
    reply = Bayeux(emulator).handshake()
    assert reply["error"] == "403::Handshake denied"
    assert reply["advice"]["reconnect"] == "none"
    assert reply["ext"]["sfdc"]["failureReason"].startswith("503::")
    client = Bayeux(emulator).ready()
    emulator.faults.add(Fault("refuse_message", rpc="/meta/subscribe"))
    reply = client.subscribe(TOPIC)
    assert (reply["error"], reply.get("advice")) == ("403::Unknown client", None)


def test_a_session_ends_while_its_connect_is_held(emulator, client):
    """If a session ends while its connect is held, the connect fails at once."""
    result = held(emulator, client)
    emulator.faults.add(Fault("end_cometd_session"))
    assert result()[0]["error"] == "403::Unknown client"


def test_the_server_disconnects_the_client(emulator, client):
    """The fault `say_goodbye` adds a disconnect message to the response to a connect.

    The session is then over.
    """
    result = held(emulator, client)
    emulator.faults.add(Fault("say_goodbye"))
    goodbye, reply = result()
    assert goodbye == {"channel": "/meta/disconnect", "clientId": client.client_id}
    assert reply["successful"]
    assert client.connect()[0]["error"] == "403::Unknown client"


def test_an_html_page_replaces_a_response(emulator, client):
    """The fault `answer_with_page` answers with an HTML page and the given status."""
    emulator.faults.add(Fault("answer_with_page", status=503))
    status, text = client.post({"channel": "/meta/connect"})
    assert status == 503
    assert text.startswith("<html>")


@pytest.mark.parametrize("with_events", [True, False])
def test_dropped_poll_loses_its_events_to_the_session(emulator, client, with_events):
    """The fault `cut_poll` closes the connection of a held connect instead of responding.

    The session never receives the events of the lost response, but a replay delivers them.
    """
    result = held(emulator, client)
    emulator.faults.add(Fault("cut_poll", with_events=with_events))
    found = emulator.publish_streaming(TOPIC, records("a")) if with_events else []
    assert isinstance(result(), (OSError, http.client.HTTPException))
    if with_events:
        assert client.connect(advice={"timeout": 0})[:-1] == []
        client.subscribe(TOPIC, ALL)
        assert ids(client.read(2))[1:] == found


def test_a_response_is_sent_slowly_but_completely(emulator, client):
    """The fault `drip_answer` sends a response slowly, but in full."""
    emulator.faults.add(Fault("drip_answer", seconds=0.05))
    assert client.connect(advice={"timeout": 0})[0]["successful"]


@pytest.mark.parametrize("kind", ["expire_token", "revoke_token"])
def test_an_invalid_token_ends_the_session(emulator, client, kind):
    """A session ends at once if its token expires, even while a connect is held.

    If its token is revoked, it ends with the next connect.
    """
    result = held(emulator, client) if kind == "expire_token" else client.connect
    emulator.faults.add(Fault(kind))
    (reply,) = result()
    assert reply["error"] == "401::Authentication invalid"
    assert reply["advice"]["reconnect"] == "none"


def test_invalid_faults_of_messages_are_rejected():
    """Faults of the Streaming API with invalid parameters are rejected when they are created."""
    for arguments in ({"reconnect": "perhaps"}, {"text": ""}, {"rpc": "Subscribe"}):
        with pytest.raises(ValueError, match="refuse_message"):
            Fault("refuse_message", **arguments)
    with pytest.raises(ValueError, match="status"):
        Fault("answer_with_page", status=200)
