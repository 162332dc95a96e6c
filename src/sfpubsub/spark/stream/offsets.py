"""The position of a streaming query, as stored in Spark's checkpoint.

Spark compares offsets as text, so keys are always written in the same order. Replay ids are
hexadecimal, as in logs and in ``startingOffsets``, so that a position can be copied from a
checkpoint. Replay ids have no order, so events are counted (``seq``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.errors import ConfigurationError
from sfpubsub.types import ReplayId, ReplayPreset, StartPosition, start_position

# Version of the format in the checkpoint. Other versions are rejected, because misreading an offset
# would lose events.
_VERSION = 1


@dataclass(frozen=True)
class Offset:
    """A position between two events of one topic.

    The checkpoint contains only the ends of batches. A batch with events ends after its last event.
    A batch may start at ``latest`` or ``earliest``, which refer to a different place in the topic
    when the batch is read again after a crash. So the end of such a batch also contains the replay
    id of the batch's first event.
    """

    topic: str
    position: StartPosition
    """The position after the last event, or the start of the query if it has read no events yet."""
    seq: int = 0
    """Number of events of this query before this position: the ``ingest_seq`` of the next one."""
    at: int | None = None
    """When this position was reached, in seconds since the epoch; None if unknown."""
    first: ReplayId | None = None
    """Replay id of the first event of the batch that ends here.

    It is set only if the batch started at ``latest`` or ``earliest``.
    """
    keepalive: ReplayId | None = None
    """Position of the last keepalive received after `position` and before any further event.

    None if there was no such keepalive. This position remains valid after a quiet time in which
    `position` would expire.
    """

    @property
    def resume(self) -> StartPosition:
        """Position at which to open a stream: after `keepalive` if it is set, else `position`."""
        return self.position if self.keepalive is None else StartPosition.after(self.keepalive)

    @property
    def is_anchored(self) -> bool:
        """Whether `resume` is a replay id, which always refers to the same place in the topic."""
        return self.resume.preset is ReplayPreset.CUSTOM

    @property
    def floats(self) -> bool:
        """Whether `resume` is LATEST, which moves with the end of the topic.

        Events published before a stream is opened there are missed.
        """
        return self.resume.preset is ReplayPreset.LATEST

    def json(self) -> dict[str, Any]:
        """Return the offset as a JSON object for the checkpoint."""
        position = self.position
        record = {
            "at": self.at,
            "first": None if self.first is None else self.first.hex(),
            "keepalive": None if self.keepalive is None else self.keepalive.hex(),
            "replay": (position.replay_id.hex() if position.replay_id else str(position)),
            "seq": self.seq,
            "topic": self.topic,
            "v": _VERSION,
        }
        return {name: value for name, value in record.items() if value is not None}

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Offset:
        """Parse the output of `json`.

        Raises:
            ConfigurationError: *record* is not a valid offset, or was written by another version.
        """
        try:
            found = cls(
                topic=str(record["topic"]),
                position=start_position(str(record["replay"])),
                seq=int(record["seq"]),
                at=None if record.get("at") is None else int(record["at"]),
                first=_replay_id(record.get("first")),
                keepalive=_replay_id(record.get("keepalive")),
            )
            version = record["v"]
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(error) from error
        if version != _VERSION:
            raise ConfigurationError(
                f"the checkpoint contains an offset in format {version}, but this version of "
                f"sfpubsub reads format {_VERSION}: use the version that wrote it, or a new "
                f"checkpoint"
            )
        return found


@dataclass(frozen=True)
class Offsets:
    """The positions of a query, one per topic.

    For one topic, the checkpoint contains its `Offset`; for several, a list of offsets sorted by
    topic. If a topic is removed from the query, the checkpoint keeps its offset, in case the topic
    is added again.
    """

    by_topic: dict[str, Offset]

    def json(self) -> dict[str, Any]:
        """Return the offsets as a JSON object for the checkpoint."""
        found = [self.by_topic[topic].json() for topic in sorted(self.by_topic)]
        return found[0] if len(found) == 1 else {"topics": found, "v": _VERSION}

    @classmethod
    def parse(cls, record: Mapping[str, Any], topics: Sequence[str]) -> Offsets:
        """Parse the output of `json`.

        Args:
            record: The record from the checkpoint.
            topics: Topics of the query.

        Raises:
            ConfigurationError: The record is not valid, was written by another version, or
                contains none of *topics*.
        """
        try:
            records = list(record["topics"]) if "topics" in record else [record]
            found = {offset.topic: offset for offset in map(Offset.parse, records)}
        except TypeError as error:
            raise _unreadable(error) from error
        if not found.keys() & set(topics):
            raise ConfigurationError(
                f"the checkpoint has positions in {', '.join(found)}, but the query reads "
                f"{', '.join(topics)}: use a separate checkpoint, or also read one of the "
                f"checkpoint's topics (option topics)"
            )
        return cls(found)


def _unreadable(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint contains an offset that this version of sfpubsub cannot read "
        f"({error}): use the version that wrote it, or a new checkpoint"
    )


def _replay_id(text: Any) -> ReplayId | None:
    return None if text is None else ReplayId.from_hex(str(text))
