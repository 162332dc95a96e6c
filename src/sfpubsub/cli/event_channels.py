"""``sfpubsub topics``, ``sfpubsub channel`` and ``sfpubsub usage``: what an org has to offer."""

from __future__ import annotations

import dataclasses
import sys

import click

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.cli.render import json_line
from sfpubsub.cli.service import service_options
from sfpubsub.config import Settings
from sfpubsub.tooling import API_VERSION
from sfpubsub.tooling.event_channels import CHANNEL_TYPES, STANDARD, EventChannels
from sfpubsub.tooling.usage import Usages

_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@service_options
def topics(**service: str | None) -> None:
    """List all that one can subscribe to.

    Prints a JSON line for each: custom platform events, the change events of the objects that are
    selected, and channels with the names of their members. Standard platform events are left out,
    for an org does not say which of them it publishes. Needs View Setup and Configuration.
    """
    for topic in EventChannels(_org(service), API_VERSION).topics():
        _print(topic)


@click.group()
def channel() -> None:
    """Administer channels: several events under one topic.

    Changes need the permission Customize Application, looking needs View Setup and Configuration.
    They take some minutes to reach open streams.
    """


@channel.command()
@click.argument("name")
@click.option(
    "--type",
    "channel_type",
    type=click.Choice(CHANNEL_TYPES),
    required=True,
    help="Of platform events, or of change events (data).",
)
@click.option("--label", metavar="TEXT", help="Human-readable label.  [default: NAME]")
@service_options
def create(name: str, channel_type: str, label: str | None, **service: str | None) -> None:
    """Create a channel without members.

    Prints it as a JSON line. The suffix __chn of NAME may be left out; neither name nor type can
    be changed later.
    """
    _print(_channels(service).create(name, channel_type, label=label))


@channel.command()
@click.argument("name")
@service_options
def show(name: str, **service: str | None) -> None:
    """Show a channel and its members as a JSON line; ChangeEvents is the standard one."""
    _print(_channels(service).show(name))


@channel.command()
@click.argument("name")
@click.argument("entity")
@click.option(
    "--filter",
    "filter_expression",
    metavar="SOQL",
    help="Only events that it is true of, such as \"City__c = 'Rome'\".  [default: all]",
)
@click.option(
    "--enrich",
    "enriched_fields",
    multiple=True,
    metavar="FIELD",
    help="A field to include in every change event; can be repeated.",
)
@service_options
def add(
    name: str,
    entity: str,
    filter_expression: str | None,
    enriched_fields: tuple[str, ...],
    **service: str | None,
) -> None:
    """Select the event ENTITY for a channel.

    Prints the channel as a JSON line. On a channel of change events ENTITY may be an object, such
    as Account; on ChangeEvents this turns its change events on.
    """
    _print(
        _channels(service).add(
            name, entity, filter_expression=filter_expression, enriched_fields=enriched_fields
        )
    )


@channel.command()
@click.argument("name")
@click.argument("entity")
@_yes_option
@service_options
def remove(name: str, entity: str, yes: bool, **service: str | None) -> None:
    """Take the event ENTITY off a channel.

    Prints the channel as a JSON line. Its subscribers get no more of these events; taken off
    ChangeEvents, the object has no change events at all.
    """
    channels = _channels(service)
    found = channels.show(name)
    _confirm(f"subscribers of {found.topic} will miss {entity} from now on. Remove it?", yes)
    _print(channels.remove(name, entity))


@channel.command()
@click.argument("name")
@_yes_option
@service_options
def delete(name: str, yes: bool, **service: str | None) -> None:
    """Delete a channel with its members.

    Prints what it was as a JSON line. Its subscribers are ended; the events stay on their own
    topics.
    """
    channels = _channels(service)
    found = channels.show(name)
    if found.name != STANDARD:
        _confirm(f"subscribers of {found.topic} are ended. Delete it?", yes)
    _print(channels.delete(name))


@click.command()
@click.option("--by-event", is_flag=True, help="A line for each event of the last 24 hours too.")
@service_options
def usage(by_event: bool, **service: str | None) -> None:
    """Show what of the org's allocation of events is used, by the org's own figures.

    Prints a JSON line for each limit. The figures are some minutes old. --by-event needs Enhanced
    Usage Metrics in the org and the permission View All Data.
    """
    usages = Usages(_org(service), API_VERSION)
    for allocation in usages.allocations():
        _print(allocation)
    if not by_event:
        return
    rows = usages.by_event()
    if rows is None:
        raise click.ClickException(
            "the org tells no usage by event: turn on Enhanced Usage Metrics "
            "(PlatformEventSettings, enableEnhancedUsageMetrics)"
        )
    for row in rows:
        _print(row)


def _channels(service: dict[str, str | None]) -> EventChannels:
    return EventChannels(_org(service), API_VERSION)


def _org(service: dict[str, str | None]) -> OrgClient:
    settings = Settings.load(service)
    http = HttpClient.from_settings(settings)
    return OrgClient(CurrentSession(session_provider(settings, http)), http)


def _print(record: object) -> None:
    click.echo(json_line(dataclasses.asdict(record)), nl=False)  # type: ignore[call-overload]


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask: give --yes")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")
