"""Managed subscriptions as records of the org: created, started, stopped and deleted here.

Asks the org's Tooling API over HTTP; opens no stream and reads no position, which the API does not
tell. The Pub/Sub API learns of a change up to some minutes later, and only by subscribing can one
see that it has: `wait_until` waits for a check of the caller's own.
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
    StreamUnavailableError,
    SubscriptionNotFoundError,
)
from sfpubsub.tooling import records
from sfpubsub.tooling.asking import TO_CHANGE, Queries, explaining
from sfpubsub.tooling.records import ManagedEventSubscription

__all__ = ["ManagedEventSubscription", "Tooling", "wait_until"]

# The first version that has the object, and so the one that every org with it serves.
API_VERSION = "60.0"

# Managed subscriptions that an org can have (Salesforce documentation, Pub/Sub API allocations).
LIMIT = 200

# Seconds that a change may take until the Pub/Sub API knows it: two minutes are documented, five
# were seen.
PROPAGATION = 300.0

# Seconds between two checks; each takes the slot of the subscription for a moment.
CHECK_EVERY = 10.0

_VERSION = re.compile(r"[1-9]\d{1,2}\.0")


class Tooling:
    """Administers the managed subscriptions of an org. Thread-safe.

    Every method raises what `sfpubsub.auth.rest.OrgClient` raises, with Salesforce's code in
    ``error_code``.

    Args:
        session: A ready session, or an object whose ``get_session`` supplies one.
        http: Makes the requests; one with its defaults when None.
        api_version: Of the Tooling API, such as ``60.0``.

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
                f"API version {api_version!r} is not {API_VERSION} or later, which managed "
                f"subscriptions need"
            )
        self.sessions: CurrentSession = CurrentSession(session)
        """The session of its requests. A `PubSubClient` takes it as well: one sign-in for both."""
        self._org = OrgClient(self.sessions, http or HttpClient())
        self._queries = Queries(self._org, api_version)
        self._records = f"{self._queries.data}tooling/sobjects/ManagedEventSubscription"

    @classmethod
    def from_env(cls, options: Mapping[str, str | None] | None = None) -> Tooling:
        """Make one of the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that go before the environment, by field of `Settings`, and
                ``config`` and ``profile``, which choose a file and a table in it.

        Raises:
            ConfigurationError: A setting is missing or wrong.
        """
        settings = Settings.load(options)
        http = HttpClient.from_settings(settings)
        return cls(session_provider(settings, http), http=http)

    # Reading.

    def list(self) -> Iterator[ManagedEventSubscription]:
        """Yield all records, by name; one request each, as the API tells no more at once."""
        for record_id, _ in self._heads():
            record = self._find("Id", record_id)
            if record is not None:  # otherwise deleted meanwhile
                yield record

    def show(self, name_or_id: str) -> ManagedEventSubscription:
        """Return a record.

        Args:
            name_or_id: Developer name, or record id of 15 or 18 characters.

        Raises:
            ConfigurationError: It is neither.
            SubscriptionNotFoundError: There is no such record.
        """
        if records.is_id(name_or_id):
            record = self._find("Id", name_or_id)
        else:
            records.check_name(name_or_id)
            record = self._find("DeveloperName", name_or_id)
        if record is None:
            raise _missing(name_or_id)
        return record

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

        EARLIEST is the default, other than Salesforce's: with LATEST the service remembers nothing
        before the first confirmed commit, and a crash before it loses events.

        Args:
            developer_name: Letters, digits and single underscores; it cannot be changed later.
            topic_name: Full path; it cannot be changed later.
            label: Human-readable label; the name when None.
            default_replay: Where it starts: ``LATEST`` or ``EARLIEST``.
            error_recovery_replay: Where it continues when its position is no longer valid.

        Raises:
            ConfigurationError: A name, topic or preset is not one; or the name is taken.
            QuotaExceededError: The org has reached its limit.
            StreamUnavailableError: No answer: whether it was created has to be looked up.
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
        """Set its state to RUN and return the record. Errors as of `show`."""
        return self._change(name_or_id, {"state": "RUN"})

    def stop(self, name_or_id: str) -> ManagedEventSubscription:
        """Set its state to STOP and return the record. Errors as of `show`.

        The service ends a running client, and **deletes the committed position**: started again, it
        begins at its default replay.
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
        """Change what can be changed, and return the record. None leaves a thing as it is.

        Raises:
            ConfigurationError: A preset is not one.
            SubscriptionNotFoundError: There is no such record.
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
        """Delete a record with its committed position, and return what it was. Errors as of `show`.

        Its name should not be used again soon: the service may still know the old one by it.
        """
        record = self.show(name_or_id)
        with explaining(TO_CHANGE, _missing(name_or_id)):
            self._org.delete(f"{self._records}/{record.id}")
        return record

    def _change(self, name_or_id: str, changes: dict[str, str]) -> ManagedEventSubscription:
        # The whole record is sent, as documented. Whoever else changes it in the same moment is
        # overwritten; the API has no way to notice.
        record = replace(self.show(name_or_id), **cast("dict[str, Any]", changes))
        with explaining(TO_CHANGE, _missing(name_or_id)):
            self._org.patch(f"{self._records}/{record.id}", records.body_of(record))
        return record

    def _check_room(self, developer_name: str) -> None:
        heads = self._heads()
        for record_id, name in heads:
            if name == developer_name:
                raise ConfigurationError(
                    f"there is a managed subscription {name} already ({record_id}): choose another "
                    f"name"
                )
        if len(heads) >= LIMIT:
            raise QuotaExceededError(
                f"the org has {len(heads)} managed subscriptions, and {LIMIT} is the most it can "
                f"have: delete one that nobody uses"
            )

    # Requests.

    def _heads(self) -> Sequence[tuple[str, str]]:
        """Return the id and the name of every record, by name."""
        # Without the column Metadata, which comes one row at a time only.
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
    """Wait until *check* says that a change has reached the Pub/Sub API.

    Args:
        what: What is waited for, for the message: "X is known".
        check: Looks once; may take some seconds.
        timeout: Seconds; looks once at least.
        every: Seconds between two looks.
        progress: Told before each pause how many seconds it has taken.
        clock: Steady seconds.
        sleep: Pauses for that many seconds.

    Raises:
        StreamUnavailableError: It has not become true in time; it still may.
    """
    begun = clock()
    while not check():
        taken = clock() - begun
        if taken + every > timeout:
            raise StreamUnavailableError(
                f"{taken:.0f} s have not been enough until {what} at the Pub/Sub API: the change "
                f"is made, and may take some minutes more"
            )
        if progress is not None:
            progress(taken)
        sleep(every)


def _missing(name_or_id: str) -> SubscriptionNotFoundError:
    return SubscriptionNotFoundError(
        f"the org has no managed subscription {name_or_id}: see sfpubsub managed list"
    )
