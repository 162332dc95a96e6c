"""The event bus of one org: topics, their schemas, and one log of events. No wire, no grpc.

All topics share one sequence of positions, as on the real bus: an event has the same position on
its topic and on every channel that carries the topic, and the positions of one topic have gaps.
Which positions there are and which are forgotten is in `positions`.

Locking: one lock guards the topics, the log and the tip; it is held for a read or an append, never
while waiting. Streams learn of news through the bells of the positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.batch import Batch, Draft, Published, Topic, event_id
from sfpubsub.emulator.org.block_file import Block
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.positions import Positions
from sfpubsub.emulator.org.schemas import Schema, SchemaProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event, Store
from sfpubsub.emulator.org.tally import Tally

__all__ = ["Batch", "Bus", "Draft", "Published", "Topic"]


class Bus(Positions):
    """One org's event bus. Thread-safe.

    Args:
        store: Where everything lives.
        clock: What time it is.
        settings: Times and sizes.
        tenant: The org as error texts and TopicInfo name it.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings, tenant: str) -> None:
        super().__init__(store, clock, settings)
        self.tenant = tenant
        self.tally: Tally = Tally()
        # Guarded by the lock of the positions, as is the order of events.
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
        """Make a topic, or give it another schema; events published before keep theirs."""
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
        """Give a topic another schema, as a field added in the org would.

        Raises:
            Refused: The topic is unknown.
            SchemaProblem: It is a channel, or the schema belongs to another topic.
        """
        topic = self.topic(name)
        if not topic.schema_id:
            raise SchemaProblem(f"{name} is a channel: change the schema of one of its topics")
        with self._lock:
            owner = self._schema_topics.get(schema.schema_id, name)
        if owner != name:
            raise SchemaProblem(f"schema {schema.schema_id} belongs to {owner}")
        self.put_topic(
            name, schema, can_publish=topic.can_publish, can_subscribe=topic.can_subscribe
        )

    def put_channel(self, name: str, topics: Sequence[str]) -> None:
        """Make a channel that carries what is published to `topics` from now on."""
        with self._lock, self._store.transaction():
            self._put(name, "", False, True)
            self._store.run("DELETE FROM channel_members WHERE channel = ?", name)
            for topic in topics:
                self._store.run("INSERT INTO channel_members VALUES (?, ?)", name, topic)
        self._load()

    def members(self, channel: str) -> list[str]:
        """The topics that a channel carries, by name."""
        rows = self._store.rows(
            "SELECT topic FROM channel_members WHERE channel = ? ORDER BY topic", channel
        )
        return [row[0] for row in rows]

    def remove_channel(self, name: str) -> None:
        """Forget a channel and what it carried; streams that read it end."""
        topic = self.topic(name)
        with self._lock, self._store.transaction():
            # Its number may be given to another topic: nothing of it must be left.
            self._store.blocks.forget_topic(topic.number)
            self._store.run("DELETE FROM topic_log WHERE topic_id = ?", topic.number)
            self._store.run("DELETE FROM channel_members WHERE channel = ?", name)
            self._store.run("DELETE FROM topics WHERE id = ?", topic.number)
            self._losses += 1
        self._load()
        self.bells.ring(name)

    def has(self, topic: Topic) -> bool:
        """Whether a topic is still there."""
        with self._lock:
            found = self._topics.get(topic.name)
            return found is not None and found.number == topic.number

    def put_log(self, name: str) -> None:
        """Make a log without a schema, which no stream can read; it may be there already."""
        with self._lock, self._store.transaction():
            self._put(name, "", False, False)
        self._load()

    def topics(self) -> list[Topic]:
        """All topics and channels, by name."""
        with self._lock:
            return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> Topic:
        """One topic.

        Raises:
            Refused: Blank or unknown.
        """
        if not name.strip():
            raise Refused("topic.validation.empty")
        with self._lock:
            if name not in self._topics:
                raise Refused("topic.not.found", tenant=self.tenant, topic=name)
            return self._topics[name]

    def schema(self, schema_id: str) -> Schema:
        """One schema.

        Raises:
            Refused: Blank or unknown.
        """
        if not schema_id.strip():
            raise Refused("schema.validation.failed")
        with self._lock:
            if schema_id not in self._schemas:
                raise Refused("schema.not.found", schema_id=schema_id)
            return self._schemas[schema_id]

    def event_of(self, schema_id: str) -> str | None:
        """Name of the event that a schema is of; None if there is no such schema."""
        with self._lock:
            topic = self._schema_topics.get(schema_id)
        return None if topic is None else topic.rpartition("/")[2]

    # Publishing.

    def publish(self, name: str, drafts: Sequence[Draft]) -> list[Published]:
        """Publish what a client sent; each event is checked, and refused alone.

        Raises:
            Refused: The topic is unknown or not to be published to, or there are no events.
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
        """Encode and publish from inside the emulator; also where clients may not.

        Raises:
            Refused: The topic is unknown.
            SchemaProblem: It is a channel, or a row does not fit; then nothing is published.
        """
        topic = self.topic(name)
        if not topic.schema_id:
            raise SchemaProblem(f"{name} is a channel: publish to one of its topics")
        schema = self.schema(topic.schema_id)
        now = self._clock.now()
        return self.append(name, [Draft(schema.encode(row, now), schema.schema_id) for row in rows])

    def append(self, name: str, drafts: Sequence[Draft]) -> list[Published]:
        """Publish without any check, even bytes that no schema can read.

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
        """Everything inside is one transaction: what is run on the store, and events.

        An exception takes all of it back. Streams learn of the events when all is durable.
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
            self.tally.of_topic(topic.name).published += count
            self.bells.ring(topic.name)
            for listener in self._on_append:
                listener(topic, count)

    def on_append(self, listener: Callable[[Topic, int], None]) -> None:
        """Call `listener` with each topic or channel that has got events, and how many, when they
        are durable. Before the first event."""
        self._on_append.append(listener)

    def carriers(self, name: str) -> list[Topic]:
        """A topic and the channels that carry it.

        Raises:
            Refused: The topic is unknown.
        """
        topic = self.topic(name)
        with self._lock:
            return [topic, *(self._topics[item] for item in self._channels.get(name, ()))]

    # Reading.

    def read(self, topic: Topic, after: int, limit: int) -> tuple[list[Event], int]:
        """The next events of a topic, and the position that a reader has then passed.

        With no events that position is the org's tip: nothing of the topic lies between.
        """
        with self._lock:
            self._purge()
            events = self._store.events_after(topic.number, after, limit)
            return events, events[-1].position if events else max(after, self._tip)

    # Events in the form in which they are sent; what is in a block is not the bus's business.

    def use_blocks(self, form: str) -> None:
        """Keep only blocks of this form."""
        self._store.blocks.use(form)

    def put_block(self, topic: Topic, block: Block, losses: int) -> None:
        """Keep the events of a topic between two positions; not if some were lost since `losses`
        of `standing`, for these may be among them."""
        with self._lock:
            self._purge()
            if self._losses == losses:
                self._store.blocks.put(topic.number, block)

    def block_after(self, topic: Topic, position: int) -> Block | None:
        """The block that has the next event of a topic; None if that is in no block.

        A process that was killed may have left blocks with events that are forgotten.
        """
        with self._lock:
            self._purge()
            forgotten = self._purged_through
        block = self._store.blocks.after(topic.number, max(position, forgotten))
        return block if block is not None and block.behind >= forgotten else None

    def end_of_blocks(self, topic: Topic) -> int:
        """After which position a topic has no block yet."""
        return max(self._store.blocks.end(topic.number), self._purged_through)

    def newest(self, topic: Topic, limit: int) -> list[tuple[Event, float]]:
        """The last events of a topic and when they were published, the newest first."""
        with self._lock:
            self._purge()
            return self._store.newest_events(topic.number, limit)

    def times_after(self, topic: Topic, position: int, limit: int) -> list[tuple[int, float]]:
        """Positions and times of the last events after a position, at most `limit`, in order."""
        return self._store.times_after(topic.number, position, limit)

    def pass_by(self, topic: Topic, after: int, count: int) -> int | None:
        """Mint positions of other traffic for a reader who has seen all of a topic.

        Returns:
            The last of them; None, and none is minted, if the topic has events after `after`.
        """
        with self._lock:
            if self._store.events_after(topic.number, after, 1):
                return None
            self.skip_positions(count)
            return self._tip

    def position_at(self, at: float) -> int | None:
        """The newest retained position that was minted before `at`; None if there is none."""
        return self._store.newest_before(at)

    # Inside.

    def _load(self) -> None:
        with self._lock:
            rows = self._store.rows(
                "SELECT id, name, schema_id, can_publish, can_subscribe, published FROM topics"
            )
            self._topics = {
                r[1]: Topic(r[0], r[1], r[2], bool(r[3]), bool(r[4]), r[5]) for r in rows
            }
            for topic in self._topics.values():
                self.tally.of_topic(topic.name).published = topic.published
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
