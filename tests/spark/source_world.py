"""Runs the streaming reader without Spark, by calling it as Spark does, against an emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.reader import EventStreamReader
from tests.client.test_managed import TOPIC, orders
from tests.conftest import QUICK, until

__all__ = ["TOPIC", "World", "orders", "settings_file"]


class Reader(EventStreamReader):
    """A reader that connects to a given emulator, without environment variables."""

    emulator: Any
    session: Any

    def _connect(self) -> PubSubClient:
        return PubSubClient(
            self.session or self.emulator_session(),
            endpoint=self.emulator.grpc_target,
            insecure="1",
            timings=QUICK,
            schema_store=self._schemas,
        )

    def emulator_session(self) -> Session:
        e = self.emulator
        return Session(e.access_token, e.instance_url, e.tenant_id)


class World:
    """An emulator, and several readers of one query, which stand for successive Spark processes."""

    def __init__(self, emulator: Any, session: Any = None, **options: str) -> None:
        self.emulator = emulator
        self.session = session
        self.options = SourceOptions.parse({"topic": TOPIC, "startingOffsets": "earliest"})
        self.set(**options)
        self.readers: list[Reader] = []

    def set(self, **options: str) -> None:
        """Replace the options of the query."""
        given = {"topic": TOPIC, "startingOffsets": "earliest", "idleTimeout": "0.5"}
        self.options = SourceOptions.parse({**given, **options})

    def publish(self, count: int, first: int = 0) -> list[Any]:
        """Publish *count* orders, numbered from *first* on."""
        return self.emulator.publish(TOPIC, orders(count, first))

    def reader(self) -> Reader:
        """Return a new reader, which stands for a new Spark process."""
        reader = Reader(self.options)
        reader.emulator, reader.session = self.emulator, self.session
        self.readers.append(reader)
        return reader

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()


def next_end(reader: Reader, start: dict, seq: int | None = None) -> dict:
    """Wait until the reader's end offset differs from *start*, and return it.

    If *seq* is given, also wait until the offset's ``seq`` equals it.
    """

    def moved() -> dict | None:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return end if end != start and seq in (None, end["seq"]) else None

    return until(moved, f"an end at {seq}")


def rows(reader: Reader, start: dict, end: dict) -> list[dict]:
    """Return the rows of a batch, read in the way that executors read them."""
    partitions = reader.partitions(start, end)
    executor = EventStreamReader(reader._options)
    return [
        row for part in partitions for batch in executor.read(part) for row in batch.to_pylist()
    ]


def ids(found: list[dict]) -> list[str]:
    return [row["event_id"] for row in found]


def settings_file(emulator: Any, path: Path) -> Path:
    """Write a settings file for the emulator, and return its path."""
    path.touch(mode=0o600)
    path.write_text(
        f'endpoint = "{emulator.grpc_target}"\n'
        'insecure = "1"\n'
        f'access_token = "{emulator.access_token}"\n'
        f'instance_url = "{emulator.instance_url}"\n'
        f'tenant_id = "{emulator.tenant_id}"\n'
    )
    return path
