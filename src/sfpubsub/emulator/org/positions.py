"""The positions of one org's bus: minted, alive, forgotten. Knows nothing of topics.

A position p is alive once it has been minted and while nothing at or after it has been forgotten:
`purged_through < p <= tip`, unless it was corrupted. Positions are forgotten by age, or because a
fault says so; then the fault is remembered for as long as the process lives, so that whoever comes
with such a position can be counted as having met it.

Invariant: a position that was forgotten is never alive again, and its id never given out again.
"""

from __future__ import annotations

import threading

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.mailbox import Bells
from sfpubsub.emulator.org.replay_ids import ReplayIds
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store


class Positions:
    """Positions and their ids. Thread-safe.

    Args:
        store: Where events and marks live.
        clock: What time it is.
        settings: Retention, and the length of ids.

    Attributes:
        bells: Wake streams.
        ids: Bytes of a position, and back.
        moves: How often streams have lost their footing; one that began before the last is over.
        moved_by: The fault that did it last.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self.bells: Bells = Bells()
        self.ids: ReplayIds = ReplayIds(settings.replay_id_bytes)
        self.moves: int = 0
        self.moved_by: Fault | None = None
        self._store = store
        self._clock = clock
        self._settings = settings
        self._lock = threading.RLock()  # guards all below, and the order of positions
        self._corrupted: dict[int, Fault | None] = {}
        self._forgotten: list[tuple[int, Fault | None]] = []  # through which position, by what
        self._tip = int(store.meta("tip", "0"))
        self._purged_through = int(store.meta("purged_through", "0"))
        self._oldest = store.oldest()
        self._losses = 0  # how often events went, or took other positions
        newest = store.rows(
            "SELECT max(at) FROM (SELECT at FROM events WHERE position = ?1"
            " UNION ALL SELECT at FROM marks WHERE position = ?1)",
            self._tip,
        )
        self._tip_at: float = newest[0][0] or 0.0

    # What there is.

    def tip(self) -> int:
        """The newest position of the org."""
        with self._lock:
            return self._tip

    def standing(self) -> tuple[int, int]:
        """How often events were lost since the start, and the newest position.

        As long as both stay the same, reading again finds the same.
        """
        with self._lock:
            self._purge()
            return self._losses, self._tip

    def is_alive(self, position: int) -> bool:
        """Whether a stream can start after a position."""
        with self._lock:
            self._purge()
            minted = self._purged_through < position <= self._tip
            return minted and position not in self._corrupted

    def position(self, replay_id: bytes) -> int | None:
        """The position of an id that a client sent; None unless it is alive."""
        position = self.ids.read(replay_id)
        return position if position is not None and self.is_alive(position) else None

    def dead_by(self, position: int | None) -> Fault | None:
        """The fault that made a position invalid for clients; None if no fault did."""
        with self._lock:
            if position is None:
                return None
            if position in self._corrupted:
                return self._corrupted[position]
            return next((fault for end, fault in self._forgotten if position <= end), None)

    # What is minted.

    def freshen_tip(self) -> None:
        """Mint a position if the newest is old, as other traffic of the org would."""
        with self._lock:
            if self._clock.now() - self._tip_at >= self._settings.tip_refresh_s:
                self.skip_positions(1)

    def skip_positions(self, count: int) -> None:
        """Mint positions without events: traffic of the org that no topic here carries."""
        with self._lock, self._store.transaction():
            self._mark(self._tip + count)

    # What is forgotten.

    def age_out(self, replay_id: bytes | None = None, cause: Fault | None = None) -> None:
        """Forget every event up to a position, or all; ids of these are refused from then on.

        Raises:
            ValueError: The id was never minted.
        """
        with self._lock:
            end = self._tip if replay_id is None else self._minted(replay_id)
            self._forget(end, cause)

    def corrupt(self, replay_id: bytes, cause: Fault | None = None) -> None:
        """Make one id invalid for as long as the process lives; its event stays.

        Raises:
            ValueError: The id was never minted.
        """
        with self._lock:
            self._corrupted[self._minted(replay_id)] = cause

    def reset(self, cause: Fault | None = None) -> None:
        """Forget all events and ids, and make open streams restart."""
        with self._lock:
            self._forget(self._tip, cause)
            self._move(cause)
        self.bells.ring_all()

    def move(self, cause: Fault | None = None) -> None:
        """Give all retained events new positions, in the same order, and forget the old ones.

        Open streams must restart. The age of an event stays what it was.
        """
        with self._lock:
            self._purge()
            before = self._tip
            with self._store.transaction():
                newest = self._store.renumber(before)
                self._store.set_meta("purged_through", str(before))
                self._mark(newest + 1)
            self._purged_through = before
            self._losses += 1
            self._oldest = self._store.oldest()
            self._forgotten.append((before, cause))
            self._move(cause)
        self.bells.ring_all()

    # Inside; the lock is held.

    def _minted(self, replay_id: bytes) -> int:
        position = self.ids.read(replay_id)
        if position is None or not 0 < position <= self._tip:
            raise ValueError(f"this bus has never given out the replay id {replay_id.hex()}")
        return position

    def _forget(self, end: int, cause: Fault | None) -> None:
        self._forgotten.append((end, cause))
        if end <= self._purged_through:
            return
        with self._store.transaction():
            self._store.forget_through(end)
            if end == self._tip:  # the tip stays alive: a stream may be told of it at any time
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
        horizon = self._clock.now() - self._settings.retention_s
        if self._oldest is None or self._oldest > horizon:
            return
        newest = self._store.purge(horizon)
        if newest is not None:
            self._purged_through = newest
            self._losses += 1
        self._oldest = self._store.oldest()
