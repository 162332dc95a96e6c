"""The position of a streaming query, as stored in Spark's checkpoint.

Spark compares offsets as text, so the keys always come in one order. Replay ids are hexadecimal, as
in logs and in ``startingOffsets``: a position can be copied out of a checkpoint. Nothing here
orders them; ``seq`` is a count of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.errors import ConfigurationError
from sfpubsub.types import ReplayId, ReplayPreset, StartPosition, start_position

# Of the text in the checkpoint. Another one is refused: guessing what it says would lose events.
_VERSION = 1


@dataclass(frozen=True)
class Offset:
    """A position between two events of one topic.

    The end of a batch with events is its last event. Only ends are journaled; the start of the
    first batch is asked again after a crash, when ``latest`` and ``earliest`` mean something else.
    So a batch that starts there says at its end which event was its first.
    """

    topic: str
    position: StartPosition
    """After the last event so far, or the start of the query if there was none."""
    seq: int = 0
    """Number of events of this query before this position: the ``ingest_seq`` of the next one."""
    at: int | None = None
    """When it was reached, in seconds since 1970 UTC; None if unknown."""
    first: ReplayId | None = None
    """The first event of the batch that ends here, if it began at ``latest`` or ``earliest``."""
    keepalive: ReplayId | None = None
    """A later position at which there is no event: nothing came in between. Resuming there, a topic
    that was quiet for longer than events are kept loses nothing."""

    @property
    def resume(self) -> StartPosition:
        """Position where a stream continues."""
        return self.position if self.keepalive is None else StartPosition.after(self.keepalive)

    @property
    def is_anchored(self) -> bool:
        """Whether it always refers to the same place."""
        return self.resume.preset is ReplayPreset.CUSTOM

    @property
    def floats(self) -> bool:
        """Whether it moves with the topic, so that events can be missed."""
        return self.resume.preset is ReplayPreset.LATEST

    def json(self) -> dict[str, Any]:
        """Return the form stored in the checkpoint."""
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
            ConfigurationError: It was written by another version.
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
                f"the checkpoint holds an offset of form {version}, and this version of sfpubsub "
                f"reads form {_VERSION}: use the version that wrote it, or a new checkpoint"
            )
        return found


@dataclass(frozen=True)
class Offsets:
    """The positions of a query on all its topics.

    Of one topic it is journaled as its `Offset`, of several as a list of theirs, by name. A topic
    that is left out of the query keeps its offset there, for when it comes back.
    """

    by_topic: dict[str, Offset]

    def json(self) -> dict[str, Any]:
        """Return the form stored in the checkpoint."""
        found = [self.by_topic[topic].json() for topic in sorted(self.by_topic)]
        return found[0] if len(found) == 1 else {"topics": found, "v": _VERSION}

    @classmethod
    def parse(cls, record: Mapping[str, Any], topics: Sequence[str]) -> Offsets:
        """Parse the output of `json`.

        Args:
            record: The record from the checkpoint.
            topics: Topics of the query.

        Raises:
            ConfigurationError: It was written by another version, or belongs to other topics.
        """
        try:
            records = list(record["topics"]) if "topics" in record else [record]
            found = {offset.topic: offset for offset in map(Offset.parse, records)}
        except TypeError as error:
            raise _unreadable(error) from error
        if not found.keys() & set(topics):
            raise ConfigurationError(
                f"the checkpoint belongs to topic {', '.join(found)}, but the query reads "
                f"{', '.join(topics)}: use a separate checkpoint per topic, or read it together "
                f"with one of the checkpoint's topics, with option topics"
            )
        return cls(found)


def _unreadable(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint holds an offset that this version of sfpubsub did not write "
        f"({error}): use the version that did, or a new checkpoint"
    )


def _replay_id(text: Any) -> ReplayId | None:
    return None if text is None else ReplayId.from_hex(str(text))
