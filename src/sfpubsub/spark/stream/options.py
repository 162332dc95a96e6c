"""The options of the streaming source: what there is, and what is refused.

Options travel: into the query's plan, into the pickle that each executor gets, into Spark's event
log. So none of them is a credential, and what looks like one is refused without being repeated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sfpubsub.errors import ConfigurationError
from sfpubsub.types import StartPosition, start_position

# Events of one trigger, and of the next one that is received meanwhile. 100,000 spread Spark's cost
# of a batch (0.1 to 0.2 s) thin; with 300 bytes each they are 30 MB here and as much in Spark.
DEFAULT_MAX_EVENTS = 100_000

# Above this, the driver's default memory of 1 GB is no longer enough for one trigger.
HIGHEST_MAX_EVENTS = 1_000_000

# Seconds without an event after which an availableNow query has read everything. As for the job.
DEFAULT_IDLE_TIMEOUT = 30.0

NAMES = (
    "topic",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "idleTimeout",
    "configFile",
    "profile",
    "schemaStore",
)

_LIST = ", ".join(NAMES)

# Names of what must not travel, whatever style they are written in, and of the settings that belong
# beside it.
_SECRET_NAME = re.compile(
    r"token|secret|passw|credential|session|private|jwt|bearer|authorization|apikey|consumerkey"
)
_SETTING_NAME = re.compile(
    r"^(sfpubsub)?(endpoint|insecure|cafile|auth|instanceurl|tenantid|loginurl|clientid|username|"
    r"privatekeyfile|audience|proxy|ping\w+)$"
)
# A session id of Salesforce begins with the org's id; a JWT and a private key show what they are.
_SECRET_VALUE = re.compile(r"\b00D\w{12,15}!|\beyJ[\w-]{8,}\.|-----BEGIN|\b5Aep[\w.]{20,}")

_INSTEAD = (
    "options are part of the plan and travel to every executor. Set the SFPUBSUB_… variables in "
    "the environment of the Spark driver, or name a settings file of the driver's machine with "
    "option configFile"
)


@dataclass(frozen=True)
class SourceOptions:
    """What a query asks for. Holds no secret, and is pickled."""

    topic: str
    start: StartPosition = StartPosition.latest()  # noqa: RUF009  # immutable
    max_events: int = DEFAULT_MAX_EVENTS
    """Of one trigger."""
    fail_on_data_loss: bool = True
    idle_timeout: float = DEFAULT_IDLE_TIMEOUT
    """Seconds; for availableNow."""
    config_file: str | None = None
    """Path of a settings file, where the source's process runs."""
    profile: str | None = None
    schema_store: str | None = None
    """Path of a directory, where the source's process runs, that keeps the schemas of events."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options. Names are taken in any case, as Spark does.

        Raises:
            ConfigurationError: One is missing, unknown, malformed, or looks like a credential.
        """
        known = {name.lower(): name for name in NAMES}
        given: dict[str, str] = {}
        for name, value in options.items():
            _refuse_credential(name, value)
            if name.lower() not in known:
                close = get_close_matches(name.lower(), known, n=1)
                hint = f"did you mean {known[close[0]]}?" if close else f"it has {', '.join(NAMES)}"
                raise ConfigurationError(f"the source has no option {name!r}: {hint}")
            given[known[name.lower()]] = value
        topic = given.get("topic", "")
        if not topic.startswith("/"):
            raise ConfigurationError(
                f"option topic is {topic!r}: name one by its path, such as "
                f"/event/Order_Event__e or /data/ChangeEvents"
            )
        return cls(
            topic=topic,
            start=_start(given.get("startingOffsets", "latest")),
            max_events=_count(given.get("maxOffsetsPerTrigger", str(DEFAULT_MAX_EVENTS))),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failOnDataLoss", "true")),
            idle_timeout=_seconds(given.get("idleTimeout", str(DEFAULT_IDLE_TIMEOUT))),
            config_file=given.get("configFile"),
            profile=given.get("profile"),
            schema_store=given.get("schemaStore"),
        )


def _refuse_credential(name: str, value: str) -> None:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if _SECRET_NAME.search(plain) or _SECRET_VALUE.search(value):
        raise ConfigurationError(f"option {name!r} looks like a credential, and {_INSTEAD}")
    if _SETTING_NAME.match(plain):
        raise ConfigurationError(
            f"option {name!r} is a connection setting and no option of the source: {_INSTEAD}"
        )


def _start(text: str) -> StartPosition:
    try:
        return start_position(text.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"option startingOffsets is {text!r}: it takes latest, earliest, or a replay id in "
            f"hexadecimal digits"
        ) from error


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= HIGHEST_MAX_EVENTS:
        raise ConfigurationError(
            f"option maxOffsetsPerTrigger is {text!r}: it takes 1 to {HIGHEST_MAX_EVENTS} events"
        )
    return count


def _flag(name: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ConfigurationError(f"option {name} is {text!r}: it takes true or false")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"option idleTimeout is {text!r}: it takes seconds above 0")
    return seconds
