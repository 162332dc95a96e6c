"""Commands for PushTopics and generic channels.

``sfpubsub pushtopic`` administers PushTopics, and ``sfpubsub push`` pushes an event to a generic
channel.
"""

from __future__ import annotations

import sys

import click

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.cli.params import confirm, yes_option
from sfpubsub.cli.results import print_record, print_records
from sfpubsub.cli.service import service_options
from sfpubsub.config import Settings
from sfpubsub.streaming import PushTopics
from sfpubsub.tooling.pushtopics import GenericChannels

_OPERATIONS = ("create", "update", "delete", "undelete")


@click.group()
def pushtopic() -> None:
    """Administer PushTopics, which publish changes in a query's results on /topic/NAME."""


@pushtopic.command()
@click.argument("name")
@click.argument("query")
@click.option(
    "--on",
    "operations",
    type=click.Choice(_OPERATIONS),
    multiple=True,
    help="Operation that causes events; can be repeated.  [default: all]",
)
@click.option(
    "--notify-for-fields",
    type=click.Choice(["Referenced", "All", "Select", "Where"]),
    default="Referenced",
    show_default=True,
    help="Which changed fields cause events: those that the query selects (Select), those in its "
    "WHERE clause (Where), both (Referenced), or all fields of the object (All).",
)
@service_options
def create(
    name: str,
    query: str,
    operations: tuple[str, ...],
    notify_for_fields: str,
    **service: str | None,
) -> None:
    """Create a PushTopic from a SOQL query, and print it as a JSON line."""
    topics, _ = _objects(service)
    made = topics.create(
        name, query, operations=operations or _OPERATIONS, notify_for_fields=notify_for_fields
    )
    print_record(made)


@pushtopic.command("list")
@service_options
def list_(**service: str | None) -> None:
    """List the org's PushTopics, one JSON line each."""
    print_records(_objects(service)[0].list(), "no PushTopics")


@pushtopic.command()
@click.argument("name")
@service_options
def show(name: str, **service: str | None) -> None:
    """Show one PushTopic as a JSON line."""
    print_record(_objects(service)[0].show(name))


@pushtopic.command()
@click.argument("name")
@yes_option
@service_options
def delete(name: str, yes: bool, **service: str | None) -> None:
    """Delete a PushTopic, and print it as a JSON line. Its subscribers no longer receive events."""
    topics, _ = _objects(service)
    confirm(
        f"subscribers of /topic/{topics.show(name).name} will no longer receive events. Delete the "
        f"PushTopic?",
        yes,
    )
    print_record(topics.delete(name))


@click.command()
@click.argument("channel")
@click.argument("payload", required=False)
@click.option(
    "--to",
    "user_ids",
    multiple=True,
    metavar="ID",
    help="Id of a user who receives the event; can be repeated.  [default: all users]",
)
@service_options
def push(
    channel: str, payload: str | None, user_ids: tuple[str, ...], **service: str | None
) -> None:
    """Push an event with PAYLOAD (default: stdin) to a generic channel such as /u/News.

    Prints a JSON line with the number of users who received the event, or -1 for a broadcast.
    """
    text = sys.stdin.read() if payload is None else payload
    count = _objects(service)[1].push(channel, text, user_ids)
    print_record({"channel": channel, "fanout_count": count})


def _objects(service: dict[str, str | None]) -> tuple[PushTopics, GenericChannels]:
    settings = Settings.load(service)
    sessions = CurrentSession(session_provider(settings))
    org = OrgClient(sessions, HttpClient.from_settings(settings))
    version = settings.streaming_api_version
    return PushTopics(org, version), GenericChannels(org, version)
