"""The way into the API: one client per org, one channel, any number of subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from sfpubsub.client.base import ClientBase
from sfpubsub.client.options import SubscribeOptions
from sfpubsub.client.publisher import Publisher, publish_all, settle
from sfpubsub.client.publishing import DEFAULT_TIMEOUT, publish_limits
from sfpubsub.client.subscription import ManagedSubscription, Subscription
from sfpubsub.config import PublishLimits
from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.replay_store import AnyStore, ReplayStore, is_async
from sfpubsub.transports.base import Target
from sfpubsub.types import PublishResult, SchemaInfo, StartPosition, TopicInfo


class PubSubClient(ClientBase[Subscription, ManagedSubscription, ReplayStore]):
    """A client of the Pub/Sub API. Thread-safe. `ClientBase` tells of its arguments.

    Use it as a context manager; leaving it aborts subscriptions that are still open and closes the
    channel.
    """

    # Unary calls.

    def connect(self, timeout: float = 10.0) -> None:
        """Wait until the service can be reached; calls do not need it.

        Args:
            timeout: Seconds.

        Raises:
            StreamUnavailableError: It could not be reached in that time.
        """
        self._connection.connect(timeout)

    def get_topic(self, name: str) -> TopicInfo:
        """Return what the service says of a topic.

        Raises:
            TopicNotFoundError: There is no such topic.
            SfPubSubError: The call failed otherwise.
        """
        return self._connection.get_topic(name)

    def get_schema(self, schema_id: str) -> SchemaInfo:
        """Return a schema; not cached.

        Raises:
            SchemaNotFoundError: The service does not know the id.
            SfPubSubError: The call failed otherwise.
        """
        return self._connection.get_schema(schema_id)

    def publish(
        self,
        topic: str,
        events: Iterable[Mapping[str, Any]],
        *,
        created_by: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[PublishResult]:
        """Publish events, encoded by the topic's schema, in order.

        What fails in passing is sent again under the same event id, until *timeout*. The topic and
        its schema are asked for once.

        Args:
            topic: Full path, such as ``/event/Order_Event__e``.
            events: Values by field name. Fields left out take the schema's default, which
                ``CreatedDate`` (milliseconds since 1970 UTC) and ``CreatedById`` do not have.
            created_by: Id of a user: events that lack ``CreatedById`` get it, and those that lack
                ``CreatedDate`` the time of this call.
            timeout: Seconds until the last result.

        Returns:
            One result an event, in order.

        Raises:
            PermissionDeniedError: The topic cannot be published to.
            EncodeError: An event does not fit the schema or is too large; none was published.
            PublishError: Events were refused or not answered; has all results.
            SfPubSubError: The call failed for good, and no event was accepted.
        """
        return publish_all(self._connection, topic, events, created_by, timeout)

    def open_publisher(
        self,
        topic: str,
        *,
        ordered: bool = False,
        streamed: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        created_by: str | None = None,
        max_pending_count: int = PublishLimits.max_pending_count,
    ) -> Publisher:
        """Open a publisher: events go out while others are made.

        Args:
            topic: Full path, such as ``/event/Order_Event__e``.
            ordered: Keep one request in flight, and so the order of the events. Otherwise several
                are, which the service may publish in any order.
            streamed: By PublishStream, otherwise by Publish.
            timeout: Seconds from `Publisher.send` to an event's result.
            created_by: As for `publish`.
            max_pending_count: Events sent and without a result before `Publisher.send` waits.

        Raises:
            PermissionDeniedError: The topic cannot be published to.
            SfPubSubError: The topic or its schema could not be fetched.
            ValueError: *max_pending_count* is below 1.
        """
        limits = publish_limits(ordered, max_pending_count)
        return Publisher(
            self._connection.outbound(
                topic,
                streamed=streamed,
                timeout=timeout,
                limits=limits,
                created_by=created_by,
                deliver=settle,
            )
        )

    # Streams.

    def _plain(
        self, topic: str, start: StartPosition, store: AnyStore | None, options: SubscribeOptions
    ) -> Subscription:
        if is_async(store):
            raise ConfigurationError(
                f"{type(store).__name__} is an async store, which only AsyncPubSubClient can await"
            )
        if isinstance(store, ReplayStore):
            start = store.get(topic) or start
        return Subscription(
            self._connection.open(
                Target(topic, False),
                options,
                start=start,
                store=store,
                stores_on_ack=True,
            )
        )

    def _managed(self, name: str, options: SubscribeOptions) -> ManagedSubscription:
        return ManagedSubscription(
            self._connection.open(Target(name, True), options, stores_on_ack=True)
        )

    # The end.

    def close(self) -> None:
        """Abort the subscriptions that are still open, then close the channel."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
