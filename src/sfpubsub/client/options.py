"""Options of clients and subscriptions, validated before anything is opened."""

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
"""``auto``: requesting the next batch acks the previous one. ``manual``: the caller acks."""


@dataclass(frozen=True)
class ClientOptions:
    """Options of a client, except its session; see `PubSubClient`."""

    endpoint: str = DEFAULT_ENDPOINT
    insecure: str = ""
    ca_file: str = ""
    proxy: str = ""
    timings: Timings | None = None
    transport: Transport | None = None
    schema_store: SchemaStore | None = None
    datetimes: bool = False
    record_of: Callable[[str], object] | None = None


@dataclass(frozen=True)
class SubscribeOptions:
    """Options of both kinds of subscription; see `PubSubClient.subscribe`.

    Raises:
        ConfigurationError: *ack* or *on_undecodable* is not valid, or *quarantine* is missing or
            not allowed.
    """

    ack: AckMode = "auto"
    limits: Limits = field(default_factory=Limits)
    connection_timeout: float | None = None
    on_gap: Callable[[Gap], None] | None = None
    on_undecodable: OnUndecodable = "fail"
    quarantine: Quarantine | None = None
    fallback: Replay | None = None
    """Where a plain subscription continues if the service rejects its position; None to fail."""
    fields: frozenset[str] | None = None
    """Fields to decode; None means all."""

    def __post_init__(self) -> None:
        if self.ack not in get_args(AckMode):
            raise ConfigurationError(f"ack must be 'auto' or 'manual', not {self.ack!r}")
        check_policy(self.on_undecodable, self.quarantine)


def chosen_fields(fields: Iterable[str] | None) -> frozenset[str] | None:
    """Validate the requested fields and return them as a set; None means all fields.

    Raises:
        ConfigurationError: *fields* is a single string, or contains a value that is not a string or
            is the name of a component, such as ``BillingAddress.City``.
    """
    if fields is None:
        return None
    if isinstance(fields, str):
        raise ConfigurationError(f"fields must be a list of names: use [{fields!r}]")
    chosen = frozenset(fields)
    for name in chosen:
        if not isinstance(name, str):
            raise ConfigurationError(f"fields must contain field names, not {name!r}")
        whole, dot, _ = name.partition(".")
        if dot:
            raise ConfigurationError(
                f"fields must contain only names of top-level fields: use {whole!r} instead of "
                f"{name!r}"
            )
    return chosen
