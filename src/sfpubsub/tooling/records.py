"""The record of a managed subscription: what it may say, and how it travels as JSON.

What a person gives is refused before the org is asked; what the org answers is believed only as far
as it has the form that Salesforce documents.
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

# Which events can be managed, of those that are no custom ones, is not documented: left to the org.
_TOPIC = re.compile(
    r"/event/[A-Za-z]\w*|/data/(ChangeEvents|[A-Za-z]\w*(ChangeEvent|__chn))", re.ASCII
)


@dataclass(frozen=True)
class ManagedEventSubscription:
    """One record."""

    id: str
    """Of 18 characters."""
    developer_name: str
    label: str
    topic_name: str
    default_replay: str
    """Where it starts without a committed position: ``LATEST`` or ``EARLIEST``."""
    error_recovery_replay: str
    """Where it continues when its committed position is no longer valid."""
    state: str
    """``RUN``, ``STOP``, or the service's own ``PAUSE``."""


# What a person gives.


def is_id(name_or_id: str) -> bool:
    """Whether it is a record id; these begin with a digit, and so are no names."""
    return _ID.fullmatch(name_or_id) is not None


def check_name(developer_name: str) -> None:
    """Pass only a developer name.

    Raises:
        ConfigurationError: It is not valid.
    """
    if not _NAME.fullmatch(developer_name):
        raise ConfigurationError(
            f"{developer_name!r} is not a developer name: letters, digits and single underscores, "
            f"beginning with a letter and not ending with an underscore"
        )


def check_topic(topic_name: str) -> None:
    """Pass only the path of a topic.

    Raises:
        ConfigurationError: It is not valid.
    """
    if not _TOPIC.fullmatch(topic_name):
        raise ConfigurationError(
            f"{topic_name!r} is not a topic: use /event/NAME__e, /event/NAME__chn, "
            f"/data/ChangeEvents, /data/NAMEChangeEvent or /data/NAME__chn"
        )


def check_preset(what: str, preset: str) -> None:
    """Pass only ``LATEST`` and ``EARLIEST``.

    Raises:
        ConfigurationError: It is another.
    """
    if preset not in PRESETS:
        raise ConfigurationError(f"{what} is {' or '.join(PRESETS)}, not {preset!r}")


def body_of(record: ManagedEventSubscription) -> dict[str, Any]:
    """Return what creates or changes a record."""
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


# What the org answers.


def head_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return the id and the developer name in a row.

    Raises:
        RemoteProtocolError: They are missing or malformed.
    """
    record_id = _text(row, "Id")
    check_id(record_id)
    return record_id, _text(row, "DeveloperName")


def record_of(row: dict[str, Any]) -> ManagedEventSubscription:
    """Return the record in a row.

    Raises:
        RemoteProtocolError: Something of it is missing or malformed.
    """
    record_id, developer_name = head_of(row)
    metadata = row.get("Metadata")
    if not isinstance(metadata, dict):
        raise RemoteProtocolError(f"the record of {developer_name} came without its Metadata")
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
    """Pass only a record id; it becomes a part of a path.

    Raises:
        RemoteProtocolError: It is not valid.
    """
    if not isinstance(record_id, str) or not is_id(record_id):
        raise RemoteProtocolError("the org answered with a managed subscription without a valid id")


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"the org answered with a managed subscription without {name}")
    return value
