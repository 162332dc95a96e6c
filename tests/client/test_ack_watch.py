"""Tests of the warning that events are delivered and none is acked."""

from __future__ import annotations

import threading

from sfpubsub import PubSubClient
from sfpubsub.auth.session import Session
from sfpubsub.client.ack_watch import AckWatch
from sfpubsub.config import Timings

from ..conftest import until
from .test_interrupts import NAME, Service


def test_a_warning_is_due_only_while_nothing_is_acked():
    """The first warning comes after the given time without an ack, the next ones ever later; an ack
    starts anew.
    """
    watch = AckWatch(100.0)
    assert watch.due is None
    assert watch.warns(1000.0) is None
    watch.handed_out(1000.0)
    watch.handed_out(1050.0)
    assert watch.due == 1100.0
    assert watch.warns(1099.0) is None
    assert watch.warns(1100.0) == 100.0
    assert watch.warns(1101.0) is None
    assert watch.due == 1400.0
    assert watch.warns(1500.0) == 500.0
    watch.acked()
    assert watch.due is None
    watch.handed_out(2000.0)
    assert watch.due == 2100.0


def test_an_application_that_never_acks_is_told(caplog):
    """With ``ack="manual"``, a loop that forgets its acks gets a warning while it waits."""
    service = Service()
    threading.Thread(target=service.play, daemon=True).start()
    session = Session("00D000000000001!token", "https://example.my.salesforce.com")
    timings = Timings(unacked_warning=0.05)
    with PubSubClient(session, transport=service.transport, timings=timings) as client:
        subscription = client.subscribe_managed(NAME, ack="manual")
        service.send(1, 2)

        def is_told() -> bool:
            subscription.next_batch(0.05)
            return "none was acked" in caplog.text

        until(is_told, "the warning")
        assert NAME in caplog.text
        subscription.abort()
