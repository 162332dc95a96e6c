"""Sources of a raw table's rows: managed subscriptions, topics and channels.

A table belongs to all sources whose events were ever written to it. A writer can add a new source
only if it also names one of the existing sources. A source that is no longer used keeps its
position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sfpubsub.errors import ConfigurationError

_KINDS = {"managed": "managed subscription", "topic": "topic", "channel": "channel"}


@dataclass(frozen=True)
class Source:
    """One source of a table's rows."""

    kind: Literal["managed", "topic", "channel"]
    name: str
    """Name of the source, unique within the table; the value of the column ``subscription``."""

    @classmethod
    def several(
        cls,
        subscription: str | Iterable[str] | None = None,
        topic: str | Iterable[str] | None = None,
        channel: str | Iterable[str] | None = None,
    ) -> tuple[Source, ...]:
        """Return the sources with the given names. Each argument is one name, several, or None.

        Raises:
            ConfigurationError: No source is given, a name is empty, or two different sources have
                the same name, ignoring case.
        """
        found = [cls("managed", name) for name in _names(subscription)]
        found += [cls("topic", name) for name in _names(topic)]
        found += [cls("channel", name) for name in _names(channel)]
        if not found or not all(source.name for source in found):
            raise ConfigurationError(
                "a table needs at least one managed subscription, topic or channel, and none of "
                "their names may be empty"
            )
        return joined((), found, "the table")

    @property
    def keeps_position(self) -> bool:
        """Whether the table stores the source's position.

        False for a managed subscription, whose position the service stores.
        """
        return self.kind != "managed"

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} {self.name}"


def sources_record(sources: Sequence[Source]) -> list[list[str]]:
    """Convert sources to pairs of kind and name, to be stored with a table."""
    return [[source.kind, source.name] for source in sources]


def recorded_sources(pairs: Any) -> tuple[Source, ...]:
    """Convert the output of `sources_record`, after reading it from JSON, to sources.

    Raises:
        ConfigurationError: *pairs* is not valid.
    """
    try:
        found = tuple(Source(kind, name) for kind, name in pairs)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "the sources stored with the table must be pairs of a kind (managed, topic or channel) "
            f"and a name, not {pairs!r}"
        ) from error
    if not found or not all(source.kind in _KINDS for source in found):
        raise ConfigurationError(
            "the sources stored with the table must be pairs of a kind (managed, topic or channel) "
            f"and a name, not {pairs!r}"
        )
    return found


def joined(
    recorded: Sequence[Source], asked: Sequence[Source], where: object
) -> tuple[Source, ...]:
    """Return the sources *recorded* in a table, extended by those in *asked*.

    A new source is accepted only together with a recorded one, so that a mistyped table name does
    not mix the events of two tables.

    Raises:
        ConfigurationError: All sources in *asked* are new, or two different sources have the same
            name, ignoring case.
    """
    if recorded and not set(recorded) & set(asked):
        raise ConfigurationError(
            f"{where} belongs to {listed(recorded)}, not to {listed(asked)}: choose another "
            f"destination, or, to add a source, also name one of the existing sources"
        )
    found: dict[str, Source] = {}
    # Names must differ by more than case, because some file systems and catalogs ignore it.
    for source in dict.fromkeys((*recorded, *asked)):
        other = found.setdefault(source.name.casefold(), source)
        if other is not source:
            raise ConfigurationError(
                f"{where} cannot contain both {source} and {other}, because their names are equal "
                f"or differ only in case: write one of them to another table"
            )
    return tuple(found.values())


def _names(given: str | Iterable[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def listed(sources: Sequence[Source]) -> str:
    """Return the sources as text, separated by commas."""
    return ", ".join(map(str, sources))
