"""Starts and stops an emulator: the interface for tests and for `sfpubsub emulator`.

    with EmulatorServer(data_dir=tmp_path, settings=Settings(keepalive_s=0.2)) as emulator:
        emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "1"}])
        channel = grpc.insecure_channel(emulator.grpc_target)

This module only connects the parts. Invariant: at most one emulator at a time uses a given data
directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from sfpubsub.emulator.addresses import Addresses
from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.grpc.servicer import PubSubServicer, add_to_server
from sfpubsub.emulator.grpc.standard import add_standard_services
from sfpubsub.emulator.grpc.workers import Workers
from sfpubsub.emulator.http import HttpServer
from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.accounts import Accounts
from sfpubsub.emulator.org.api_calls import ApiCalls
from sfpubsub.emulator.org.bus import Bus, Draft, Published
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.cometd.channels import Channels
from sfpubsub.emulator.org.cometd.sessions import Cometd, CometdSessions
from sfpubsub.emulator.org.delivery import Delivery
from sfpubsub.emulator.org.directory import claim, open_store
from sfpubsub.emulator.org.event_channels import EventChannels
from sfpubsub.emulator.org.fault_effects import actor
from sfpubsub.emulator.org.lag import CommitHistory
from sfpubsub.emulator.org.managed import ManagedSubscriptions
from sfpubsub.emulator.org.open_streams import OpenStreams
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.records.jobs import Jobs
from sfpubsub.emulator.org.records.late import LateEvents
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.rights import Rights
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.seeding import plant
from sfpubsub.emulator.org.sessions import ORG_ID, Sessions
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.signin import SignIn
from sfpubsub.emulator.org.store import StoreProblem
from sfpubsub.emulator.org.world import World
from sfpubsub.emulator.page import Pages
from sfpubsub.emulator.tls import Credentials, credentials

DEFAULT_HOST = "127.0.0.1"
"""The default address is loopback, because an emulator prints its access token, and its admin
endpoint can change the org.
"""

_SNAPSHOT = re.compile(r"[A-Za-z0-9_-]{1,40}")

_STOP_S = 5.0
"""Longest time in seconds that `stop` waits for gRPC to end its calls. The calls are cancelled, so
this normally takes milliseconds.
"""

_SPARE_THREADS = 32
"""Threads reserved for unary calls, and for refusing streams, when all stream threads are in use.
These calls take milliseconds, so more threads would not make them faster; only a `delay_call` fault
occupies a thread for long.
"""

_GRPC_OPTIONS = (
    # Otherwise a second server on the same port would be silently accepted.
    ("grpc.so_reuseport", 0),
    # By default, a gRPC server responds with GOAWAY to pings less than 5 min apart.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", 1_000),  # per connection, as documented for the service
    # The service's own limits are lower, and are enforced with its own errors.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)


class EmulatorServer:
    """An emulator of the Pub/Sub API in this process. Thread-safe once started.

    Args:
        data_dir: Directory for all durable data; created if it does not exist. A later start with
            the same directory keeps the events, positions, credentials and certificate authority.
        host: Address to listen on.
        grpc_port: Port for gRPC; 0 picks a free one.
        http_port: Port for HTTP; 0 picks a free one.
        tls: Whether to serve gRPC and HTTP with TLS; clients then need `ca_file`.
        tls_names: Names and addresses that the certificate covers, in addition to those of this
            machine and `advertise`. HTTP requests under these names are served.
        advertise: The host announced to clients, if it differs from `host`: for a container, its
            name in the network. If a port is included, as in `localhost:8443`, it is the HTTP port
            that clients use.
        org_id: 15-character id of the org. A directory of another org becomes that of a refreshed
            sandbox: it keeps its records, and loses its events, their replay ids, the committed
            positions and all tokens. None keeps the id of the directory, or uses that of the seed.
        settings: Times, limits and behaviours; they replace the seed's settings completely. None
            uses the settings of the seed or, without a seed, the defaults.
        seed: A loaded seed, or the path of a seed file. An existing directory is updated to match
            the seed, but managed subscriptions and events are created only once. None uses the
            default seed if the directory is new.
        faults: Failures to inject.
        clock: The time source; with a ManualClock, time advances only by jumps.

    Attributes:
        bus: Topics, events and positions.
        managed: Managed subscriptions: create, stop, delete, inspect.
        event_channels: Custom channels and their members: create, change.
        cometd: The Streaming API: its channels and connected clients.
        accounts: Users and connected apps: create, change.
        rights: Permission sets with View All: create, change, assign, take away.
        records: Objects and their records: create, change, delete, query.
        jobs: Jobs of the Bulk API.
        api_calls: Counts the API calls of the last 24 hours: use them up, or give them back.
        faults: Failures to inject: add them here, and call `faults.assert_consumed()` at the end.
        clock: The time source; `clock.jump(seconds)` moves it forward.
        settings: The effective settings.
        access_token, tenant_id: The credentials for clients.
        ca_file: PEM file of the certificate authority to trust; None without TLS.

    Raises:
        EmulatorProblem: The seed, the directory or `advertise` cannot be used, or the extra
            `emulator` is not installed but needed.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        host: str = DEFAULT_HOST,
        grpc_port: int = 0,
        http_port: int = 0,
        tls: bool = False,
        tls_names: Sequence[str] = (),
        advertise: str | None = None,
        org_id: str | None = None,
        settings: Settings | None = None,
        seed: seeds.Seed | str | os.PathLike[str] | None = None,
        faults: FaultPlan | None = None,
        clock: Clock | None = None,
    ) -> None:
        if seed is not None and not isinstance(seed, seeds.Seed):
            seed = seeds.load(Path(seed))
        self.data_dir: Path = Path(data_dir).absolute()
        self.faults: FaultPlan = faults if faults is not None else FaultPlan()
        self.clock: Clock = clock if clock is not None else Clock()
        self.settings: Settings = settings or Settings.from_mapping(seed.settings if seed else {})
        self._addresses = Addresses(host, advertise)
        self._names = [*self._addresses.names, *tls_names]
        self._ports = (grpc_port, http_port)
        self._grpc: grpc.Server | None = None
        self._http: HttpServer | None = None
        self._closing = contextlib.ExitStack()  # stops the threads that use the store
        self._pool: Workers | None = None
        self._lock_file = claim(self.data_dir)
        try:
            self._tls: Credentials | None = credentials(self.data_dir, self._names) if tls else None
            self._store = open_store(self.data_dir)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._changing = threading.Lock()  # held during `restore` and `stop`
        try:
            self.clock.resume(
                float(self._store.meta("clock_jumped", "0")), self._store.newest_time()
            )
            self._build(seed, org_id)
        except BaseException:
            self.stop()
            raise
        self.clock.on_jump(self._jumped)
        self._use(self.faults)

    def _build(self, seed: seeds.Seed | None, org_id: str | None) -> None:
        store = self._store
        fresh = not store.meta("seeded")
        if org_id is not None and not ORG_ID.fullmatch(org_id):
            raise EmulatorProblem(
                f"{org_id!r} is not the id of an org: use 15 characters that begin with 00D"
            )
        refreshed = not fresh and org_id not in (None, store.meta("org_id"))
        if seed is None and fresh:
            seed = seeds.load(seeds.DEFAULT_SEED)
        # One transaction: a process that is killed here leaves no half of an org.
        with store.transaction():
            if org_id is not None:
                store.set_meta("org_id", org_id)
            elif seed is not None and fresh and seed.org_id:
                store.set_meta("org_id", seed.org_id)
            if refreshed:
                store.run("DELETE FROM access_tokens")
                store.run("UPDATE managed SET committed = NULL")
            self._streams = OpenStreams()
            self.api_calls: ApiCalls = ApiCalls(self.settings.daily_api_requests)
            self._sessions = Sessions(store, self.clock, self.settings)
            self._sessions.on_end(self._wake)
            self.rights: Rights = Rights(store, self.clock)
            self.accounts: Accounts = Accounts(store, self.rights, self.clock)
            self.bus: Bus = Bus(store, self.clock, self.settings, self._sessions.tenant)
            if refreshed:
                self.bus.reset()
            channels = Channels(store, self.bus, self.clock, self.settings)
            self._delivery = Delivery(self.bus, self.rights, self.clock, self.settings)
            self.cometd: Cometd = Cometd(
                channels,
                CometdSessions(self.bus, channels, self.clock, self.settings, self._delivery),
            )
            self.managed: ManagedSubscriptions = ManagedSubscriptions(
                store, self.bus, self.clock, self.settings, self.faults
            )
            late = LateEvents(store, self.bus, self.clock)
            self._closing.callback(late.stop)
            self.records: Records = Records(
                store,
                self.bus,
                self.clock,
                self.settings,
                self.faults,
                self.accounts,
                channels,
                late,
            )
            if seed is not None:
                plant(seed, store, self.bus, self.managed, self.accounts, self.records)
            self.accounts.fill()
            self.event_channels: EventChannels = EventChannels(store, self.bus)
            self.event_channels.adopt()
        late.start()
        self._commits = CommitHistory(
            {item.subscription_id: item.committed for item in self.managed.all()}
        )
        self.jobs: Jobs = Jobs(store, self.records, self.clock, self.data_dir / "bulk", self.faults)
        self._closing.callback(self.jobs.stop)
        self.event_channels.feed(self.records)

    # Addresses and secrets.

    @property
    def grpc_target(self) -> str:
        """The address at which clients reach the gRPC server, as HOST:PORT."""
        return self._addresses.grpc_target(self._ports[0])

    @property
    def http_url(self) -> str:
        """The URL at which clients reach the HTTP server."""
        return self._addresses.http_url(self._ports[1], self._tls is not None)

    @property
    def instance_url(self) -> str:
        """The URL to use as the org's instance URL; the same as `http_url`."""
        return self.http_url

    @property
    def access_token(self) -> str:
        """The emulator's newest access token, which may have expired. Until it expires, a restart
        with the same data directory keeps the token.
        """
        return self._sessions.access_token

    @property
    def tenant_id(self) -> str:
        """The org's 18-character id, which clients send as the tenant id."""
        return self._sessions.org_id

    @property
    def ca_file(self) -> Path | None:
        """The PEM file of the certificate authority that clients must trust; None without TLS."""
        return self._tls.ca_file if self._tls else None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The three headers that every RPC needs, as gRPC metadata."""
        return (
            ("accesstoken", self.access_token),
            ("instanceurl", self.instance_url),
            ("tenantid", self.tenant_id),
        )

    # Start and stop.

    def start(self) -> EmulatorServer:
        """Start listening, and return this server. This method can be called only once.

        Raises:
            EmulatorProblem: A port is in use, or the address is not allowed.
        """
        try:
            context = self._tls.context if self._tls else None
            self._http = HttpServer(
                self._world,
                self._addresses.host,
                self._ports[1],
                self._names,
                context,
                Pages().routes,
            )
            self._ports = (self._start_grpc(), self._http.port)
        except BaseException:
            self.stop()
            raise
        self._http.start(self.http_url)
        return self

    def _start_grpc(self) -> int:
        self._pool = Workers(self.settings.max_streams + _SPARE_THREADS, "emulator-call")
        # The annotation is too narrow: any executor works, because only `submit` is called.
        self._grpc = grpc.server(self._pool, options=_GRPC_OPTIONS)  # type: ignore[arg-type]
        add_to_server(PubSubServicer(self._world), self._grpc)
        add_standard_services(self._grpc)
        port = self._bind(self._grpc)
        self._grpc.start()
        return port

    def _stop_grpc(self) -> None:
        if self._grpc is not None:
            self._grpc.stop(grace=0).wait(_STOP_S)  # with grace=None, `stop` could block forever
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._grpc = self._pool = None

    def stop(self) -> None:
        """End all calls, and release the ports and the directory. This method can be called
        repeatedly.
        """
        with self._changing:
            self._stop()

    def _stop(self) -> None:
        self._stop_grpc()
        if self._http is not None:
            self.cometd.sessions.stop()
            self._http.stop()
        self._http = None
        self._closing.close()
        if self._lock_file >= 0:
            lock, self._lock_file = self._lock_file, -1
            self._store.close()
            os.close(lock)

    def __enter__(self) -> EmulatorServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Snapshots.

    def save(self, name: str) -> None:
        """Save the state of the org in the data directory, as a snapshot for `restore`. A snapshot
        with this name is replaced.

        Args:
            name: Letters, digits, `-` and `_`, at most 40 characters.

        Raises:
            EmulatorProblem: The name is not valid, or the snapshot cannot be written.
        """
        path = self._saved(name)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._store.save(path)
        except OSError as error:
            raise EmulatorProblem(f"snapshot {name} cannot be saved: {error}") from error

    def restore(self, name: str, *, faults: FaultPlan | None = None) -> None:
        """Return to the state of a snapshot, in milliseconds. This ends all streams, sessions and
        access tokens, and takes the jobs of the Bulk API away; `access_token` is a new one.

        Ids of records, events and others go on above the highest that was ever used. The clock does
        not go back. The attributes of this object are new objects, except `clock` and `settings`.

        Args:
            name: The name that was given to `save`.
            faults: The fault plan from now on; None keeps the present one.

        Raises:
            EmulatorProblem: There is no such snapshot, or this emulator does not run; nothing has
                changed.
        """
        path = self._saved(name)
        if not path.exists():
            raise EmulatorProblem(f"there is no snapshot {name!r}: save it first")
        with self._changing:
            if self._http is None:
                raise EmulatorProblem("the emulator is stopped: start it before a restore")
            self._stop_grpc()
            self.cometd.sessions.stop()
            self._closing.close()
            try:
                self._store.restore(path, self.clock.now())
                shutil.rmtree(self.data_dir / "bulk", ignore_errors=True)
                self._store = open_store(self.data_dir)
                self.faults = self.faults if faults is None else faults
                self._build(None, None)
                if faults is not None:
                    self._use(faults)
                self._start_grpc()
            except BaseException as error:
                self._stop()
                if isinstance(error, StoreProblem):
                    raise EmulatorProblem(f"{error}; the emulator has stopped") from error
                raise
            self._http.use(self._world)

    def _saved(self, name: str) -> Path:
        if not _SNAPSHOT.fullmatch(name):
            raise EmulatorProblem(
                f"{name[:50]!r} is not a name of a snapshot: use up to 40 letters, digits, - and _"
            )
        return self.data_dir / "snapshots" / f"{name}.sqlite3"

    # Changes to the org, for tests.

    def publish(self, topic: str, events: Sequence[Mapping[str, Any]]) -> list[Published]:
        """Encode and publish events as the org itself would. Unlike a client, the org can publish
        change events.

        Args:
            topic: Name of a topic with a schema; not of a channel.
            events: The values of each event, by field name; `Schema.encode` lists the fields that
                may be omitted.

        Returns:
            One result per event, in order, with event_id and replay_id.

        Raises:
            Refused: The topic is unknown.
            SchemaProblem: *topic* is the name of a channel, or an event does not match the schema;
                nothing is published.
        """
        return self.bus.publish_values(topic, events)

    def publish_streaming(self, channel: str, events: Sequence[Mapping[str, Any]]) -> list[int]:
        """Publish events to a PushTopic or generic channel of the Streaming API.

        Args:
            channel: `/topic/…` or `/u/…`; created if it does not exist.
            events: For a PushTopic, an event has the keys `type` (default: created) and `sobject`;
                for a generic channel, `payload` and `userIds` (the recipients; default: all users).
                At least one key is required.

        Returns:
            The replay ids of the events, in order.

        Raises:
            EmulatorProblem: The channel or an event is not valid.
        """
        return self.cometd.channels.publish(channel, events)

    def publish_raw(self, topic: str, drafts: Sequence[Draft]) -> list[Published]:
        """Publish payloads without checking them, for tests with payloads that cannot be decoded or
        with unknown schema ids.

        Args:
            topic: Name of the topic.
            drafts: The events, each with an encoded payload and a schema id.

        Returns:
            One result per event, in order.

        Raises:
            Refused: The topic is unknown.
        """
        return self.bus.append(topic, drafts)

    def new_token(self) -> str:
        """Issue and return an access token, which `access_token` returns from now on. Earlier
        tokens are not affected.
        """
        return self._sessions.new_token()

    def change_schema(self, topic: str, schema_json: str) -> str:
        """Replace a topic's schema, as adding a field in the org would. Events published earlier
        keep their schema.

        Args:
            topic: Name of the topic.
            schema_json: The new Avro schema as JSON.

        Returns:
            The id of the new schema.

        Raises:
            Refused: The topic is unknown.
            SchemaProblem: *topic* is the name of a channel, or the schema is not valid for an event
                or belongs to another topic.
        """
        schema = Schema(schema_json)
        self.bus.change_schema(topic, schema)
        return schema.schema_id

    def _jumped(self) -> None:
        if self._lock_file >= 0:  # the clock may outlive this emulator
            self._store.set_meta("clock_jumped", repr(self.clock.jumped))
            self._wake()

    def _use(self, faults: FaultPlan) -> None:
        faults.on_add(self._wake)
        faults.carry_out_by(
            lambda fault: actor(self.bus, self.managed, self._sessions, self.records)(fault)
        )

    def _wake(self) -> None:
        self.bus.bells.ring_all()

    @property
    def _world(self) -> World:
        return World(
            self.bus,
            self.managed,
            self.clock,
            self.settings,
            self.faults,
            self._sessions,
            self.accounts,
            self.rights,
            self._delivery,
            SignIn(self.accounts, self._sessions, self.clock, self.settings, self.faults),
            self.cometd,
            self._streams,
            self._commits,
            self.records,
            self.jobs,
            self._store,
            self.event_channels,
            self.api_calls,
            self.save,
            self._restore_for_client,
        )

    def _restore_for_client(self, name: str) -> str:
        self.restore(name)
        return self.access_token

    def _bind(self, server: grpc.Server) -> int:
        address = self._addresses.listening(self._ports[0])
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                secrets = grpc.ssl_server_credentials([(self._tls.key, self._tls.chain)])
                port = server.add_secure_port(address, secrets)
        except RuntimeError as error:
            raise EmulatorProblem(_in_use(address)) from error
        if port == 0:  # older versions of grpcio report a failure this way
            raise EmulatorProblem(_in_use(address))
        return port


def _in_use(address: str) -> str:
    return f"cannot listen on {address}: the port is in use or not allowed; choose another port"
