"""Managed subscriptions: their records, slots and committed positions. Independent of the wire
protocols and of grpc.

Records are kept in the store. Slots are kept in memory, so that no slot stays taken if the emulator
is killed. Invariants: at most one stream occupies the slot of a subscription. The committed
position only moves forward until STOP deletes it. A position that is no longer retained cannot be
committed.

As on the real service, some changes take effect with a delay. Only after `propagation_s` do streams
see that a subscription was created, or that the Tooling API set it to RUN or changed its presets.
After STOP or deletion, new streams are refused immediately, and the open stream ends after
`state_delay_s`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Literal

from sfpubsub.emulator.faults.plan import Fault, FaultPlan
from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

Preset = Literal["LATEST", "EARLIEST"]
State = Literal["RUN", "STOP"]

_PREFIX = "managed.subscription."
_ID_LENGTHS = (15, 18)
_ID_PREFIX = "18xSB"


class NameTaken(ValueError):  # noqa: N818 - an answer, not a bug
    """Raised if a new managed subscription has the developer name of an existing one."""


class LimitReached(ValueError):  # noqa: N818 - as NameTaken
    """Raised if the org has reached its limit on managed subscriptions."""


@dataclass(frozen=True)
class ManagedSubscription:
    """The record of a managed subscription.

    Attributes:
        subscription_id: 18-character id.
        developer_name: Unique name.
        label: Label, for display.
        topic: Name of the topic.
        default_replay: Where a stream starts if no position is committed.
        error_recovery_replay: Where a stream starts if the committed position is no longer valid.
        state: RUN or STOP.
        committed: Committed position; None before the first commit and after STOP.
        created_at: Time of creation, in seconds since the epoch.
        modified_at: Time of the last change by a user, in seconds since the epoch.
    """

    subscription_id: str
    developer_name: str
    label: str
    topic: str
    default_replay: Preset
    error_recovery_replay: Preset
    state: State
    committed: int | None
    created_at: float
    modified_at: float


@dataclass(frozen=True)
class _Ending:
    """A STOP or deletion of a managed subscription. Streams that are open at that moment end at
    `due` (seconds since the epoch).
    """

    number: int
    due: float
    suffix: str
    cause: Fault | None


@dataclass(frozen=True)
class _Change:
    """A change to a managed subscription's record, which streams see only after a delay.

    Before the time `until` (seconds since the epoch), streams see the replay presets of `before`.
    They see the state RUN if both `before` and the new record are in that state, otherwise STOP.
    """

    until: float
    before: ManagedSubscription


class ManagedSubscriptions:
    """The managed subscriptions of one org. Thread-safe.

    Args:
        store: The store for the records.
        bus: The bus whose positions are committed.
        clock: The org's clock.
        settings: Times and limits.
        faults: The fault plan. A `hold_slot` fault delays the release of a slot.
    """

    def __init__(
        self, store: Store, bus: Bus, clock: Clock, settings: Settings, faults: FaultPlan
    ) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._settings = settings
        self._faults = faults
        self._lock = threading.RLock()  # guards changes of records, and the slots
        self._holders: dict[str, object] = {}
        self._held_until: dict[str, float] = {}
        self._endings: dict[str, _Ending] = {}  # the latest one of each subscription, by id
        self._deleted: dict[str, Fault | None] = {}  # by name and both forms of the id
        self._changes: dict[str, _Change] = {}  # the latest one of each subscription, by id

    # Records.

    def create(
        self,
        developer_name: str,
        topic: str,
        *,
        label: str = "",
        default_replay: Preset = "LATEST",
        error_recovery_replay: Preset = "LATEST",
        state: State = "RUN",
    ) -> ManagedSubscription:
        """Create a managed subscription.

        Args:
            developer_name: Unique name.
            topic: Name of the topic.
            label: Label, for display; blank uses the developer name.
            default_replay: Where a stream starts if no position is committed.
            error_recovery_replay: Where a stream starts if the committed position is no longer
                valid.
            state: RUN, or STOP to create the subscription stopped.

        Returns:
            The new record.

        Raises:
            Refused: The topic is unknown.
            NameTaken: The developer name is taken; names are case-insensitive.
            LimitReached: There are already `managed_limit` subscriptions.
        """
        self._bus.topic(topic)
        with self._lock, self._store.transaction():
            taken = [item.developer_name.lower() for item in self.all()]
            if developer_name.lower() in taken:
                raise NameTaken(f"a managed subscription named {developer_name} already exists")
            if len(taken) >= self._settings.managed_limit:
                raise LimitReached(
                    f"the org already has {len(taken)} managed subscriptions, and its limit is"
                    f" {self._settings.managed_limit}; delete one, or increase the setting"
                    " managed_limit"
                )
            number = int(self._store.meta("managed_made", "0")) + 1
            self._store.set_meta("managed_made", str(number))
            made = ManagedSubscription(
                eighteen(f"{_ID_PREFIX}{number:010d}"),
                developer_name,
                label or developer_name,
                topic,
                default_replay,
                error_recovery_replay,
                state,
                None,
                created := self._clock.now(),
                created,
            )
            values = tuple(vars(made).values())
            marks = ", ".join("?" * len(values))
            self._store.run(f"INSERT INTO managed VALUES ({marks})", *values)  # noqa: S608 - marks
            self._deleted.pop(developer_name, None)
        return made

    def all(self) -> list[ManagedSubscription]:
        """Return the records of all managed subscriptions, sorted by developer name."""
        rows = self._store.rows("SELECT * FROM managed ORDER BY developer_name")
        return [ManagedSubscription(*row) for row in rows]

    def get(self, name_or_id: str) -> ManagedSubscription | None:
        """Return the record with this developer name or 15- or 18-character id, or None if it does
        not exist.
        """
        for item in self.all():
            same_id = (
                len(name_or_id) in _ID_LENGTHS and item.subscription_id[:15] == name_or_id[:15]
            )
            if item.developer_name == name_or_id or same_id:
                return item
        return None

    def by_id(self, subscription_id: str) -> ManagedSubscription | None:
        """Return the record with this 18-character id, or None if it does not exist."""
        rows = self._store.rows("SELECT * FROM managed WHERE id = ?", subscription_id)
        return ManagedSubscription(*rows[0]) if rows else None

    def change(
        self,
        subscription_id: str,
        *,
        label: str,
        default_replay: Preset,
        error_recovery_replay: Preset,
        state: State,
    ) -> None:
        """Replace the settings of a subscription, as a PATCH of the Tooling API does.

        For streams, STOP takes effect as with `set_state`, and everything else takes effect after
        `propagation_s`.

        Args:
            subscription_id: 18-character id.
            label: Label, for display.
            default_replay: Where a stream starts if no position is committed.
            error_recovery_replay: Where a stream starts if the committed position is no longer
                valid.
            state: RUN or STOP.

        Raises:
            KeyError: There is no such subscription.
        """
        with self._lock:
            record = self.by_id(subscription_id)
            if record is None:
                raise KeyError(subscription_id)
            until = self._clock.now() + self._settings.propagation_s
            known = self._known_to_streams(record)
            self._store.run(
                "UPDATE managed SET label = ?, default_replay = ?, error_recovery_replay = ?,"
                " modified_at = ? WHERE id = ?",
                label,
                default_replay,
                error_recovery_replay,
                self._clock.now(),
                subscription_id,
            )
            if state != record.state:
                self.set_state(subscription_id, state)
            self._changes[subscription_id] = _Change(until, known)

    def set_state(self, name_or_id: str, state: State, cause: Fault | None = None) -> None:
        """Set the state to RUN or STOP. STOP deletes the committed position immediately and ends
        the stream after `state_delay_s`.

        Args:
            name_or_id: Developer name, or 15- or 18-character id.
            state: The new state.
            cause: The fault to count when a client encounters the effect; None if no fault caused
                the change.

        Raises:
            KeyError: There is no such subscription.
        """
        record = self._existing(name_or_id)
        with self._lock:
            # Takes effect immediately, unless the caller delays it.
            self._changes.pop(record.subscription_id, None)
            if state == "STOP":
                self._end_streams(record, "config.stopped", cause)
            self._store.run(
                "UPDATE managed SET state = ?, committed = CASE ? WHEN 'STOP' THEN NULL"
                " ELSE committed END, modified_at = ? WHERE id = ?",
                state,
                state,
                self._clock.now(),
                record.subscription_id,
            )
        self._bus.bells.ring(record.subscription_id)

    def delete(self, name_or_id: str, cause: Fault | None = None) -> None:
        """Delete a subscription immediately, and end its stream after `state_delay_s`. Arguments
        as for `set_state`.

        Raises:
            KeyError: There is no such subscription.
        """
        record = self._existing(name_or_id)
        with self._lock:
            self._end_streams(record, "config.deleted", cause)
            self._store.run("DELETE FROM managed WHERE id = ?", record.subscription_id)
        self._bus.bells.ring(record.subscription_id)

    # Used by streams.

    def find(self, subscription_id: str, developer_name: str) -> ManagedSubscription:
        """Return the subscription that a stream's first request names.

        Args:
            subscription_id: 15- or 18-character id, or blank.
            developer_name: Developer name, or blank.

        Raises:
            Refused: Id and name are both given or both blank, the id is malformed, or the
                subscription does not exist or is not visible to streams yet. If a fault deleted the
                subscription, the fault is counted.
        """
        if not (subscription_id or developer_name):
            raise Refused(
                _PREFIX + "id.or.developer.name.empty",
                text="The first request must name the managed subscription, by its ID or its"
                " developer name.",
            )
        if subscription_id and developer_name:
            raise Refused(_PREFIX + "id.or.developer.name.empty")
        if subscription_id and len(subscription_id) not in _ID_LENGTHS:
            raise Refused(_PREFIX + "subscription.id.invalid", subscription=subscription_id)
        record = self.get(subscription_id or developer_name)
        propagated = (
            record is not None
            and record.created_at + self._settings.propagation_s <= self._clock.now()
            # The name of one subscription may look like the id of another.
            and (not developer_name or record.developer_name == developer_name)
            and (not subscription_id or record.subscription_id[:15] == subscription_id[:15])
        )
        if record is None or not propagated:
            self._met_deletion(subscription_id or developer_name)
            suffix = "developer.name.not.found" if developer_name else "subscription.id.not.found"
            raise Refused(_PREFIX + suffix, subscription=subscription_id or developer_name)
        return record

    def running(self, subscription_id: str) -> ManagedSubscription:
        """Return the record of a running subscription as streams currently see it: recent changes
        take effect after a delay.

        Raises:
            Refused: The subscription was deleted, or streams see it in state STOP. A fault that
                caused this is counted.
        """
        with self._lock:
            record = self.by_id(subscription_id)
            known = self._known_to_streams(record) if record is not None else None
        if known is not None and known.state == "RUN":
            return known
        with self._lock:
            ending = self._endings.get(subscription_id)
        if ending:
            self._faults.met(ending.cause)
        if record is None:
            raise Refused(_PREFIX + "config.deleted", subscription=subscription_id)
        raise Refused(_PREFIX + "config.stopped", subscription=record.developer_name)

    def endings(self, subscription_id: str) -> int:
        """Return how many times a subscription has been stopped or deleted since the emulator
        started. A stream reads this number when it starts, and later passes it to `end_of`.
        """
        with self._lock:
            ending = self._endings.get(subscription_id)
            return ending.number if ending else 0

    def end_of(self, subscription_id: str, seen: int) -> float | None:
        """Return the time at which a stream must end, in seconds since the epoch; None if its
        subscription has not been stopped or deleted since the stream started.

        Args:
            subscription_id: 18-character id.
            seen: The number that `endings` returned when the stream started.
        """
        with self._lock:
            ending = self._endings.get(subscription_id)
            return ending.due if ending and ending.number > seen else None

    def end(self, record: ManagedSubscription) -> Refused:
        """Return the error with which a stream ends after its subscription was stopped or deleted.
        If a fault stopped or deleted the subscription, count the fault.
        """
        with self._lock:
            ending = self._endings[record.subscription_id]
        self._faults.met(ending.cause)
        return Refused(_PREFIX + ending.suffix, subscription=record.developer_name)

    def start_preset(self, record: ManagedSubscription) -> Preset | None:
        """Return the replay preset with which a new stream starts, or None if it starts after the
        committed position.
        """
        if record.committed is None:
            return record.default_replay
        return None if self._bus.is_alive(record.committed) else record.error_recovery_replay

    def start_position(self, record: ManagedSubscription) -> int:
        """Return the position after which a new stream starts: the committed position or, if
        `start_preset` returns a preset, the newest position (LATEST) or 0 (EARLIEST).
        """
        preset = self.start_preset(record)
        if preset is None and record.committed is not None:
            return record.committed
        return self._bus.tip() if preset == "LATEST" else 0

    def acquire(self, record: ManagedSubscription, holder: object) -> None:
        """Acquire the slot of a subscription for a stream.

        Raises:
            Refused: Another stream occupies the slot, or the delay after its release has not
                passed.
        """
        key = record.subscription_id
        with self._lock:
            held = self._held_until.get(key, 0.0) > self._clock.now()
            if held or key in self._holders:
                raise Refused(_PREFIX + "already.active", subscription=record.developer_name)
            self._holders[key] = holder

    def release(self, record: ManagedSubscription, holder: object) -> None:
        """Release the slot of a subscription. The slot can be acquired again after
        `slot_release_s`, plus the delay of a `hold_slot` fault. If *holder* does not occupy the
        slot, do nothing. This method can therefore be called repeatedly.
        """
        key = record.subscription_id
        with self._lock:
            if self._holders.get(key) is not holder:
                return
            del self._holders[key]
            fault = self._faults.take("hold_slot", "ManagedSubscribe", record.developer_name)
            extra = float(fault.params["seconds"]) if fault else 0.0
            self._held_until[key] = self._clock.now() + self._settings.slot_release_s + extra

    def is_active(self, subscription_id: str) -> bool:
        """Return whether a stream occupies the slot of a subscription."""
        with self._lock:
            return subscription_id in self._holders

    def commit(self, subscription_id: str, position: int) -> None:
        """Store a committed position, which is durable when this method returns.

        The stream has already validated the position. If the subscription has been stopped or
        deleted in the meantime, nothing is stored.
        """
        with self._lock:
            self._store.run(
                "UPDATE managed SET committed = ? WHERE id = ? AND state = 'RUN'",
                position,
                subscription_id,
            )

    def _known_to_streams(self, record: ManagedSubscription) -> ManagedSubscription:
        change = self._changes.get(record.subscription_id)
        if change is None or self._clock.now() >= change.until:
            return record
        before = change.before
        return replace(
            record,
            default_replay=before.default_replay,
            error_recovery_replay=before.error_recovery_replay,
            state="STOP" if "STOP" in (before.state, record.state) else "RUN",
        )

    def _end_streams(self, record: ManagedSubscription, suffix: str, cause: Fault | None) -> None:
        key = record.subscription_id
        number = self.endings(key) + 1
        due = self._clock.now() + self._settings.state_delay_s
        self._endings[key] = _Ending(number, due, suffix, cause)
        if suffix == "config.deleted":
            for name in (record.developer_name, key, key[:15]):
                self._deleted[name] = cause

    def _met_deletion(self, name: str) -> None:
        with self._lock:
            cause = self._deleted.get(name)
        self._faults.met(cause)

    def _existing(self, name_or_id: str) -> ManagedSubscription:
        record = self.get(name_or_id)
        if record is None:
            raise KeyError(name_or_id)
        return record
