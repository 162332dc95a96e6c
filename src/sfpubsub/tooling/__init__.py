"""Create, start, stop and delete an org's managed subscriptions.

This package uses the org's Tooling API over HTTP. It opens no stream, and reads no positions,
because that API does not expose them. A change takes up to a few minutes to reach the Pub/Sub API.
Only a subscribe call can confirm that it has arrived; `wait_until` polls a check that the caller
provides.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider
from sfpubsub.auth.soql import quoted
from sfpubsub.config import Settings
from sfpubsub.errors import (
    ConfigurationError,
    QuotaExceededError,
    RequestRefusedError,
    StreamUnavailableError,
    SubscriptionNotFoundError,
)
from sfpubsub.tooling import records
from sfpubsub.tooling.records import ManagedEventSubscription
from sfpubsub.tooling.soql_queries import TO_CHANGE, Queries, explaining

__all__ = ["ManagedEventSubscription", "Tooling", "wait_until"]

# The first version with ManagedEventSubscription: every org that has the object supports it.
API_VERSION = "60.0"

# Managed subscriptions that an org can have (Salesforce documentation, Pub/Sub API allocations).
LIMIT = 200

# Seconds that a change may take to reach the Pub/Sub API: two minutes are documented, five have
# been observed.
PROPAGATION = 300.0

# Seconds between checks; each check occupies the subscription for a moment.
CHECK_EVERY = 10.0

_VERSION = re.compile(r"[1-9]\d{1,2}\.0")


class Tooling:
    """Administers the managed subscriptions of an org. Thread-safe.

    Every method raises what `sfpubsub.auth.rest.OrgClient` raises, with Salesforce's code in
    ``error_code``.

    Args:
        session: A `Session`, or a `SessionProvider` that supplies one.
        http: Makes the requests; None creates one with default settings.
        api_version: Version of the Tooling API, such as ``60.0``.

    Raises:
        ConfigurationError: *api_version* is not valid, or too old.
    """

    def __init__(
        self,
        session: Session | SessionProvider,
        *,
        http: HttpClient | None = None,
        api_version: str = API_VERSION,
    ) -> None:
        if not _VERSION.fullmatch(api_version) or float(api_version) < float(API_VERSION):
            raise ConfigurationError(
                f"API version {api_version!r} is not supported: managed subscriptions require "
                f"{API_VERSION} or later"
            )
        self.sessions: CurrentSession = CurrentSession(session)
        """The session used for requests. Pass it to a `PubSubClient` to share one sign-in."""
        self._org = OrgClient(self.sessions, http or HttpClient())
        self._queries = Queries(self._org, api_version)
        self._records = f"{self._queries.data}tooling/sobjects/ManagedEventSubscription"

    @classmethod
    def from_env(cls, options: Mapping[str, str | None] | None = None) -> Tooling:
        """Create an instance from the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that override the environment, by field name of `Settings`; ``config``
                and ``profile`` select a settings file and a table in it.

        Raises:
            ConfigurationError: A setting is missing or not valid.
        """
        settings = Settings.load(options)
        http = HttpClient.from_settings(settings)
        return cls(session_provider(settings, http), http=http)

    # Reading.

    def list(self) -> Iterator[ManagedEventSubscription]:
        """Yield the org's managed subscriptions, sorted by name.

        Lists the ids first, and then makes one request per subscription, because a query that
        selects the metadata must not match more than one record.
        """
        for record_id, _ in self._heads():
            record = self._find("Id", record_id)
            if record is not None:  # None if it was deleted since the first query
                yield record

    def show(self, name_or_id: str) -> ManagedEventSubscription:
        """Return the record of a managed subscription.

        Args:
            name_or_id: Developer name, or record id of 15 or 18 characters.

        Raises:
            ConfigurationError: *name_or_id* is not a valid name or id.
            SubscriptionNotFoundError: The org has no record with that name or id.
        """
        if records.is_id(name_or_id):
            record = self._find("Id", name_or_id)
        else:
            records.check_name(name_or_id)
            record = self._find("DeveloperName", name_or_id)
        if record is None:
            raise _missing(name_or_id)
        return record

    def stamp(self, name_or_id: str) -> tuple[str, ...]:
        """Return values that change if a managed subscription is changed, stopped or started.

        These are its state, its presets and, if the org tells it, the date of its last change.
        Arguments and errors are those of `show`.
        """
        record = self.show(name_or_id)
        found = "SELECT Id, LastModifiedDate FROM ManagedEventSubscription"
        try:
            rows = self._queries.rows(f"{found} WHERE Id = {quoted(record.id)} LIMIT 1")
        except RequestRefusedError as error:  # whether this object has the column is not documented
            if error.retryable:
                raise
            rows = []
        changed = str(rows[0].get("LastModifiedDate")) if rows else ""
        return record.state, record.default_replay, record.error_recovery_replay, changed

    # Changing.

    def create(
        self,
        developer_name: str,
        topic_name: str,
        *,
        label: str | None = None,
        default_replay: str = "EARLIEST",
        error_recovery_replay: str = "EARLIEST",
    ) -> ManagedEventSubscription:
        """Create a managed subscription in state RUN.

        Both presets default to EARLIEST, unlike in Salesforce: with LATEST, the service stores no
        position before the first confirmed commit, so a crash before that commit loses events.

        Args:
            developer_name: Letters, digits and single underscores. Cannot be changed later.
            topic_name: Full path of the topic. Cannot be changed later.
            label: Human-readable label; defaults to the name.
            default_replay: Where the subscription starts without a committed position: ``LATEST``
                or ``EARLIEST``.
            error_recovery_replay: Where the subscription continues if its committed position is no
                longer valid.

        Raises:
            ConfigurationError: A name, topic or preset is not valid, or the name is taken.
            QuotaExceededError: The org has reached its limit of managed subscriptions.
            StreamUnavailableError: There was no response. The record may have been created.
        """
        records.check_name(developer_name)
        records.check_topic(topic_name)
        records.check_preset("the default replay", default_replay)
        records.check_preset("the error recovery replay", error_recovery_replay)
        self._check_room(developer_name)
        record = ManagedEventSubscription(
            id="",
            developer_name=developer_name,
            label=developer_name if label is None else label,
            topic_name=topic_name,
            default_replay=default_replay,
            error_recovery_replay=error_recovery_replay,
            state="RUN",
        )
        with explaining(TO_CHANGE):
            answer = self._org.post(self._records, records.body_of(record))
        made = answer.get("id") if isinstance(answer, dict) else None
        records.check_id(made)
        return replace(record, id=str(made))

    def start(self, name_or_id: str) -> ManagedEventSubscription:
        """Start a managed subscription and return its record. Raises what `show` raises.

        Sets the state to RUN.
        """
        return self._change(name_or_id, {"state": "RUN"})

    def stop(self, name_or_id: str) -> ManagedEventSubscription:
        """Stop a managed subscription and return its record. Raises what `show` raises.

        Sets the state to STOP. The service disconnects the client that reads the subscription, and
        **deletes the committed position**: after a restart, the subscription begins at its default
        replay.
        """
        return self._change(name_or_id, {"state": "STOP"})

    def update(
        self,
        name_or_id: str,
        *,
        label: str | None = None,
        default_replay: str | None = None,
        error_recovery_replay: str | None = None,
    ) -> ManagedEventSubscription:
        """Change the label or the replay presets, and return the record. None keeps the old value.

        Raises:
            ConfigurationError: *name_or_id* or a preset is not valid.
            SubscriptionNotFoundError: The org has no record with that name or id.
        """
        if default_replay is not None:
            records.check_preset("the default replay", default_replay)
        if error_recovery_replay is not None:
            records.check_preset("the error recovery replay", error_recovery_replay)
        changes = {
            "label": label,
            "default_replay": default_replay,
            "error_recovery_replay": error_recovery_replay,
        }
        return self._change(
            name_or_id, {name: value for name, value in changes.items() if value is not None}
        )

    def delete(self, name_or_id: str) -> ManagedEventSubscription:
        """Delete a managed subscription and its committed position, and return its record.

        Raises what `show` raises. Do not reuse the name for several minutes: the service may still
        associate it with the deleted subscription.
        """
        record = self.show(name_or_id)
        with explaining(TO_CHANGE, _missing(name_or_id)):
            self._org.delete(f"{self._records}/{record.id}")
        return record

    def _change(self, name_or_id: str, changes: dict[str, str]) -> ManagedEventSubscription:
        # The whole record is sent, as documented. A concurrent change by another client is
        # overwritten; the API cannot detect that.
        record = replace(self.show(name_or_id), **cast("dict[str, Any]", changes))
        with explaining(TO_CHANGE, _missing(name_or_id)):
            self._org.patch(f"{self._records}/{record.id}", records.body_of(record))
        return record

    def _check_room(self, developer_name: str) -> None:
        heads = self._heads()
        for record_id, name in heads:
            if name == developer_name:
                raise ConfigurationError(
                    f"the managed subscription {name} already exists ({record_id}): choose "
                    f"another name"
                )
        if len(heads) >= LIMIT:
            raise QuotaExceededError(
                f"the org has {len(heads)} managed subscriptions, and the limit is {LIMIT}: "
                f"delete an unused one"
            )

    # Requests.

    def _heads(self) -> Sequence[tuple[str, str]]:
        """Return the id and the developer name of every record, sorted by name."""
        # Without the column Metadata, which can only be queried one row at a time.
        rows = self._queries.rows("SELECT Id, DeveloperName FROM ManagedEventSubscription")
        return sorted(map(records.head_of, rows), key=lambda head: head[1])

    def _find(self, column: str, value: str) -> ManagedEventSubscription | None:
        found = "SELECT Id, DeveloperName, Metadata FROM ManagedEventSubscription"
        rows = self._queries.rows(f"{found} WHERE {column} = {quoted(value)} LIMIT 1")
        return records.record_of(rows[0]) if rows else None


def wait_until(
    what: str,
    check: Callable[[], bool],
    *,
    timeout: float = PROPAGATION,
    every: float = CHECK_EVERY,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until *check* confirms that a change has reached the Pub/Sub API.

    Args:
        what: The awaited condition, for the error message, such as "Order_Sync is available".
        check: Returns whether the change has arrived; may take a few seconds.
        timeout: Limit in seconds; *check* is called at least once.
        every: Seconds between checks.
        progress: Called before each pause with the elapsed seconds.
        clock: Monotonic clock, in seconds.
        sleep: Pauses for the given number of seconds.

    Raises:
        StreamUnavailableError: The condition did not become true in time, but may still become
            true.
    """
    begun = clock()
    while not check():
        taken = clock() - begun
        if taken + every > timeout:
            raise StreamUnavailableError(
                f"the Pub/Sub API did not confirm within {taken:.0f} s that {what}: the "
                f"change was made, but may need a few more minutes to take effect"
            )
        if progress is not None:
            progress(taken)
        sleep(every)


def _missing(name_or_id: str) -> SubscriptionNotFoundError:
    return SubscriptionNotFoundError(
        f"the org has no managed subscription {name_or_id}: see sfpubsub managed list"
    )
