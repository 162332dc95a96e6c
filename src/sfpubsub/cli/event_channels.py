"""Commands for an org's topics, event channels and event allocations.

``sfpubsub topics`` lists topics, ``sfpubsub channel`` administers channels, and ``sfpubsub usage``
shows the usage of event allocations.
"""

from __future__ import annotations

import click

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.cli.params import Topic, confirm, yes_option
from sfpubsub.cli.results import print_record, print_records
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.config import Settings
from sfpubsub.tooling import API_VERSION
from sfpubsub.tooling.event_channels import CHANNEL_TYPES, STANDARD, EventChannels
from sfpubsub.tooling.usage import Usages


@click.command()
@click.argument("name", type=Topic(), required=False)
@service_options
def topics(name: str | None, **service: str | None) -> None:
    """List the topics that you can subscribe to, or show the topic NAME.

    Prints a JSON line per topic: custom platform events, change events of the objects selected for
    change data capture, and channels with the names of their members. Standard platform events are
    not listed, because an org does not report which of them it publishes. Listing requires the View
    Setup and Configuration permission.

    With NAME, the line has the topic's schema id, and whether you may publish to the topic and
    subscribe to it, as the Pub/Sub API says.
    """
    if name is not None:
        with connected_client(None, **service) as client:
            print_record(client.get_topic(name))
        return
    print_records(_channels(service).topics(), "no topics")


@click.group()
def channel() -> None:
    """Administer event channels, which combine several events under one topic.

    Changing channels requires the Customize Application permission; viewing them requires View
    Setup and Configuration. A change takes several minutes to reach open streams.
    """


@channel.command()
@click.argument("name")
@click.option(
    "--type",
    "channel_type",
    type=click.Choice(CHANNEL_TYPES),
    required=True,
    help="Kind of events in the channel: platform events (event) or change events (data).",
)
@click.option(
    "--label", metavar="TEXT", help="Human-readable label.  [default: NAME without __chn]"
)
@service_options
def create(name: str, channel_type: str, label: str | None, **service: str | None) -> None:
    """Create a channel without members.

    Prints the channel as a JSON line. The suffix __chn of NAME can be omitted. The name and the
    type cannot be changed later.
    """
    print_record(_channels(service).create(name, channel_type, label=label))


@channel.command()
@click.argument("name")
@service_options
def show(name: str, **service: str | None) -> None:
    """Show a channel and its members as a JSON line. The standard channel is ChangeEvents."""
    print_record(_channels(service).show(name))


@channel.command()
@click.argument("name")
@click.argument("entity")
@click.option(
    "--filter",
    "filter_expression",
    metavar="SOQL",
    help="Deliver only events that match this condition, such as \"City__c = 'Rome'\".  [default: "
    "all]",
)
@click.option(
    "--enrich",
    "enriched_fields",
    multiple=True,
    metavar="FIELD",
    help="A field to include in change events even if it did not change; can be repeated.",
)
@service_options
def add(
    name: str,
    entity: str,
    filter_expression: str | None,
    enriched_fields: tuple[str, ...],
    **service: str | None,
) -> None:
    """Add the event ENTITY to a channel.

    Prints the channel as a JSON line. For a channel of change events, ENTITY may be an object such
    as Account; adding an object to ChangeEvents turns on its change events.
    """
    print_record(
        _channels(service).add(
            name, entity, filter_expression=filter_expression, enriched_fields=enriched_fields
        )
    )


@channel.command()
@click.argument("name")
@click.argument("entity")
@yes_option
@service_options
def remove(name: str, entity: str, yes: bool, **service: str | None) -> None:
    """Remove the event ENTITY from a channel.

    Prints the channel as a JSON line. Subscribers of the channel no longer receive the event.
    Removing an object from ChangeEvents turns off its change events.
    """
    channels = _channels(service)
    found = channels.show(name)
    confirm(f"subscribers of {found.topic} will no longer receive {entity}. Remove the event?", yes)
    print_record(channels.remove(name, entity))


@channel.command()
@click.argument("name")
@yes_option
@service_options
def delete(name: str, yes: bool, **service: str | None) -> None:
    """Delete a channel and its members.

    Prints the deleted channel as a JSON line. Subscribers of the channel are disconnected. The
    events remain available on their own topics.
    """
    channels = _channels(service)
    found = channels.show(name)
    if found.name != STANDARD:
        confirm(f"subscribers of {found.topic} will be disconnected. Delete the channel?", yes)
    print_record(channels.delete(name))


@click.command()
@click.option(
    "--by-event",
    is_flag=True,
    help="Also print, per event type, how many events were published and delivered in the last 24 "
    "hours.",
)
@service_options
def usage(by_event: bool, **service: str | None) -> None:
    """Show how much of its event allocations the org has used, as reported by the org.

    Prints a JSON line per allocation. The figures may be several minutes old. --by-event requires
    Enhanced Usage Metrics in the org and the View All Data permission.
    """
    usages = Usages(_org(service), API_VERSION)
    print_records(usages.allocations(), "no allocations")
    if not by_event:
        return
    rows = usages.by_event()
    if rows is None:
        raise click.ClickException(
            "the org does not report usage by event: turn on Enhanced Usage Metrics "
            "(PlatformEventSettings, enableEnhancedUsageMetrics)"
        )
    print_records(rows, "no events in the last 24 hours")


def _channels(service: dict[str, str | None]) -> EventChannels:
    return EventChannels(_org(service), API_VERSION)


def _org(service: dict[str, str | None]) -> OrgClient:
    settings = Settings.load(service)
    http = HttpClient.from_settings(settings)
    return OrgClient(CurrentSession(session_provider(settings, http)), http)
