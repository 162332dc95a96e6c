"""The way into the API: one client per org, one channel, any number of subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from sfpubsub.client.base import ClientBase
from sfpubsub.client.options import AckMode, SubscribeOptions
from sfpubsub.client.subscription import ManagedSubscription, Subscription
from sfpubsub.client.undecodable import OnUndecodable
from sfpubsub.config import Limits
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.stores.replay_store import ReplayStore, check_sync, start_and_store
from sfpubsub.transports.base import Target
from sfpubsub.types import Gap, PublishResult, Replay, SchemaInfo, TopicInfo


class PubSubClient(ClientBase):
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
    ) -> list[PublishResult]:
        """Publish events, encoded by the topic's schema.

        Args:
            topic: Full path, such as ``/event/Order_Event__e``.
            events: Values by field name. Fields left out take the schema's default, which
                ``CreatedDate`` (milliseconds since 1970 UTC) and ``CreatedById`` do not have.
            created_by: Id of a user: events that lack ``CreatedById`` get it, and those that lack
                ``CreatedDate`` the time of this call.

        Returns:
            One result an event, in order.

        Raises:
            PermissionDeniedError: The topic cannot be published to.
            EncodeError: An event does not fit the schema; none was published.
            PublishError: Events were refused, or a later call failed; has the results so far.
            SfPubSubError: The first call failed.
        """
        return self._connection.publish(topic, events, created_by)

    # Streams.

    def subscribe(
        self,
        topic: str,
        *,
        replay: Replay | MutableMapping[str, Any] | ReplayStore = "latest",
        replay_store: MutableMapping[str, Any] | ReplayStore | None = None,
        replay_fallback: Replay | None = None,
        ack: AckMode = "auto",
        max_pending_count: int = Limits.max_pending_count,
        max_bytes: int = Limits.max_bytes,
        max_unacked: int = Limits.max_unacked,
        connection_timeout: float | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_undecodable: OnUndecodable = "fail",
        quarantine: Quarantine | None = None,
    ) -> Subscription:
        """Subscribe to a topic; the caller keeps the position.

        Args:
            topic: Full path.
            replay: Where to start: ``latest``, ``earliest``, a `ReplayOption`, a replay id or its
                hexadecimal form. With a store: for a topic that the store does not know. A store is
                taken here as well.
            replay_store: Where the position is kept: a mapping or a `ReplayStore`.
            replay_fallback: Where to go on when the position is refused; None to stop.
            ack: ``auto``: asking for the next batch acks the one before; ``manual``: the caller
                acks. Matters only with a store.
            max_pending_count: Events held unread before no more are asked for.
            max_bytes: Payload bytes held unread before no more are asked for.
            max_unacked: Events handed out and not acked before no more are asked for.
            connection_timeout: The outage budget: seconds that transport failures may last before
                the subscription fails; None for ever. Not a timeout of one connection attempt.
            on_gap: Told of every position that is given up; must not wait.
            on_undecodable: What becomes of an event that cannot be decoded: ``fail``: reading its
                value raises; ``quarantine``: it is put into *quarantine*, durably before its
                position can be passed, and is not handed out; ``skip``: it is counted, logged, and
                not handed out. The last two decode a batch when it is handed out.
            quarantine: Where such events are kept.

        Raises:
            ConfigurationError: The store is an async one, or there are two, or *ack* or
                *on_undecodable* is not one of its values, or the latter does not go with
                *quarantine*.
            ValueError: *replay* is a string that is not a position, or a limit is below 1.
        """
        options = SubscribeOptions(
            ack,
            max_pending_count,
            max_bytes,
            max_unacked,
            connection_timeout,
            on_gap,
            on_undecodable,
            quarantine,
        )
        start, kept_in = start_and_store(replay, replay_store)
        store = check_sync(kept_in)
        delivery = self._connection.open(
            Target(topic, False),
            options,
            start=(None if store is None else store.get(topic)) or start,
            fallback=replay_fallback,
            store=store,
            stores_on_ack=True,
        )
        return Subscription(delivery)

    def subscribe_managed(
        self,
        name: str,
        *,
        ack: AckMode = "auto",
        max_pending_count: int = Limits.max_pending_count,
        max_bytes: int = Limits.max_bytes,
        max_unacked: int = Limits.max_unacked,
        connection_timeout: float | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_undecodable: OnUndecodable = "fail",
        quarantine: Quarantine | None = None,
    ) -> ManagedSubscription:
        """Subscribe through a managed subscription; the service keeps the position.

        Args:
            name: Developer name or record id of the ManagedEventSubscription.
            ack: As for `subscribe`.
            max_pending_count: As for `subscribe`.
            max_bytes: As for `subscribe`.
            max_unacked: As for `subscribe`.
            connection_timeout: As for `subscribe`; does not count waiting for the managed slot.
            on_gap: As for `subscribe`.
            on_undecodable: As for `subscribe`.
            quarantine: As for `subscribe`.

        Raises:
            ConfigurationError: *ack* or *on_undecodable* is not one of its values, or the latter
                does not go with *quarantine*.
            ValueError: A limit is below 1.
        """
        options = SubscribeOptions(
            ack,
            max_pending_count,
            max_bytes,
            max_unacked,
            connection_timeout,
            on_gap,
            on_undecodable,
            quarantine,
        )
        delivery = self._connection.open(Target(name, True), options, stores_on_ack=True)
        return ManagedSubscription(delivery)

    # The end.

    def close(self) -> None:
        """Abort the subscriptions that are still open, then close the channel."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
