"""An org and its mirror, which can be restarted, with a clock that the test controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.session import CurrentSession, Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.rest import OrgReader
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.members import ChannelMembers
from sfpubsub.spark.mirror.absences import Safeguards
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.mirror.settings import MirrorSettings
from sfpubsub.spark.mirror.stream import MirrorStream
from sfpubsub.spark.raw.sources import Source
from tests.conftest import until
from tests.rest.support import QUICK as QUICK_REST
from tests.rest.support import Sessions

# Seconds after which a test fails if a condition is not met, even on a busy machine.
PATIENCE = 1200.0

MARGIN = 300.0

TOPIC = "/data/ChangeEvents"


class World:
    """An org with accounts, and a mirror of them.

    The mirror is in a directory below *path*, or at the Spark location *to* if that is given. Its
    clock advances only when it has nothing to do, by `MARGIN`.
    """

    shares_clock = False
    """Whether the org's clock advances only with the mirror's, its keepalives included."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        emulator: EmulatorServer,
        table_format: str,
        *,
        to: str | None = None,
    ) -> None:
        self.spark = spark
        self.emulator = emulator
        self.format = table_format
        self.to = path / "lake"
        self.place = Destination.of_tables(to or self.to, table_format)
        separator = "." if self.place.in_catalog else "/"
        raw = f"{self.place.address}{separator}_raw"
        self.raw = Destination.parse(raw, table_format)
        self.objects: Sequence[str] = ["Account"]
        self.source = Source("topic", TOPIC)
        self.looks = False
        """Whether the mirror looks at the channel's members."""
        self.settings: dict[str, Any] = {"sweep": 0.0, "refresh_formulas": 0.0, "drift": 0.0}
        self.now = 0.0
        self.wall = 1_800_000_000.0
        self.user = emulator.accounts.holder("")
        self.said: list[str] = []
        self.before: int | None = None
        """Number of events that precede the first start, so that the mirror misses them."""
        self.safeguards: Safeguards | None = None
        """The safeguards against wrong deletions; None for all."""
        self.username: str | None = None
        """Who runs the mirror; None for a user who sees everything, and cannot be changed."""
        self.taken = 0
        """Number of events that earlier runs received."""

    @contextmanager
    def mirror(self, **settings: Any) -> Iterator[MirrorJob]:
        """Open the mirror for the duration of the block, as a new process would."""
        session: Sessions | Session = Sessions(self.emulator)
        if self.username is not None:
            token = self.emulator._sessions.issue(self.username)
            session = Session(token, self.emulator.instance_url, self.emulator.tenant_id)

        members = ChannelMembers(CurrentSession(session), HttpClient(), topic=TOPIC)
        client = PubSubClient(session, endpoint=self.emulator.grpc_target, insecure="1")
        stream = MirrorStream(
            self.source, self.raw, batch_seconds=0.1, spark=self.spark, client=client
        )
        with (
            client,
            stream,
            MirrorJob(
                self.spark,
                OrgReader(session, timings=QUICK_REST),
                self.raw,
                self.place.address,
                self.objects,
                format=self.format,
                settings=MirrorSettings(margin=MARGIN, **{**self.settings, **settings}),
                selection=members if self.looks else None,
                report_gap=stream.report_gap,
                on_message=self.said.append,
                safeguards=self.safeguards,
                clock=lambda: self.now,
                wall=lambda: self.wall,
            ) as mirror,
        ):
            self.taken = self._read("_raw").count()
            if self.before is None:
                self.before = self.events()
            stream.begin()
            mirror.begin()
            self.stream = stream
            yield mirror

    def until(self, mirror: MirrorJob, condition: Callable[[], bool]) -> None:
        """Let the mirror work until *condition* returns True."""
        until(lambda: self.advance(mirror) or condition(), "the condition", PATIENCE)

    def settle(self, mirror: MirrorJob) -> None:
        """Let the mirror work until it has nothing left to do."""

        def is_done() -> bool:
            had_received_all = (
                self.has_received_all()
            )  # checked before, because events may arrive meanwhile
            return self.advance(mirror) and had_received_all

        until(is_done, "the mirror", PATIENCE)

    def advance(self, mirror: MirrorJob) -> bool:
        """Let the mirror take one step; if there is nothing to do, advance the clock by a margin.

        The clock stands still during a read, so that waiting for its response does not make the
        response older, and (unless the org has the same clock) until the stream has caught up, so
        that no hours of the mirror's time pass on a slow machine, each with its checks.

        Returns:
            True if the mirror had nothing to do and is settled, otherwise False.
        """
        state = self.stream.state()
        if mirror.advance(state):
            return False
        may_pass = state.is_caught_up or self.shares_clock
        if may_pass and not mirror._fetching.is_busy:
            self.pass_time(MARGIN)
        return mirror.is_settled(state)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds

    def has_received_all(self) -> bool:
        """Return whether the mirror has received all events.

        Events are counted, rather than positions compared, as a keepalive's position may be old.
        """
        return self.events() == (self.before or 0) + self.taken + self.stream.state().written

    def events(self) -> int:
        """Return the number of retained events in the org."""
        topic = self.emulator.bus.topic(TOPIC)
        return len(self.emulator.bus.read(topic, 0, 10**6)[0])

    def _read(self, name: str) -> DataFrame:
        # In a new session, because a session's Iceberg catalog caches tables.
        read = self.spark.newSession().read
        place = self.place.table(name)
        if place.in_catalog:
            return read.table(place.in_sql)
        return read.format(self.format).load(place.url)

    def create(self, count: int, **values: Any) -> list[str]:
        """Create *count* accounts, and return their ids."""
        names = [{"Name": f"account {n}", "BillingCity": "Rome", **values} for n in range(count)]
        return [self.emulator.records.create("Account", each, self.user) for each in names]

    def update(self, record_id: str, **values: Any) -> None:
        """Set fields of an account."""
        self.emulator.records.update("Account", record_id, values, self.user)

    def rows(self, name: str = "Account") -> dict[str, dict[str, Any]]:
        """Return the rows of a table, by record id."""
        rows = self._read(name).toArrow().to_pylist()
        found = {row["record_id"]: row for row in rows}
        assert len(found) == len(rows), "a record has several rows"
        return found

    def check(self) -> None:
        """Check that all accounts not marked as deleted in the table equal those in the org."""
        fields = "Id, Name, Phone, BillingCity"
        there = self.emulator.records.query(f"SELECT {fields} FROM Account", self.user).rows
        truth = {row["Id"]: (row["Name"], row["Phone"], row["BillingCity"]) for row in there}
        found = {}
        for record_id, row in self.rows().items():
            if not row["_is_deleted"]:
                assert (row["_complete"], row["_reread"]) == (True, False), row
                address = row["BillingAddress"] or {}
                found[record_id] = (row["Name"], row["Phone"], address.get("City"))
        ids = found.keys() | truth.keys()
        wrong = {each: (found.get(each), truth.get(each)) for each in ids}
        different = {each: both for each, both in wrong.items() if both[0] != both[1]}
        assert not different, different
