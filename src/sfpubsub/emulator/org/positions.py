"""Tracks which positions of one org's bus are valid. Independent of topics.

Each event on the bus has a position, a number that increases from event to event. There are also
positions without an event. The oldest positions are deleted when their retention period ends, or
earlier by `age_out`, `reset` or `move`; all positions after the last deleted one, up to the newest,
are valid. Only `corrupt` invalidates a single position. A fault that deleted or corrupted positions
is kept in memory until the process ends, so that it can be counted each time a client uses one of
them.

Invariant: a deleted position never becomes valid again, and its replay id is never issued again.
"""

from __future__ import annotations

import math
import threading

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.mailbox import Bells
from sfpubsub.emulator.org.replay_ids import ReplayIds
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

_PURGE_S = 1.0
"""Shortest time between two searches for expired positions, in seconds."""

_PURGE_ROWS = 1000
"""Maximum number of expired events, and of expired positions without an event, that one call
deletes from the store: a few milliseconds, because publishers and readers wait meanwhile.
"""


class Positions:
    """The positions of one org's bus, and their replay ids. Thread-safe.

    Args:
        store: Stores the events, and the positions without events.
        clock: The org's clock.
        settings: The retention period, and the length of replay ids.

    Attributes:
        bells: Wakes waiting streams.
        ids: Converts positions to replay ids and back.
        moves: How many times `reset` or `move` was called. Streams that started before the last
            call must end.
        moved_by: The fault that caused the last of these calls; None if no fault did.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self.bells: Bells = Bells()
        self.ids: ReplayIds = ReplayIds(settings.replay_id_bytes)
        self.moves: int = 0
        self.moved_by: Fault | None = None
        self._store = store
        self._clock = clock
        self._settings = settings
        self._lock = threading.RLock()  # guards the fields below, and the order of positions
        self._corrupted: dict[int, Fault | None] = {}
        # Pairs (position, fault): the fault deleted all positions up to and including this one;
        # None if they were deleted without a fault.
        self._forgotten: list[tuple[int, Fault | None]] = []
        self._tip = int(store.meta("tip", "0"))
        self._purged_through = int(store.meta("purged_through", "0"))
        self._oldest = store.oldest()
        self._purge_at = 0.0  # when to search for expired positions again, in seconds
        self._losses = 0  # how many times events were deleted or renumbered
        newest = store.rows(
            "SELECT max(at) FROM (SELECT at FROM events WHERE position = ?"
            " UNION ALL SELECT at FROM marks WHERE position = ?)",
            self._tip,
            self._tip,
        )
        self._tip_at: float = newest[0][0] or 0.0

    # Current positions.

    def tip(self) -> int:
        """Return the newest position of the org."""
        with self._lock:
            return self._tip

    def revision(self) -> tuple[int, int]:
        """Return two numbers: how many times events have been deleted or renumbered since the
        process started, and the newest position.

        As long as both are unchanged, a repeated read returns the same events.
        """
        with self._lock:
            self._purge()
            return self._losses, self._tip

    def is_alive(self, position: int) -> bool:
        """Return whether a position exists and is valid. Clients cannot start a stream with the
        replay id of any other position.
        """
        with self._lock:
            self._purge()
            minted = self._purged_through < position <= self._tip
            return minted and position not in self._corrupted

    def position(self, replay_id: bytes) -> int | None:
        """Return the position of a replay id, or None if the id is malformed, or if its position
        does not exist or is no longer valid.
        """
        position = self.ids.read(replay_id)
        return position if position is not None and self.is_alive(position) else None

    def dead_by(self, position: int | None) -> Fault | None:
        """Return the fault that made a position invalid; None if no fault did, or if *position* is
        None.
        """
        with self._lock:
            if position is None:
                return None
            if position in self._corrupted:
                return self._corrupted[position]
            return next((fault for end, fault in self._forgotten if position <= end), None)

    # Creating positions.

    def freshen_tip(self) -> None:
        """If the newest position is at least `Settings.tip_refresh_s` old, create a position
        without an event, as if another topic had received an event.
        """
        with self._lock:
            if self._clock.now() - self._tip_at >= self._settings.tip_refresh_s:
                self.skip_positions(1)

    def skip_positions(self, count: int) -> None:
        """Create *count* positions without events, as if other topics had received events."""
        with self._lock, self._store.transaction():
            self._mark(self._tip + count)

    # Deleting positions.

    def age_out(self, replay_id: bytes | None = None, cause: Fault | None = None) -> None:
        """Delete the oldest events, and invalidate their replay ids.

        Args:
            replay_id: Replay id of the last event to delete; None deletes all events.
            cause: The fault whose count increases when a client uses one of these ids.

        Raises:
            ValueError: The replay id was never issued.
        """
        with self._lock:
            end = self._tip if replay_id is None else self._minted(replay_id)
            self._forget(end, cause)

    def corrupt(self, replay_id: bytes, cause: Fault | None = None) -> None:
        """Invalidate one replay id until the process ends; its event is kept.

        Args:
            replay_id: The replay id.
            cause: The fault whose count increases when a client uses this id.

        Raises:
            ValueError: The replay id was never issued.
        """
        with self._lock:
            self._corrupted[self._minted(replay_id)] = cause

    def reset(self, cause: Fault | None = None) -> None:
        """Delete all events, invalidate all replay ids, and end open streams."""
        with self._lock:
            self._forget(self._tip, cause)
            self._move(cause)
        self.bells.ring_all()

    def move(self, cause: Fault | None = None) -> None:
        """Renumber all retained events in the same order, invalidate the old positions, and end
        open streams. The events keep their publication times.
        """
        with self._lock:
            self._purge()
            before = self._tip
            with self._store.transaction():
                self._store.forget_through(self._purged_through)
                newest = self._store.renumber(before)
                self._store.set_meta("purged_through", str(before))
                self._mark(newest + 1)
            self._purged_through = before
            self._losses += 1
            self._oldest = self._store.oldest()
            self._forgotten.append((before, cause))
            self._move(cause)
        self.bells.ring_all()

    # Internal; the lock is held.

    def _minted(self, replay_id: bytes) -> int:
        position = self.ids.read(replay_id)
        if position is None or not 0 < position <= self._tip:
            raise ValueError(f"the emulator has never issued the replay id {replay_id.hex()}")
        return position

    def _forget(self, end: int, cause: Fault | None) -> None:
        self._forgotten.append((end, cause))
        if end <= self._purged_through:
            return
        with self._store.transaction():
            self._store.forget_through(end)
            if end == self._tip:  # the tip stays alive: it may be sent to a stream at any time
                self._mark(end + 1)
        self._purged_through = end
        self._losses += 1
        self._oldest = self._store.oldest()

    def _move(self, cause: Fault | None) -> None:
        self.moves += 1
        self.moved_by = cause

    def _mark(self, position: int) -> None:
        at = self._clock.now()
        self._store.run("INSERT INTO marks VALUES (?, ?)", position, at)
        self._store.set_meta("tip", str(position))
        self._moved_to(position, at)

    def _moved_to(self, position: int, at: float) -> None:
        self._tip, self._tip_at = position, at
        if self._oldest is None:
            self._oldest = at

    def _purge(self) -> None:
        """Invalidate the positions whose retention period has ended, and delete a limited number
        of them from the store. Later calls delete the others; until then, `Bus` skips them.
        """
        now = self._clock.now()
        horizon = now - self._settings.retention_s
        if self._oldest is None or self._oldest > horizon or now < self._purge_at:
            return
        # `nextafter`: a position that was created exactly at the horizon has expired.
        newest = self._store.newest_before(math.nextafter(horizon, math.inf)) or 0
        if newest > self._purged_through:
            self._purged_through = newest
            self._losses += 1
        if self._store.purge(self._purged_through, _PURGE_ROWS):
            self._purge_at = now + _PURGE_S
        self._oldest = self._store.oldest()
