"""Where the service stands with a managed subscription, told by what its streams begin with."""

from __future__ import annotations

from sfpubsub.config import Timings
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.standing import Standing
from sfpubsub.types import Gap
from tests.protocol.scripted import NAME, events, keepalive, rid


class Managed:
    """A standing with its ledger, on stream 1. Event numbers are delivery_seqs."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.standing = Standing(NAME, self.ledger, Timings())
        self.stream = 0
        self.new_stream()

    def new_stream(self) -> None:
        self.stream += 1
        self.ledger.new_stream(self.stream)
        self.standing.new_stream(self.stream, 0.0)

    def take(self, response: Response) -> Gap | None:
        """Take a response, as the intake does; return what was lost."""
        _, gap = self.standing.began(response)
        for raw in response.events:
            if not self.ledger.is_known(raw):
                self.ledger.add_event(raw, int.from_bytes(bytes(raw.replay_id)[4:], "big"))
        if response.keepalive is not None:
            self.ledger.add_keepalive(response.keepalive)
        return gap


def test_a_stream_that_begins_right_after_the_confirmed_position_is_in_order() -> None:
    """Nothing was moved."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.new_stream()

    assert managed.take(events(1)) is None


def test_a_stream_that_begins_elsewhere_was_moved() -> None:
    """The service gave up the position: that is said, with what is known."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.new_stream()

    assert managed.take(events(7)) == Gap("repositioned", NAME, None, rid(7), rpc_id="rpc-7")
    assert managed.take(events(20)) is None, "once a stream"


def test_a_response_without_position_is_no_beginning() -> None:
    """A bare commit answer or an odd empty message says nothing of where the stream stands."""
    managed = Managed()
    managed.take(events(1))
    managed.new_stream()

    assert managed.take(Response()) is None
    assert managed.take(events(9)) is not None, "the first position is still checked"


def test_a_stream_that_begins_with_a_keepalive_over_open_events_was_moved() -> None:
    """A keepalive says that nothing is left to send, though the ledger holds an event."""
    managed = Managed()
    managed.take(events(1))
    managed.new_stream()
    gap = managed.take(keepalive(9))

    assert gap is not None
    assert gap.before == rid(9)
