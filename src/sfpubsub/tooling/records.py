"""The record of a managed subscription: validation, and conversion from and to JSON.

User input is validated before a request is made, and responses are accepted only in the form that
Salesforce documents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from sfpubsub.errors import ConfigurationError, RemoteProtocolError

Preset = Literal["LATEST", "EARLIEST"]
PRESETS: Final[tuple[str, ...]] = get_args(Preset)

_NAME = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*")
_ID = re.compile(r"18[xX][A-Za-z0-9]{12}([A-Za-z0-9]{3})?")

# It is not documented which standard events support managed subscriptions: the org decides.
_TOPIC = re.compile(
    r"/event/[A-Za-z]\w*|/data/(ChangeEvents|[A-Za-z]\w*(ChangeEvent|__chn))", re.ASCII
)


@dataclass(frozen=True)
class ManagedEventSubscription:
    """The record that defines a managed subscription in an org."""

    id: str
    """Record id, 18 characters."""
    developer_name: str
    label: str
    topic_name: str
    default_replay: str
    """Where the subscription starts without a committed position: ``LATEST`` or ``EARLIEST``."""
    error_recovery_replay: str
    """Where the subscription continues if its committed position is no longer valid."""
    state: str
    """``RUN``, ``STOP``, or ``PAUSE``, which only the service sets."""


# User input.


def is_id(name_or_id: str) -> bool:
    """Return whether *name_or_id* is a record id, which begins with a digit, and not a name."""
    return _ID.fullmatch(name_or_id) is not None


def check_name(developer_name: str) -> None:
    """Check that *developer_name* is valid.

    Raises:
        ConfigurationError: *developer_name* is not valid.
    """
    if not _NAME.fullmatch(developer_name):
        raise ConfigurationError(
            f"{developer_name!r} is not a valid developer name: use letters, digits and single "
            f"underscores, beginning with a letter and not ending with an underscore"
        )


def check_topic(topic_name: str) -> None:
    """Check that *topic_name* is a topic that managed subscriptions support.

    Raises:
        ConfigurationError: *topic_name* is not supported.
    """
    if not _TOPIC.fullmatch(topic_name):
        raise ConfigurationError(
            f"{topic_name!r} is not a valid topic: use /event/NAME__e, /event/NAME__chn, "
            f"/data/ChangeEvents, /data/NAMEChangeEvent or /data/NAME__chn"
        )


def check_preset(what: str, preset: str) -> None:
    """Check that *preset* is ``LATEST`` or ``EARLIEST``.

    Args:
        what: Name of the checked setting, for the error message.
        preset: The value to check.

    Raises:
        ConfigurationError: *preset* is neither of these.
    """
    if preset not in PRESETS:
        raise ConfigurationError(f"{what} must be {' or '.join(PRESETS)}, not {preset!r}")


def body_of(record: ManagedEventSubscription) -> dict[str, Any]:
    """Return the request body that creates or changes a record."""
    return {
        "FullName": record.developer_name,
        "Metadata": {
            "label": record.label,
            "topicName": record.topic_name,
            "defaultReplay": record.default_replay,
            "errorRecoveryReplay": record.error_recovery_replay,
            "state": record.state,
        },
    }


# Responses.


def head_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return the id and the developer name in a row of a query response.

    Raises:
        RemoteProtocolError: The id or the developer name is missing or malformed.
    """
    record_id = _text(row, "Id")
    check_id(record_id)
    return record_id, _text(row, "DeveloperName")


def record_of(row: dict[str, Any]) -> ManagedEventSubscription:
    """Return the record in a row of a query response.

    Raises:
        RemoteProtocolError: A field is missing or malformed.
    """
    record_id, developer_name = head_of(row)
    metadata = row.get("Metadata")
    if not isinstance(metadata, dict):
        raise RemoteProtocolError(
            f"the org returned the record of {developer_name} without its Metadata"
        )
    return ManagedEventSubscription(
        id=record_id,
        developer_name=developer_name,
        label=_text(metadata, "label"),
        topic_name=_text(metadata, "topicName"),
        default_replay=_text(metadata, "defaultReplay"),
        error_recovery_replay=_text(metadata, "errorRecoveryReplay"),
        state=_text(metadata, "state"),
    )


def check_id(record_id: Any) -> None:
    """Check that *record_id* is valid, because it becomes part of a URL path.

    Raises:
        RemoteProtocolError: *record_id* is not valid.
    """
    if not isinstance(record_id, str) or not is_id(record_id):
        raise RemoteProtocolError("the org returned a managed subscription without a valid id")


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"the org returned a managed subscription without {name}")
    return value
