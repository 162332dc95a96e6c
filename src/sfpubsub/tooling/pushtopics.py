"""Manage PushTopics, and push events to generic channels, through the org's REST API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.auth.rest import OrgClient
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    TopicNotFoundError,
)

# Maximum number of characters of a generic event's payload (Salesforce documentation, generic
# streaming).
MAX_PAYLOAD = 3000

# A PushTopic's name has at most 25 characters (Salesforce documentation, object PushTopic).
_NAME = re.compile(r"[A-Za-z]\w{0,24}", re.ASCII)
_CHANNEL = re.compile(r"/u/[\w/-]+", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z]{15}(?:[0-9A-Za-z]{3})?")

_FLAGS = ("Create", "Update", "Delete", "Undelete")
_COLUMNS = "Id, Name, Query, ApiVersion, IsActive, NotifyForFields, " + ", ".join(
    f"NotifyForOperation{flag}" for flag in _FLAGS
)


@dataclass(frozen=True)
class PushTopic:
    """A PushTopic: changes to the results of its query are published on ``/topic/NAME``."""

    id: str
    name: str
    query: str
    api_version: float
    is_active: bool
    notify_for_fields: str
    """Fields whose changes cause events: ``Referenced``, ``All``, ``Select`` or ``Where``."""
    operations: tuple[str, ...]
    """Operations that cause events: any of ``create``, ``update``, ``delete`` and ``undelete``."""


class PushTopics:
    """Administers PushTopics. Thread-safe; raises what `OrgClient` raises.

    Args:
        org: Makes the requests.
        api_version: Version of the REST API; new PushTopics are created with the same version.
    """

    def __init__(self, org: OrgClient, api_version: str) -> None:
        self._org = org
        self._version = api_version
        self._data = f"/services/data/v{api_version}"

    def create(
        self,
        name: str,
        query: str,
        *,
        operations: Sequence[str] = ("create", "update", "delete", "undelete"),
        notify_for_fields: str = "Referenced",
    ) -> PushTopic:
        """Create a PushTopic and return it.

        Raises:
            ConfigurationError: The name is not valid.
            RequestRefusedError: The org refused the PushTopic, for instance because of its query.
                The message contains the reason.
        """
        body: dict[str, Any] = {
            "Name": _checked(name),
            "Query": query,
            "ApiVersion": float(self._version),
            "NotifyForFields": notify_for_fields,
        }
        for flag in _FLAGS:
            body[f"NotifyForOperation{flag}"] = flag.lower() in operations
        self._org.post(f"{self._data}/sobjects/PushTopic", body)
        return self.show(name)

    def list(self) -> list[PushTopic]:
        """Return all PushTopics, sorted by name."""
        return [_topic(row) for row in self._rows("ORDER BY Name")]

    def show(self, name: str) -> PushTopic:
        """Return the PushTopic *name*.

        Raises:
            ConfigurationError: *name* is not a valid name.
            TopicNotFoundError: The org has no PushTopic with that name.
        """
        rows = self._rows(f"WHERE Name = '{_checked(name)}'")
        if not rows:
            raise TopicNotFoundError(
                f"the org has no PushTopic {name}: see sfpubsub pushtopic list"
            )
        return _topic(rows[0])

    def delete(self, name: str) -> PushTopic:
        """Delete a PushTopic and return it. Raises what `show` raises."""
        topic = self.show(name)
        self._org.delete(f"{self._data}/sobjects/PushTopic/{topic.id}")
        return topic

    def _rows(self, rest: str) -> Any:
        query = f"SELECT {_COLUMNS} FROM PushTopic {rest}"  # noqa: S608  # the name is checked
        return rows_of(self._org.get(f"{self._data}/query", {"q": query}))


class GenericChannels:
    """Pushes events to generic channels. Thread-safe; raises what `OrgClient` raises.

    Args:
        org: Makes the requests.
        api_version: Version of the REST API.
    """

    def __init__(self, org: OrgClient, api_version: str) -> None:
        self._org = org
        self._data = f"/services/data/v{api_version}"

    def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push one event; return the number of users who received it, or -1 if *user_ids* is empty.

        Raises:
            LocalProtocolError: The payload has more than `MAX_PAYLOAD` characters, or a user id or
                the channel name is not valid.
            TopicNotFoundError: The org has no channel with that name.
        """
        if len(payload) > MAX_PAYLOAD:
            raise LocalProtocolError(
                f"the payload has {len(payload)} characters, but the limit is {MAX_PAYLOAD}"
            )
        for user_id in user_ids:
            if not _ID.fullmatch(user_id):
                raise LocalProtocolError(
                    f"{user_id!r} is not a valid user id: use 15 or 18 letters and digits"
                )
        body = {"pushEvents": [{"payload": payload, "userIds": list(user_ids)}]}
        path = f"{self._data}/sobjects/StreamingChannel/{self._find(channel)}/push"
        answer = self._org.post(path, body)
        try:
            return int(answer[0]["fanoutCount"])
        except (TypeError, ValueError, LookupError) as error:
            raise RemoteProtocolError(
                "the org's response to the push has no fanoutCount"
            ) from error

    def _find(self, channel: str) -> str:
        if not _CHANNEL.fullmatch(channel):
            raise LocalProtocolError(
                f"{channel} is not a valid generic channel: use a name such as /u/News"
            )
        query = f"SELECT Id FROM StreamingChannel WHERE Name = '{channel}'"  # noqa: S608  # checked
        rows = rows_of(self._org.get(f"{self._data}/query", {"q": query}))
        if not rows:
            raise TopicNotFoundError(f"the org has no generic channel {channel}: check the name")
        return _id(rows[0])


def rows_of(answer: Any) -> list[dict[str, Any]]:
    """Return the rows of a query response.

    Raises:
        RemoteProtocolError: The response is not valid, or has more than one page.
    """
    rows = answer.get("records") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RemoteProtocolError("the org's response to a query has no list of records")
    # An org has at most 100 PushTopics, and a page holds 2,000 rows.
    if answer.get("done") is not True:
        raise RemoteProtocolError("the org returned only some of the rows of a query")
    return rows


def _topic(row: dict[str, Any]) -> PushTopic:
    try:
        return PushTopic(
            id=_id(row),
            name=str(row["Name"]),
            query=str(row["Query"]),
            api_version=float(row["ApiVersion"]),
            is_active=row["IsActive"] is True,
            notify_for_fields=str(row["NotifyForFields"]),
            operations=tuple(
                flag.lower() for flag in _FLAGS if row[f"NotifyForOperation{flag}"] is True
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"the org returned a PushTopic with a missing or malformed field: {error}"
        ) from error


def _id(row: dict[str, Any]) -> str:
    found = row.get("Id")
    if not isinstance(found, str) or not _ID.fullmatch(found):  # it becomes part of a path
        raise RemoteProtocolError("the org returned a record without a valid id")
    return found


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a valid PushTopic name: use a letter, then letters, digits and "
            "underscores, at most 25 characters in total"
        )
    return name
