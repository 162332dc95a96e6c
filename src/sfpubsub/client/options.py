"""What callers choose, for a client and for a subscription: checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from sfpubsub.client.undecodable import OnUndecodable, check_policy
from sfpubsub.config import DEFAULT_ENDPOINT, Limits, Timings
from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.transports.base import Transport
from sfpubsub.types import Gap, Replay

AckMode: TypeAlias = Literal["auto", "manual"]
"""``auto``: asking for the next batch acks the one before. ``manual``: the caller acks."""


@dataclass(frozen=True)
class ClientOptions:
    """What a client is made with, apart from its session; see `PubSubClient`."""

    endpoint: str = DEFAULT_ENDPOINT
    insecure: str = ""
    ca_file: str = ""
    proxy: str = ""
    timings: Timings | None = None
    transport: Transport | None = None
    schema_store: SchemaStore | None = None
    datetimes: bool = False


@dataclass(frozen=True)
class SubscribeOptions:
    """What both kinds of subscription take; see `PubSubClient.subscribe`.

    Raises:
        ConfigurationError: *ack* or *on_undecodable* is not one of its values, or *quarantine* does
            not go with it.
    """

    ack: AckMode = "auto"
    limits: Limits = field(default_factory=Limits)
    connection_timeout: float | None = None
    on_gap: Callable[[Gap], None] | None = None
    on_undecodable: OnUndecodable = "fail"
    quarantine: Quarantine | None = None
    fallback: Replay | None = None
    """Of a plain subscription."""
    fields: frozenset[str] | None = None
    """What is read of an event; None for all."""

    def __post_init__(self) -> None:
        if self.ack not in get_args(AckMode):
            raise ConfigurationError(f"ack is 'auto' or 'manual', not {self.ack!r}")
        check_policy(self.on_undecodable, self.quarantine)


def chosen_fields(fields: Iterable[str] | None) -> frozenset[str] | None:
    """Return the fields that a caller chose.

    Raises:
        ConfigurationError: It is a text and not several, or something in it is not a field's name.
    """
    if fields is None:
        return None
    if isinstance(fields, str):
        raise ConfigurationError(f"fields takes a list of names: write [{fields!r}]")
    chosen = frozenset(fields)
    for name in chosen:
        if not isinstance(name, str):
            raise ConfigurationError(f"fields takes names of fields, not {name!r}")
        whole, dot, _ = name.partition(".")
        if dot:
            raise ConfigurationError(
                f"fields takes names of whole fields, not of parts: write {whole!r} for {name!r}"
            )
    return chosen
