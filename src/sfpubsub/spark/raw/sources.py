"""What the rows of a raw table come from: subscriptions, topics, channels.

A table belongs to the sources that were ever written to it. More can join, in the company of one
that it has; one that is left out keeps its position there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sfpubsub.errors import ConfigurationError

_KINDS = {"managed": "managed subscription", "topic": "topic", "channel": "channel"}


@dataclass(frozen=True)
class Source:
    """What some of a table's rows come from."""

    kind: Literal["managed", "topic", "channel"]
    name: str
    """Names the source among those of its table, and in the column ``subscription``."""

    @classmethod
    def several(
        cls,
        subscription: str | Iterable[str] | None = None,
        topic: str | Iterable[str] | None = None,
        channel: str | Iterable[str] | None = None,
    ) -> tuple[Source, ...]:
        """Return those that were given: of each kind a name, some names, or None.

        Raises:
            ConfigurationError: No source is named, or two have the same name.
        """
        found = [cls("managed", name) for name in _names(subscription)]
        found += [cls("topic", name) for name in _names(topic)]
        found += [cls("channel", name) for name in _names(channel)]
        if not found or not all(source.name for source in found):
            raise ConfigurationError(
                "a table takes one or more managed subscriptions, topics or channels: name them"
            )
        return joined((), found, "the table")

    @property
    def keeps_position(self) -> bool:
        """Whether the table says where it resumes; of a managed subscription the service does."""
        return self.kind != "managed"

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} {self.name}"


def sources_record(sources: Sequence[Source]) -> list[list[str]]:
    """Return the form in which a table records its sources."""
    return [[source.kind, source.name] for source in sources]


def recorded_sources(record: Mapping[str, Any]) -> tuple[Source, ...]:
    """Read what `sources_record` wrote, or the one source of an older table.

    Raises:
        ConfigurationError: It cannot be read.
    """
    pairs = record.get("sources")
    if pairs is None:
        return Source.several(record.get("managed"), record.get("topic"))
    try:
        found = tuple(Source(kind, name) for kind, name in pairs)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the sources are not valid: {pairs!r}") from error
    if not found or not all(source.kind in _KINDS for source in found):
        raise ConfigurationError(f"the sources are not valid: {pairs!r}")
    return found


def joined(
    recorded: Sequence[Source], asked: Sequence[Source], where: object
) -> tuple[Source, ...]:
    """Return the sources of a table of *recorded* ones that is to take events of those *asked*.

    One that is new comes in the company of one that is recorded, so that a slip in the name of a
    table does not mix the events of two.

    Raises:
        ConfigurationError: All of them are new; or two of different kinds have the same name.
    """
    if recorded and not set(recorded) & set(asked):
        raise ConfigurationError(
            f"{where} belongs to {listed(recorded)} and cannot take events of {listed(asked)}: "
            f"name another destination; or, to add to it, name one of its own sources as well"
        )
    found: dict[str, Source] = {}
    # File systems and catalogs that do not tell case apart must not mix two of them up.
    for source in dict.fromkeys((*recorded, *asked)):
        other = found.setdefault(source.name.casefold(), source)
        if other is not source:
            raise ConfigurationError(
                f"{where} cannot tell {source} from {other}: write one of them to another table"
            )
    return tuple(found.values())


def _names(given: str | Iterable[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def listed(sources: Sequence[Source]) -> str:
    """Return them in words."""
    return ", ".join(map(str, sources))
