"""Positions in an event stream. They are opaque and support only equality."""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass
from typing import Any, TypeAlias


class ReplayId:
    """An opaque position in an event stream.

    Equality and hash are those of the bytes; a replay id equals its own bytes. Do not order replay
    ids or treat them as numbers: only equality has a meaning (pubsub_api.proto,
    ``ConsumerEvent.replay_id``).

    Args:
        value: The bytes as the service sent them; not empty.

    Raises:
        TypeError: *value* is not bytes.
        ValueError: *value* is empty.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        # One cheap check for the usual case, because this runs once per event.
        if type(value) is not bytes:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise TypeError(f"a replay id must be bytes, not {type(value).__name__}")
            value = bytes(value)
        if not value:
            raise ValueError("a replay id must have at least one byte")
        self._value = value

    @classmethod
    def from_hex(cls, text: str) -> ReplayId:
        """Create a replay id from hexadecimal digits, as returned by `hex`.

        Raises:
            ValueError: *text* is not an even number of hexadecimal digits.
        """
        digits = text.strip()
        try:
            value = bytes.fromhex(digits)
        except ValueError:
            value = b""
        # fromhex skips whitespace between digits, but an id with whitespace in it was corrupted.
        if not value or len(digits) != 2 * len(value):
            raise ValueError(
                f"{text!r} is not a replay id: it must be an even number of hexadecimal digits, as "
                f"sfpubsub prints it"
            )
        return cls(value)

    @classmethod
    def from_base64(cls, text: str) -> ReplayId:
        """Create a replay id from base64 text, as returned by `base64`.

        Raises:
            ValueError: *text* is not standard base64.
        """
        try:
            return cls(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a replay id in base64") from error

    def hex(self) -> str:
        """Return the bytes as lower-case hexadecimal digits, two per byte."""
        return self._value.hex()

    def base64(self) -> str:
        """Return the bytes in standard base64 with padding."""
        return base64.b64encode(self._value).decode("ascii")

    def __bytes__(self) -> bytes:
        return self._value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReplayId):
            return self._value == other._value
        if isinstance(other, (bytes, bytearray, memoryview)):
            return self._value == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"ReplayId({self.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReplayId, (self._value,))


class ReplayPreset(enum.Enum):
    """Where a new stream begins. The names are those used on the wire."""

    LATEST = 0
    EARLIEST = 1
    CUSTOM = 2


@dataclass(frozen=True)
class StartPosition:
    """Where a stream begins. Use `latest`, `earliest` or `after` to create a position."""

    preset: ReplayPreset
    replay_id: ReplayId | None = None

    def __post_init__(self) -> None:
        if (self.preset is ReplayPreset.CUSTOM) != (self.replay_id is not None):
            raise ValueError("CUSTOM requires a replay id, and the other presets do not allow one")

    @classmethod
    def latest(cls) -> StartPosition:
        """Return the start position for events that are published after the stream opens."""
        return cls(ReplayPreset.LATEST)

    @classmethod
    def earliest(cls) -> StartPosition:
        """Return the position of the oldest event that the service still retains (72 h)."""
        return cls(ReplayPreset.EARLIEST)

    @classmethod
    def after(cls, replay_id: ReplayId) -> StartPosition:
        """Return the start position immediately after *replay_id*."""
        return cls(ReplayPreset.CUSTOM, replay_id)

    def __str__(self) -> str:
        if self.replay_id is None:
            return self.preset.name.lower()
        return f"after {self.replay_id.hex()}"


class ReplayOption(enum.Enum):
    """Where a subscription without a stored position starts. The names are those of aiosfstream."""

    NEW_EVENTS = "latest"
    ALL_EVENTS = "earliest"


# What `subscribe(replay=…)` accepts, apart from a store.
Replay: TypeAlias = str | ReplayId | ReplayOption | StartPosition


def start_position(replay: Replay) -> StartPosition:
    """Convert *replay* to a `StartPosition`.

    Args:
        replay: ``"latest"``, ``"earliest"``, a `ReplayOption`, a `ReplayId`, its hexadecimal
            form, or a `StartPosition`.

    Raises:
        ValueError: *replay* has none of these forms.
    """
    if not isinstance(replay, (str, ReplayId, ReplayOption, StartPosition)):
        given = repr(replay) if replay is None or isinstance(replay, int) else type(replay).__name__
        raise ValueError(  # noqa: TRY004  # like any other value that is not a position
            f"replay must be 'latest', 'earliest', a ReplayId, its hexadecimal form, or a replay "
            f"store, not {given}; for bytes, give ReplayId(…)"
        )
    if isinstance(replay, StartPosition):
        return replay
    if isinstance(replay, ReplayOption):
        replay = replay.value
    if isinstance(replay, ReplayId):
        return StartPosition.after(replay)
    if replay == "latest":
        return StartPosition.latest()
    if replay == "earliest":
        return StartPosition.earliest()
    return StartPosition.after(ReplayId.from_hex(replay))
