"""Tests of the Mailbox, the queue between the driver's and the application's threads."""

from __future__ import annotations

import threading
import time

import pytest

from sfpubsub.protocol.commands import Deliver, Finish
from sfpubsub.transports.mailbox import Arrival, Mailbox

from ..conftest import PATIENCE, until


def arrival(seq: int) -> Arrival:
    """Return a response with this sequence number and no events."""
    return Arrival(Deliver((), seq, "rpc", 0), 0.0)


def test_a_response_between_the_check_and_the_wait_is_not_missed():
    """A wait ends at once if a response arrived after the caller read the mailbox's count."""
    mailbox = Mailbox()
    seen = mailbox.count
    mailbox.put(arrival(1))
    mailbox.wait(seen, None)
    assert mailbox.peek() == arrival(1)


@pytest.mark.parametrize(
    "news",
    [
        lambda mailbox: mailbox.put(arrival(1)),
        lambda mailbox: mailbox.discard(),
        lambda mailbox: mailbox.close(Finish(None)),
        lambda mailbox: mailbox.wake(),
    ],
)
def test_every_change_wakes_all_waiters(news):
    """A response, a discard, a close and a wake each wake all waiting threads."""
    mailbox = Mailbox()
    threads = [threading.Thread(target=mailbox.wait, args=(0, None)) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(mailbox._waiting) == 3)
    news(mailbox)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not mailbox._waiting


def test_a_wait_ends_at_its_timeout_and_leaves_no_waiter():
    """A wait that times out removes its waiter, so repeated waits do not accumulate."""
    mailbox = Mailbox()
    began = time.monotonic()
    for timeout in (0.0, -1.0, 0.02):
        mailbox.wait(mailbox.count, timeout)
    assert time.monotonic() >= began + 0.02
    assert not mailbox._waiting


def test_a_response_is_taken_once_and_only_from_the_front():
    """peek() leaves a response in the queue; pop() removes it once, and only from the front."""
    mailbox = Mailbox()
    first, second = arrival(1), arrival(2)
    assert mailbox.peek() is None
    mailbox.pop(first)
    mailbox.put(first)
    mailbox.put(second)
    mailbox.pop(second)
    assert mailbox.peek() is first
    mailbox.pop(first)
    mailbox.pop(first)
    assert mailbox.peek() is second
    mailbox.discard()
    assert mailbox.peek() is None
