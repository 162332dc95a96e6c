"""The synchronous client: the main entry point of the package.

An application creates one client per org. All subscriptions and publishers of a client share one
channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from sfpubsub.client.base import ClientBase
from sfpubsub.client.options import SubscribeOptions
from sfpubsub.client.publisher import Publisher, publish_all
from sfpubsub.client.publishing import DEFAULT_TIMEOUT, publish_limits
from sfpubsub.client.receipts import Callbacks
from sfpubsub.client.subscription import ManagedSubscription, Subscription
from sfpubsub.config import PublishLimits
from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.replay_store import AnyStore, ReplayStore, is_async
from sfpubsub.transports.base import Target
from sfpubsub.types import PublishResult, SchemaInfo, StartPosition, TopicInfo


class PubSubClient(ClientBase[Subscription, ManagedSubscription, ReplayStore]):
    """A client of the Pub/Sub API. Thread-safe. See `ClientBase` for its arguments.

    Use it as a context manager; leaving the block aborts subscriptions and publishers that are
    still open, and closes the channel.
    """

    # Unary calls.

    def connect(self, timeout: float = 10.0) -> None:
        """Wait until the service can be reached. Other calls do not require this.

        Args:
            timeout: Maximum time to wait, in seconds.

        Raises:
            StreamUnavailableError: The service could not be reached in time.
        """
        self._connection.connect(timeout)

    def get_topic(self, name: str) -> TopicInfo:
        """Fetch a topic's schema id and permissions from the service. The result is not cached.

        Args:
            name: Full path, such as ``/event/Order_Event__e``.

        Raises:
            TopicNotFoundError: There is no such topic.
            SfPubSubError: The call failed for another reason.
        """
        return self._connection.get_topic(name)

    def get_schema(self, schema_id: str) -> SchemaInfo:
        """Fetch a schema from the service. The result is not cached.

        Raises:
            SchemaNotFoundError: The service has no schema with this id.
            SfPubSubError: The call failed for another reason.
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
        """Publish events in order, encoded with the topic's schema.

        After a transient failure, events are resent with the same ids, until *timeout* has passed.
        If events get no result in time, those after them are not sent. The topic and its schema are
        fetched once.

        Args:
            topic: Full path, such as ``/event/Order_Event__e``.
            events: For each event, its values by field name. Omitted fields get the schema's
                default; for ``CreatedById`` and ``CreatedDate``, see *created_by*. Values that
                decoding returns are accepted: a `datetime` with a time zone for a ``DateTime``, and
                a `Decimal` for a number with decimal places, such as a currency or a percentage.
            created_by: User id for events without ``CreatedById``; by default, the signed-in user.
                Events without ``CreatedDate`` get the time of this call. If the user is not known,
                neither field is filled in.
            timeout: Maximum time to wait for the result of an event, in seconds. It begins shortly
                before the event is sent, so a long list may take longer.

        Returns:
            One result per event, in order.

        Raises:
            PermissionDeniedError: The user may not publish to the topic.
            EncodeError: An event does not fit the schema or is too large; none was published.
            PublishError: Events were refused or got no result in time; its ``results`` contain the
                results of all events.
            SfPubSubError: The call failed permanently, and no event was accepted.
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
        """Open a publisher, which sends events in the background while you produce more.

        Args:
            topic: Full path, such as ``/event/Order_Event__e``.
            ordered: Whether to keep only one request in flight, which preserves the order of
                events. Otherwise the service may publish concurrent requests in any order.
            streamed: Whether to use PublishStream instead of Publish.
            timeout: Maximum time from `Publisher.send` to an event's result, in seconds.
            created_by: See `publish`.
            max_pending_count: `Publisher.send` blocks while this many events have no result.

        Raises:
            PermissionDeniedError: The user may not publish to the topic.
            SfPubSubError: The topic or its schema could not be fetched.
            ValueError: *max_pending_count* is below 1.
        """
        limits = publish_limits(ordered, max_pending_count)
        callbacks = Callbacks()
        outbound = self._connection.outbound(
            topic,
            streamed=streamed,
            timeout=timeout,
            limits=limits,
            created_by=created_by,
            deliver=callbacks.settle,
        )
        return Publisher(outbound, callbacks)

    # Streams.

    def _plain(
        self, topic: str, start: StartPosition, store: AnyStore | None, options: SubscribeOptions
    ) -> Subscription:
        if is_async(store):
            raise ConfigurationError(
                f"{type(store).__name__} is an async store, which only AsyncPubSubClient supports: "
                f"use that client, or a store that is not async"
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

    # Closing.

    def close(self) -> None:
        """Abort the subscriptions and publishers that are still open, then close the channel."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
