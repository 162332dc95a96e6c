"""The queue of messages and errors between the driver and the application."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice, repeat

from sfpubsub.errors import SfPubSubError
from sfpubsub.streaming.bayeux import Message, StreamingMessage


class _Run:
    """Events of one channel that arrived together, or one error.

    An event becomes a `StreamingMessage` only when it is taken from the queue. Creating messages
    earlier would make the garbage collector run more often.
    """

    def __init__(
        self, channel: str, events: Sequence[Message], ids: Sequence[int | None], first: int
    ) -> None:
        # The events that are not taken yet, in reverse, because `pop` takes the last item. None
        # marks the end. Taken events are not kept, so that the next response can use their memory.
        self._events = [None, *reversed(events)]
        fields = zip(iter(self._events.pop, None), repeat(channel), ids, count(first))
        self.messages = map(partial(tuple.__new__, StreamingMessage), fields)
        """Takes the events, and returns them as messages."""
        self.head: StreamingMessage | SfPubSubError | None = None
        """The first item, if it was looked at before it was taken."""

    def __len__(self) -> int:
        return max(len(self._events) - 1, 0) + (self.head is not None)


class Pending:
    """A queue of messages and errors. One thread appends items, and another takes them.

    Args:
        first: Sequence number of the first message.
        limit: Length at which the queue is full; 0 or less means no limit.
    """

    def __init__(self, first: int, limit: int) -> None:
        self.next_seq = first
        """Sequence number of the next message that is appended."""
        self._limit = max(limit, 0)
        self._runs: deque[_Run] = deque()
        self._has_reported = False  # whether room was reported since the last append
        self.on_room: Callable[[], None] = lambda: None
        """Called in the thread that takes, once the queue is no longer full."""

    def __len__(self) -> int:
        return sum(map(len, self._runs.copy()))  # a copy, because two threads change it

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its limit."""
        return 0 < self._limit <= len(self)

    @property
    def errors(self) -> list[SfPubSubError]:
        """The errors in the queue."""
        heads = [run.head for run in self._runs.copy()]
        return [head for head in heads if isinstance(head, SfPubSubError)]

    def put(self, channel: str, events: Sequence[Message], ids: Sequence[int | None]) -> None:
        """Append events of a channel, with their replay ids."""
        run = _Run(channel, events, ids, self.next_seq)
        self.next_seq += len(events)
        self._append(run)

    def fail(self, error: SfPubSubError) -> None:
        """Append an error."""
        run = _Run("", (), (), self.next_seq)
        run.head = error
        self._append(run)

    def head(self) -> StreamingMessage | SfPubSubError | None:
        """Return the first item without taking it; None if the queue is empty."""
        run = self._first()
        if run is not None and run.head is None:
            run.head = next(run.messages)
        return None if run is None else run.head

    def take(self) -> None:
        """Remove the item that `head` returned."""
        self._runs[0].head = None
        self.report_room()

    def messages(self) -> Iterator[StreamingMessage]:
        """Take and yield messages without waiting.

        Stops at an error, and at an item that `head` has returned and `take` has not removed. This
        is cheaper than `head` and `take`.
        """
        while (run := self._first()) is not None and run.head is None:
            # The queue remains full, so there is nothing to report, unless `take` is called
            # meanwhile.
            yield from islice(run.messages, max(len(run) - self._limit, 0))
            for message in run.messages:
                self.report_room()
                yield message

    def report_room(self) -> None:
        """Call `on_room` if the queue is not full, but at most once between two appends.

        Call this before waiting for a message, because fetching may have stopped while the queue
        was full.
        """
        if not self._has_reported:
            # Set first: the other thread may append, and reset it, at any moment from here.
            self._has_reported = True
            if len(self) < self._limit:
                self.on_room()
            else:
                self._has_reported = False

    def _append(self, run: _Run) -> None:
        self._runs.append(run)
        self._has_reported = False  # after the append, see `report_room`

    def _first(self) -> _Run | None:
        while self._runs and not self._runs[0]:
            self._runs.popleft()
        return self._runs[0] if self._runs else None
