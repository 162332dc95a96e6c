"""Parse and validate the options of the streaming source.

Spark copies options into the query's plan, the pickle sent to each executor, and Spark's event log.
So no option may be a credential. An option that looks like one is rejected, with an error that
does not repeat its value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from sfpubsub.errors import ConfigurationError
from sfpubsub.types import StartPosition, start_position

# Maximum number of events in a trigger, and of those received ahead for the next one. With 100,000,
# Spark's fixed cost per batch (0.1 to 0.2 s) hardly matters. At 300 bytes each, they take 30 MB in
# the source's process and another 30 MB in Spark.
DEFAULT_MAX_EVENTS = 100_000

# Above this, the driver's default memory of 1 GB is no longer enough for one trigger.
HIGHEST_MAX_EVENTS = 1_000_000

# Maximum size of the payloads in a trigger, and of those received ahead for the next one, in bytes.
# The source's process keeps them in memory, plus about 400 bytes per event.
MAX_HELD_BYTES = 64 * 1024 * 1024

# Above this, the driver's default memory of 1 GB is no longer enough for one trigger.
HIGHEST_MAX_BYTES = 512 * 1024 * 1024

# Seconds without an event after which an availableNow query ends; the same as for an ingest job.
DEFAULT_IDLE_TIMEOUT = 30.0

NAMES = (
    "topic",
    "topics",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "idleTimeout",
    "configFile",
    "profile",
    "schemaStore",
)

# Names of credentials and of connection settings, in lower case and without separators.
_SECRET_NAME = re.compile(
    r"token|secret|passw|credential|session|private|jwt|bearer|authorization|apikey|consumerkey"
)
_SETTING_NAME = re.compile(
    r"^(sfpubsub)?(endpoint|insecure|cafile|auth|instanceurl|tenantid|loginurl|clientid|username|"
    r"privatekeyfile|audience|proxy|ping\w+)$"
)
# Session ids of Salesforce (which start with the org's id), JWTs, private keys and refresh tokens.
_SECRET_VALUE = re.compile(r"\b00D\w{12,15}!|\beyJ[\w-]{8,}\.|-----BEGIN|\b5Aep[\w.]{20,}")

_INSTEAD = (
    "options are part of the plan and are sent to every executor. Set the SFPUBSUB_… variables in "
    "the environment of the Spark driver, or set option configFile to the path of a settings file "
    "on the driver's machine"
)


@dataclass(frozen=True)
class SourceOptions:
    """Options of a query. Contains no secrets, and is pickled."""

    topics: tuple[str, ...]
    """One or more topics, sorted."""
    start: StartPosition | None = None
    """Where every topic starts; None if not given."""
    starts: Mapping[str, StartPosition] = field(default_factory=dict)
    """Where individual topics start."""
    max_events: int = DEFAULT_MAX_EVENTS
    """Maximum number of events per trigger, for all topics together."""
    max_bytes: int = MAX_HELD_BYTES
    """Maximum payload bytes per trigger, for all topics together; one event may exceed it."""
    fail_on_data_loss: bool = True
    idle_timeout: float = DEFAULT_IDLE_TIMEOUT
    """Seconds without an event after which an availableNow query ends."""
    config_file: str | None = None
    """Path of a settings file on the driver's machine."""
    profile: str | None = None
    schema_store: str | None = None
    """Path of a directory on the driver's machine that keeps the schemas of events."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options. Names are case-insensitive, as in Spark.

        Raises:
            ConfigurationError: An option is missing, unknown, malformed, or looks like a
                credential.
        """
        given = named_options(options, NAMES, "source")
        topics = _topics(given)
        start, starts = _starts(given.get("startingOffsets"), topics)
        return cls(
            topics=topics,
            start=start,
            starts=starts,
            max_events=_count(
                "maxOffsetsPerTrigger",
                given.get("maxOffsetsPerTrigger", str(DEFAULT_MAX_EVENTS)),
                HIGHEST_MAX_EVENTS,
                "events",
            ),
            max_bytes=_count(
                "maxBytesPerTrigger",
                given.get("maxBytesPerTrigger", str(MAX_HELD_BYTES)),
                HIGHEST_MAX_BYTES,
                "bytes",
            ),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failOnDataLoss", "true")),
            idle_timeout=_seconds(given.get("idleTimeout", str(DEFAULT_IDLE_TIMEOUT))),
            config_file=given.get("configFile"),
            profile=given.get("profile"),
            schema_store=given.get("schemaStore"),
        )

    def start_of(self, topic: str) -> StartPosition:
        """Return where a query without a checkpoint starts on *topic*."""
        return self.starts.get(topic) or self.start or StartPosition.latest()


def named_options(options: Mapping[str, str], names: tuple[str, ...], what: str) -> dict[str, str]:
    """Return the options, keyed by their names as spelled in *names*.

    The case of the given names does not matter.

    Args:
        options: The options given to Spark.
        names: All supported options.
        what: ``source`` or ``sink``, for error messages.

    Raises:
        ConfigurationError: An option is unknown, or looks like a credential.
    """
    known = {name.lower(): name for name in names}
    given: dict[str, str] = {}
    for name, value in options.items():
        refuse_credential(name, value)
        if name.lower() not in known:
            close = get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {known[close[0]]}?" if close else f"use one of {', '.join(names)}"
            raise ConfigurationError(f"the {what} has no option {name!r}: {hint}")
        given[known[name.lower()]] = value
    return given


def refuse_credential(name: str, value: str) -> None:
    """Check that an option is neither a credential nor a connection setting.

    Raises:
        ConfigurationError: The name or value looks like a credential, or the option is a
            connection setting.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if _SECRET_NAME.search(plain) or _SECRET_VALUE.search(value):
        raise ConfigurationError(f"option {name!r} looks like a credential, but {_INSTEAD}")
    if _SETTING_NAME.match(plain):
        raise ConfigurationError(
            f"option {name!r} is a connection setting and not an option of the source: {_INSTEAD}"
        )


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    if "topic" in given and "topics" in given:
        raise ConfigurationError("use only one of the options topic and topics")
    topics = {given.get("topic", "")}
    if "topics" in given:
        topics = {name.strip() for name in given["topics"].split(",")}
    for topic in topics:
        if not topic.startswith("/") or "," in topic:
            name = "topics" if "topics" in given else "topic"
            raise ConfigurationError(
                f"option {name} is {given.get(name, '')!r}: name "
                f"{'each topic' if name == 'topics' else 'a topic'} by its path, such as "
                f"/event/Order_Event__e or /data/ChangeEvents"
                + (", separated by commas" if name == "topics" else "")
            )
    return tuple(sorted(topics))


def _starts(
    text: str | None, topics: tuple[str, ...]
) -> tuple[StartPosition | None, dict[str, StartPosition]]:
    """Parse option startingOffsets.

    Returns:
        The start that applies to all topics, or None; and a dict of the starts that apply to single
        topics, by topic.
    """
    if text is None:
        return None, {}
    if not text.lstrip().startswith("{"):
        start = _start(text)
        if start.replay_id is not None and len(topics) > 1:
            raise ConfigurationError(
                "option startingOffsets is a replay id, which is valid for one topic only: with "
                'several topics, use {"/event/A__e": "…", …}'
            )
        return start, {}
    try:
        found = {str(topic): _start(str(start)) for topic, start in json.loads(text).items()}
    except ValueError as error:
        raise ConfigurationError(
            f"option startingOffsets is {text!r}, which is not valid JSON: {error}"
        ) from error
    unknown = sorted(set(found) - set(topics))
    if unknown:
        raise ConfigurationError(
            f"option startingOffsets names {unknown[0]}, which is not one of the topics: remove "
            f"it, or list it in option topics"
        )
    return None, found


def _start(text: str) -> StartPosition:
    try:
        return start_position(text.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"option startingOffsets is {text!r}: it must be latest, earliest, or a replay id in "
            f"hexadecimal digits"
        ) from error


def _count(name: str, text: str, highest: int, unit: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= highest:
        raise ConfigurationError(
            f"option {name} is {text!r}: it must be from 1 to {highest} {unit}"
        )
    return count


def _flag(name: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ConfigurationError(f"option {name} is {text!r}: it must be true or false")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigurationError(
            f"option idleTimeout is {text!r}: it must be a number of seconds above 0"
        )
    return seconds
