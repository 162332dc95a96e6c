"""The event bus of one org: topics, their schemas, and one event log. Independent of the wire
protocols and of grpc.

All topics share one sequence of positions, as on the real bus: an event has the same position on
its topic and on every channel that carries the topic, and the positions of one topic have gaps.
`positions` tracks which positions exist and which are deleted.

Locking: one lock guards the topics, the log and the newest position. It is held during a read or
an append, never while waiting. Streams are notified through `Positions.bells`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.batch import Batch, Draft, Published, Topic, event_id
from sfpubsub.emulator.org.block_file import Block
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.counters import Counters
from sfpubsub.emulator.org.positions import Positions
from sfpubsub.emulator.org.schemas import Schema, SchemaProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event, Store

__all__ = ["Batch", "Bus", "Draft", "Published", "Topic"]


class Bus(Positions):
    """One org's event bus. Thread-safe.

    Args:
        store: The store for topics, schemas and events.
        clock: The org's clock.
        settings: Times and limits.
        tenant: The org's name in error messages and TopicInfo.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings, tenant: str) -> None:
        super().__init__(store, clock, settings)
        self.tenant = tenant
        self.counters: Counters = Counters()
        # Guarded by the lock of `Positions`, which also guards the order of events.
        self._topics: dict[str, Topic] = {}
        self._channels: dict[str, list[str]] = {}  # topic -> channels that carry it
        self._schemas: dict[str, Schema] = {}
        self._schema_topics: dict[str, str] = {}
        self._on_append: list[Callable[[Topic, int], None]] = []
        self._load()

    # Topics and schemas.

    def put_topic(
        self, name: str, schema: Schema, *, can_publish: bool = True, can_subscribe: bool = True
    ) -> None:
        """Create a topic, or change an existing one. Events published earlier keep their schema.

        Args:
            name: Name of the topic, such as `/event/Order_Event__e`.
            schema: The schema of later events.
            can_publish: Whether clients can publish to the topic.
            can_subscribe: Whether clients can subscribe to the topic.
        """
        with self._lock, self._store.transaction():
            self._store.run(
                "INSERT OR REPLACE INTO schemas VALUES (?, ?, ?)",
                schema.schema_id,
                name,
                schema.text,
            )
            self._put(name, schema.schema_id, can_publish, can_subscribe)
        self._load()

    def change_schema(self, name: str, schema: Schema) -> None:
        """Replace a topic's schema, as adding a field in the org would.

        Raises:
            Refused: The topic is unknown.
            SchemaProblem: The name is that of a channel, or the schema belongs to another topic.
        """
        topic = self.topic(name)
        if not topic.schema_id:
            raise SchemaProblem(f"{name} is a channel: change the schema of one of its topics")
        with self._lock:
            owner = self._schema_topics.get(schema.schema_id, name)
        if owner != name:
            raise SchemaProblem(
                f"schema {schema.schema_id} already belongs to {owner}: use another record name"
            )
        self.put_topic(
            name, schema, can_publish=topic.can_publish, can_subscribe=topic.can_subscribe
        )

    def put_channel(self, name: str, topics: Sequence[str]) -> None:
        """Create a channel, or replace its members. From now on, the channel carries all events
        that are published to *topics*.
        """
        with self._lock, self._store.transaction():
            self._put(name, "", False, True)
            self._store.run("DELETE FROM channel_members WHERE channel = ?", name)
            for topic in topics:
                self._store.run("INSERT INTO channel_members VALUES (?, ?)", name, topic)
        self._load()

    def members(self, channel: str) -> list[str]:
        """Return the names of the topics that a channel carries, sorted."""
        rows = self._store.rows(
            "SELECT topic FROM channel_members WHERE channel = ? ORDER BY topic", channel
        )
        return [row[0] for row in rows]

    def remove_channel(self, name: str) -> None:
        """Delete a channel and its log. This ends the streams that read the channel."""
        topic = self.topic(name)
        with self._lock, self._store.transaction():
            # Its number may be reused by another topic, so nothing may remain.
            self._store.blocks.forget_topic(topic.number)
            self._store.run("DELETE FROM topic_log WHERE topic_id = ?", topic.number)
            self._store.run("DELETE FROM channel_members WHERE channel = ?", name)
            self._store.run("DELETE FROM topics WHERE id = ?", topic.number)
            self._losses += 1
        self._load()
        self.bells.ring(name)

    def has(self, topic: Topic) -> bool:
        """Return whether a topic still exists."""
        with self._lock:
            found = self._topics.get(topic.name)
            return found is not None and found.number == topic.number

    def put_log(self, name: str) -> None:
        """Create a topic that has an event log but no schema. gRPC clients can neither publish to
        the topic nor subscribe to it. An existing topic keeps its events.
        """
        with self._lock, self._store.transaction():
            self._put(name, "", False, False)
        self._load()

    def topics(self) -> list[Topic]:
        """Return all topics and channels, sorted by name."""
        with self._lock:
            return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> Topic:
        """Return the topic or channel with this name.

        Raises:
            Refused: The name is blank or unknown.
        """
        if not name.strip():
            raise Refused("topic.validation.empty")
        with self._lock:
            if name not in self._topics:
                raise Refused("topic.not.found", tenant=self.tenant, topic=name)
            return self._topics[name]

    def schema(self, schema_id: str) -> Schema:
        """Return the schema with this id.

        Raises:
            Refused: The id is blank or unknown.
        """
        if not schema_id.strip():
            raise Refused("schema.validation.failed")
        with self._lock:
            if schema_id not in self._schemas:
                raise Refused("schema.not.found", schema_id=schema_id)
            return self._schemas[schema_id]

    def event_of(self, schema_id: str) -> str | None:
        """Return the name of the event that a schema describes; None if the schema is unknown."""
        with self._lock:
            topic = self._schema_topics.get(schema_id)
        return None if topic is None else topic.rpartition("/")[2]

    # Publishing.

    def publish(self, name: str, drafts: Sequence[Draft]) -> list[Published]:
        """Publish events from a client. Each event is checked separately: a rejected event does not
        affect the others.

        Returns:
            The result for each event, in order.

        Raises:
            Refused: The topic is unknown, clients cannot publish to it, or *drafts* is empty.
        """
        topic = self.topic(name)
        if not topic.can_publish:
            raise Refused("publish.topic.cannot.publish", topic=name)
        if not drafts:
            raise Refused("publish.event.count.invalid")
        problems = [self._problem(topic, draft) for draft in drafts]
        good = [draft for draft, problem in zip(drafts, problems, strict=True) if problem is None]
        done = iter(self.append(name, good))
        return [
            next(done)
            if problem is None
            else Published(event_id(draft), b"", draft.schema_id, problem)
            for draft, problem in zip(drafts, problems, strict=True)
        ]

    def publish_values(self, name: str, rows: Sequence[Mapping[str, Any]]) -> list[Published]:
        """Encode and publish events on behalf of the org, even to topics to which clients cannot
        publish.

        Args:
            name: Name of the topic.
            rows: The values of each event, by field name.

        Returns:
            The result for each event, in order.

        Raises:
            Refused: The topic is unknown.
            SchemaProblem: The name is that of a channel, or a row does not match the schema;
                nothing is published.
        """
        topic = self.topic(name)
        if not topic.schema_id:
            raise SchemaProblem(f"{name} is a channel: publish to one of its topics")
        schema = self.schema(topic.schema_id)
        now = self._clock.now()
        return self.append(name, [Draft(schema.encode(row, now), schema.schema_id) for row in rows])

    def append(self, name: str, drafts: Sequence[Draft]) -> list[Published]:
        """Publish events without checking them: even payloads that cannot be decoded are accepted.

        Returns:
            The result for each event, in order.

        Raises:
            Refused: The topic is unknown.
        """
        if not drafts:
            self.topic(name)
            return []
        with self.together() as batch:
            return batch.add(name, drafts)

    @contextlib.contextmanager
    def together(self) -> Iterator[Batch]:
        """Run the body of a `with` statement in one transaction. The transaction covers the events
        that the body adds to the yielded batch, and all other changes it makes to the store.

        An exception rolls back everything. Streams are notified after the commit.
        """
        with self._lock:
            at = self._clock.now()
            with self._store.transaction():
                batch = Batch(self.carriers, self.ids, self._store, self._tip, at)
                yield batch
                if batch.tip != self._tip:
                    self._store.set_meta("tip", str(batch.tip))
            if batch.tip != self._tip:
                self._moved_to(batch.tip, at)
        for topic, count in batch.added.values():
            self.counters.of_topic(topic.name).published += count
            self.bells.ring(topic.name)
            for listener in self._on_append:
                listener(topic, count)

    def on_append(self, listener: Callable[[Topic, int], None]) -> None:
        """Register a function to call whenever new events are committed. It is called once for each
        topic or channel that received events, with that topic and its number of new events. Call
        this method before any event is published.
        """
        self._on_append.append(listener)

    def carriers(self, name: str) -> list[Topic]:
        """Return a topic and the channels that carry it.

        Raises:
            Refused: The topic is unknown.
        """
        topic = self.topic(name)
        with self._lock:
            return [topic, *(self._topics[item] for item in self._channels.get(name, ()))]

    # Reading.

    def read(self, topic: Topic, after: int, limit: int) -> tuple[list[Event], int]:
        """Return at most *limit* events of a topic after a position, and the reader's new position.

        The new position is that of the last event. If there are no events, it is the org's newest
        position, because the topic has no events between *after* and that position.
        """
        with self._lock:
            self._purge()
            events = self._events_after(topic, after, limit)
            return events, events[-1].position if events else max(after, self._tip)

    # Blocks of encoded events; the bus does not interpret their contents.

    def use_blocks(self, form: str) -> None:
        """Set the format of the blocks to store, and delete stored blocks of another format."""
        self._store.blocks.use(form)

    def put_block(self, topic: Topic, block: Block, losses: int) -> None:
        """Store a block of a topic's events, unless it is out of date.

        Args:
            topic: The topic.
            block: The block.
            losses: The first of the two numbers in the result of `revision`, called before the
                events were read. If this number has changed since then, events were deleted or
                renumbered, and the block is not stored.
        """
        with self._lock:
            self._purge()
            if self._losses == losses:
                self._store.blocks.put(topic.number, block)

    def block_after(self, topic: Topic, position: int) -> Block | None:
        """Return a block that contains the topic's first retained event after *position*, or None
        if there is no such block.

        A killed process may have left blocks that contain deleted events; such blocks are skipped.
        """
        with self._lock:
            self._purge()
            forgotten = self._purged_through
        block = self._store.blocks.after(topic.number, max(position, forgotten))
        return block if block is not None and block.behind >= forgotten else None

    def end_of_blocks(self, topic: Topic) -> int:
        """Return the position after which the next block of a topic begins: the end of the last
        block, or the newest deleted position if that is later.
        """
        return max(self._store.blocks.end(topic.number), self._purged_through)

    def newest(self, topic: Topic, limit: int) -> list[tuple[Event, float]]:
        """Return the newest events of a topic, at most *limit* of them, newest first, each with its
        publication time in seconds since the epoch.
        """
        with self._lock:
            self._purge()
            return self._store.newest_events(topic.number, self._purged_through, limit)

    def times_after(self, topic: Topic, position: int, limit: int) -> list[tuple[int, float]]:
        """Return the position and the publication time (in seconds since the epoch) of each of the
        last *limit* events of a topic after *position*, in order.
        """
        after = max(position, self._purged_through)
        return self._store.times_after(topic.number, after, limit)

    def add_empty_positions(self, topic: Topic, after: int, count: int) -> int | None:
        """If a topic has no events after the position *after*, create *count* positions without
        events, as if other topics had received events.

        Returns:
            The last new position, or None if no positions were created.
        """
        with self._lock:
            if self._events_after(topic, after, 1):
                return None
            self.skip_positions(count)
            return self._tip

    def position_at(self, at: float) -> int | None:
        """Return the newest retained position that was created before *at* (seconds since the
        epoch), or None if there is no such position.
        """
        return self._store.newest_before(at)

    # Internal.

    def _events_after(self, topic: Topic, after: int, limit: int) -> list[Event]:
        return self._store.events_after(topic.number, max(after, self._purged_through), limit)

    def _load(self) -> None:
        with self._lock:
            rows = self._store.rows(
                "SELECT id, name, schema_id, can_publish, can_subscribe, published FROM topics"
            )
            self._topics = {
                r[1]: Topic(r[0], r[1], r[2], bool(r[3]), bool(r[4]), r[5]) for r in rows
            }
            for topic in self._topics.values():
                self.counters.of_topic(topic.name).published = topic.published
            self._channels = {}
            for channel, member in self._store.rows("SELECT channel, topic FROM channel_members"):
                self._channels.setdefault(member, []).append(channel)
            for schema_id, topic_name, text in self._store.rows("SELECT * FROM schemas"):
                self._schema_topics[schema_id] = topic_name
                if schema_id not in self._schemas:
                    self._schemas[schema_id] = Schema(text)

    def _put(self, name: str, schema_id: str, can_publish: bool, can_subscribe: bool) -> None:
        self._store.run(
            "INSERT INTO topics (name, schema_id, can_publish, can_subscribe) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET schema_id = excluded.schema_id,"
            " can_publish = excluded.can_publish, can_subscribe = excluded.can_subscribe",
            name,
            schema_id,
            can_publish,
            can_subscribe,
        )

    def _problem(self, topic: Topic, draft: Draft) -> str | None:
        if len(draft.payload) > self._settings.event_bytes:
            return f"The event is larger than {self._settings.event_bytes} bytes."
        if self._schema_topics.get(draft.schema_id) != topic.name:
            return f"Topic {topic.name} has no schema with the ID {draft.schema_id!r}."
        if draft.schema_id != topic.schema_id and not self._settings.accept_old_schemas:
            return f"The schema {draft.schema_id!r} of topic {topic.name} is no longer current."
        try:
            self._schemas[draft.schema_id].check(draft.payload)
        except SchemaProblem as problem:
            return f"The event can't be decoded: {problem}."
        return None
