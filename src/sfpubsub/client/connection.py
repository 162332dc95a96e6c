"""A client's connection: its channel, session and schema cache, and the drivers of its streams.

The synchronous and the asyncio client both use it. Some methods block, so each client decides in
which thread to call them. `Connection.close` aborts all remaining drivers before it closes their
channel.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.organisation import user_of
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider
from sfpubsub.avro.codec import CREATED_BY
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.client.delivery import Delivery
from sfpubsub.client.options import ClientOptions, SubscribeOptions
from sfpubsub.client.publishing import Outbound, ReceiptT, Topics
from sfpubsub.config import PublishLimits, Timings
from sfpubsub.errors import (
    LocalProtocolError,
    SessionExpiredError,
    SfPubSubError,
    SubscriptionStoppedError,
)
from sfpubsub.process import CreatorProcess
from sfpubsub.protocol.publishing import PublishProtocol
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.stores.replay_store import AnyStore
from sfpubsub.transports.alarm import AlarmClock
from sfpubsub.transports.base import Headers, Target
from sfpubsub.transports.calls import CallDriver
from sfpubsub.transports.channel import GrpcTransport, open_channel
from sfpubsub.transports.driver import StreamDriver
from sfpubsub.transports.publish_driver import PublishDriver
from sfpubsub.types import (
    Gap,
    PublishResult,
    SchemaInfo,
    StartPosition,
    TopicInfo,
    start_position,
)

logger = logging.getLogger("sfpubsub.client")

T = TypeVar("T")

# How long `close` waits for the threads of ended calls, in seconds; they end within milliseconds.
CLOSE_TIMEOUT = 5.0

# How long the org may take to name the signed-in user, in seconds; it answers in well under 1 s. If
# it does not, events can still name their creator.
_USER_TIMEOUT = 10.0

_open_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


class Connection:
    """A client's connection to the service. Thread-safe."""

    def __init__(self, session: Session | SessionProvider, options: ClientOptions) -> None:
        self.sessions: CurrentSession = CurrentSession(session)
        self._http = HttpClient(
            ca_file=options.ca_file,
            proxy=options.proxy,
            insecure=options.insecure,
            timeout=_USER_TIMEOUT,
        )
        self._user_id: str | None = None  # empty if the org does not name the user
        self._datetimes = options.datetimes
        self._record_of = options.record_of
        self.timings = options.timings or Timings()
        self.transport = options.transport or GrpcTransport(
            open_channel(
                options.endpoint,
                insecure=options.insecure,
                ca_file=options.ca_file,
                proxy=options.proxy,
                timings=self.timings,
            ),
            options.endpoint,
            lambda: self.sessions.get().headers,
        )
        self.schemas: SchemaCache = SchemaCache(self.get_schema, store=options.schema_store)
        self._topics = Topics(self.get_topic)
        self._alarm = AlarmClock(time.monotonic)
        self._home = CreatorProcess()
        self._lock = threading.Lock()  # guards the two fields below
        self._drivers: set[CallDriver[Any]] = set()
        # The last driver of each managed subscription, by name.
        self._managed: dict[str, StreamDriver] = {}
        self._closed = False
        _open_connections.add(self)

    # Unary calls.

    def connect(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for the service to become reachable."""
        self.check_usable()
        self.transport.connect(timeout)

    def get_topic(self, name: str) -> TopicInfo:
        """Fetch a topic with GetTopic. If the session is rejected, renew it and retry once."""
        return self._with_session(lambda: self.transport.get_topic(name))

    def get_schema(self, schema_id: str) -> SchemaInfo:
        """Fetch a schema with GetSchema. If the session is rejected, renew it and retry once."""
        return self._with_session(lambda: self.transport.get_schema(schema_id))

    def _with_session(self, call: Callable[[], T]) -> T:
        self.check_usable()
        used = self.sessions.get()
        try:
            return call()
        except SessionExpiredError:
            self.sessions.renew(used)
            try:
                return call()
            except SessionExpiredError as error:
                error.retryable = True  # a new session may take minutes to be accepted
                raise
        except Exception:
            # If the client was closed during the call, that is the actual reason.
            self.check_usable()
            raise

    def _renew(self, headers: Headers) -> None:
        current = self.sessions.get()
        if current.headers == headers:  # otherwise another stream has already renewed it
            self.sessions.renew(current)

    # Streams.

    def open(
        self,
        target: Target,
        options: SubscribeOptions,
        *,
        start: StartPosition | None = None,
        store: AnyStore | None = None,
        stores_on_ack: bool,
    ) -> Delivery:
        """Create a subscription's `Delivery` without starting it; see `PubSubClient.subscribe`.

        Args:
            target: Topic or managed subscription.
            options: The caller's options.
            start: Where a plain subscription starts.
            store: Stores the position of a plain subscription; None if it is not stored.
            stores_on_ack: See `Delivery`.

        Raises:
            LocalProtocolError: The client is closed.
            ValueError: The replay fallback in *options* is not a valid position.
        """
        record_of = self._record_of
        before = self._managed.get(target.name) if target.managed else None
        protocol = SubscriptionProtocol(
            target.name,
            start=start,
            fallback=None if options.fallback is None else start_position(options.fallback),
            tracked=target.managed or store is not None,
            limits=options.limits,
            timings=self.timings,
            connection_timeout=options.connection_timeout,
            stopped=None if before is None else _stopped(before),
        )
        driver = StreamDriver(
            protocol,
            self.transport,
            target,
            alarm=self._alarm,
            renew=self._renew,
            on_gap=options.on_gap or (lambda _gap: None),
            record=partial(record_of, target.name) if record_of and target.managed else None,
        )
        self._keep(driver)
        if target.managed:
            self._managed[target.name] = driver
        return Delivery(
            driver,
            self.schemas,
            options,
            store=store,
            timings=self.timings,
            datetimes=self._datetimes,
            release=self.release,
            stores_on_ack=stores_on_ack,
        )

    def outbound(
        self,
        topic: str,
        *,
        streamed: bool,
        timeout: float,
        limits: PublishLimits,
        created_by: str | None,
        deliver: Callable[[Sequence[tuple[ReceiptT, PublishResult]]], None],
    ) -> Outbound[ReceiptT]:
        """Create the `Outbound` of a publisher, fetching the topic and its schema if necessary.

        Args:
            topic: Full path.
            streamed: Whether to use PublishStream instead of Publish.
            timeout: Maximum time from sending an event to its result, in seconds.
            limits: Limits of the publisher.
            created_by: See `PubSubClient.open_publisher`.
            deliver: See `Outbound`.

        Raises:
            PermissionDeniedError: The user may not publish to the topic.
            LocalProtocolError: The client is closed.
            SfPubSubError: The topic or its schema could not be fetched.
        """
        self.check_usable()
        schema_id = self._topics.get(topic).schema_id
        codec = self.schemas.get(schema_id)
        if created_by is None and CREATED_BY in codec.fields:
            created_by = self._user()

        def make_driver(outbound: Outbound[ReceiptT]) -> PublishDriver:
            return PublishDriver(
                PublishProtocol(
                    topic, schema_id, timeout=timeout, limits=limits, timings=self.timings
                ),
                self.transport,
                streamed=streamed,
                reencode=outbound.encode_again,
                use_schema=outbound.use_schema,
                settled=outbound.settled,
                alarm=self._alarm,
                renew=self._renew,
            )

        outbound = Outbound(
            topic,
            topics=self._topics,
            schemas=self.schemas,
            created_by=created_by,
            make_driver=make_driver,
            deliver=deliver,
            timeout=timeout,
        )
        self._keep(outbound.driver)
        return outbound

    def _user(self) -> str | None:
        """Return the id of the signed-in user; None if neither the sign-in nor the org names it."""
        if self._user_id is None:
            try:
                self._user_id = user_of(self._http, self.sessions.get())
            except SfPubSubError as error:  # asked again for the next publisher
                logger.warning(
                    "the org did not name the signed-in user, so give created_by, or CreatedById "
                    "and CreatedDate in each event: %s",
                    error,
                )
        return self._user_id or None

    def _keep(self, driver: CallDriver[Any]) -> None:
        self.check_usable()  # in a forked child, the parent may have held the lock
        self.release()
        with self._lock:
            self.check_usable()  # it may have been closed since
            self._drivers.add(driver)

    def release(self) -> None:
        """Remove drivers that have ended and whose threads have exited."""
        with self._lock:
            self._drivers = {other for other in self._drivers if not other.is_done}

    # Closing.

    def check_usable(self) -> None:
        """Check that the client is open and belongs to this process.

        Raises:
            LocalProtocolError: The client is closed, or this is a forked child process, which does
                not have the client's threads.
        """
        self._home.check("the client")
        if self._closed:
            raise LocalProtocolError("the client is closed: create a new one")

    def abort(self) -> bool:
        """Reject further calls, and abort all subscriptions and publishers. Never blocks.

        Returns:
            True on the first call; False if the client was already closed.
        """
        with self._lock:
            first, self._closed = not self._closed, True
            drivers = list(self._drivers)
        for driver in drivers:
            driver.abort()
        return first

    def close(self) -> None:
        """Abort the subscriptions and publishers that are still open, then close the channel."""
        if self.abort():
            self.finish()

    def finish(self) -> None:
        """Wait up to `CLOSE_TIMEOUT` seconds for the aborted calls to end, then close the channel.

        Must be called only once.
        """
        # A call that outlives its channel, or is still active when the interpreter exits, can cause
        # a hang.
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for driver in list(self._drivers):
            driver.join(max(0.0, deadline - time.monotonic()))
        self._alarm.close()
        self.transport.close()


def _stopped(driver: StreamDriver) -> Gap | None:
    """Return the gap to report if the managed subscription of *driver* runs again."""
    if driver.stopped is not None or not isinstance(driver.failure, SubscriptionStoppedError):
        return driver.stopped
    return Gap("repositioned", driver.target.name, after=driver.health().committed)


@atexit.register
def _close_open_connections() -> None:
    for connection in list(_open_connections):
        try:
            connection.close()
        except Exception:  # the others must still be closed
            logger.exception("a client could not be closed at exit")


# A forked child does not have the parent's threads, so closing the parent's channels would hang.
os.register_at_fork(after_in_child=_open_connections.clear)
