"""``sfpubsub managed``: the records of managed subscriptions, and the wait until a change works.

Whether a change has reached the Pub/Sub API shows only when one subscribes: so `create` and `start`
do, for a moment, and ack nothing.
"""

from __future__ import annotations

import dataclasses
import sys
import time

import click

from sfpubsub.cli.params import Topic
from sfpubsub.cli.render import json_line
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.client.client import PubSubClient
from sfpubsub.errors import (
    StreamUnavailableError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
)
from sfpubsub.tooling import (
    CHECK_EVERY,
    PROPAGATION,
    ManagedEventSubscription,
    Tooling,
    wait_until,
)
from sfpubsub.tooling.records import PRESETS

# Seconds without a refusal after which a subscription counts as known. Refusals come within one or
# two; an acceptance shows only with the first event or keepalive, which may take minutes.
ACCEPTED = 4.0

_POLL = 0.1

_preset = click.Choice(PRESETS, case_sensitive=False)
_shown = "|".join(PRESETS)
_wait_option = click.option(
    "--wait/--no-wait",
    default=True,
    help="Wait until one can subscribe, by subscribing for a moment.  [default: wait]",
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group()
def managed() -> None:
    """Administer managed subscriptions: the org's records of who reads which topic.

    Changes need the permission Customize Application, looking needs View Setup and Configuration.
    """


@managed.command("list")
@service_options
def list_(**service: str | None) -> None:
    """List the org's managed subscriptions.

    Prints a JSON line for each.
    """
    tooling = Tooling.from_env(service)
    for record in tooling.list():
        _show(record)


@managed.command()
@click.argument("name_or_id")
@service_options
def show(name_or_id: str, **service: str | None) -> None:
    """Show one managed subscription.

    Prints a JSON line. The position is not in it: the API does not tell it. `sfpubsub lag` does, on
    the machine that reads the subscription.
    """
    tooling = Tooling.from_env(service)
    _show(tooling.show(name_or_id))


@managed.command()
@click.argument("name")
@click.option(
    "--topic", type=Topic(), metavar="TOPIC", required=True, help="What it reads, for good."
)
@click.option("--label", metavar="TEXT", help="Human-readable label.  [default: NAME]")
@click.option(
    "--default-replay",
    type=_preset,
    metavar=_shown,
    default="EARLIEST",
    show_default=True,
    help="Where it starts while nothing is committed.",
)
@click.option(
    "--error-recovery-replay",
    type=_preset,
    metavar=_shown,
    default="EARLIEST",
    show_default=True,
    help="Where it continues when its position has expired.",
)
@_wait_option
@service_options
def create(
    name: str,
    topic: str,
    label: str | None,
    default_replay: str,
    error_recovery_replay: str,
    wait: bool,
    **service: str | None,
) -> None:
    """Create a managed subscription.

    It is in state RUN; its record is printed as a JSON line. NAME and TOPIC cannot be changed
    later. EARLIEST starts with the oldest event that the service still has, 72 hours back at most;
    these deliveries count for the org's allocation. With LATEST the service remembers nothing
    before the first confirmed commit: a crash before it loses events.
    """
    tooling = Tooling.from_env(service)
    record = tooling.create(
        name,
        topic,
        label=label,
        default_replay=default_replay,
        error_recovery_replay=error_recovery_replay,
    )
    _show(record)
    if default_replay == "LATEST":
        _say("with LATEST, a crash before the first confirmed commit loses events")
    else:
        _say(
            "starts with the oldest event retained (EARLIEST), so that a crash before the first "
            "confirmed commit loses nothing"
        )
    if wait:
        _wait_until_served(record, tooling, service)


@managed.command()
@click.argument("name_or_id")
@click.option("--label", metavar="TEXT", help="Human-readable label.")
@click.option(
    "--default-replay",
    type=_preset,
    metavar=_shown,
    help="Where it starts while nothing is committed.",
)
@click.option(
    "--error-recovery-replay",
    type=_preset,
    metavar=_shown,
    help="Where it continues when its position has expired.",
)
@service_options
def update(
    name_or_id: str,
    label: str | None,
    default_replay: str | None,
    error_recovery_replay: str | None,
    **service: str | None,
) -> None:
    """Change the label or a preset.

    Prints the record as a JSON line. Name and topic cannot be changed: create another one. A preset
    is looked at when a stream starts without a valid position; it may take some minutes to be
    known.
    """
    if label is None and default_replay is None and error_recovery_replay is None:
        raise click.UsageError("give --label, --default-replay or --error-recovery-replay")
    tooling = Tooling.from_env(service)
    record = tooling.update(
        name_or_id,
        label=label,
        default_replay=default_replay,
        error_recovery_replay=error_recovery_replay,
    )
    _show(record)


@managed.command()
@click.argument("name_or_id")
@_wait_option
@service_options
def start(name_or_id: str, wait: bool, **service: str | None) -> None:
    """Let it run again.

    Sets the state to RUN, and prints the record as a JSON line. After a stop it begins at its
    default replay: the stop has deleted its position.
    """
    tooling = Tooling.from_env(service)
    record = tooling.start(name_or_id)
    _show(record)
    if wait:
        _wait_until_served(record, tooling, service)


@managed.command()
@click.argument("name_or_id")
@_yes_option
@service_options
def stop(name_or_id: str, yes: bool, **service: str | None) -> None:
    """Stop it; its position is deleted.

    Sets the state to STOP, and prints the record as a JSON line. This ends a client that reads it,
    and deletes its committed position. To end a client and keep the position, end the client.
    """
    tooling = Tooling.from_env(service)
    record = tooling.show(name_or_id)
    _confirm(f"{_forgets(record)}. Stop it?", yes)
    record = tooling.stop(record.id)
    _show(record)
    _say("a client that reads it gets an error within minutes; its committed position is deleted")


@managed.command()
@click.argument("name_or_id")
@_yes_option
@service_options
def delete(name_or_id: str, yes: bool, **service: str | None) -> None:
    """Delete it, with its position.

    Prints what it was as a JSON line. This ends a client that reads it, and deletes its committed
    position. Its name should not be used again soon.
    """
    tooling = Tooling.from_env(service)
    record = tooling.show(name_or_id)
    _confirm(f"the committed position of {_what(record)} is deleted with it. Delete it?", yes)
    record = tooling.delete(record.id)
    _show(record)
    _say(
        f"do not use the name {record.developer_name} again soon: for some minutes the service may "
        f"still know the old one by it"
    )


def _show(record: ManagedEventSubscription) -> None:
    click.echo(json_line(dataclasses.asdict(record)), nl=False)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _what(record: ManagedEventSubscription) -> str:
    return f"{record.developer_name} ({record.id}, {record.topic_name})"


def _forgets(record: ManagedEventSubscription) -> str:
    begins = (
        "with events published from then on, and those before are lost"
        if record.default_replay == "LATEST"
        else "with the oldest event retained, so that up to 72 hours come again"
    )
    return f"the committed position of {_what(record)} is deleted; started again it begins {begins}"


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this deletes a position and there is nobody to ask: give --yes")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")


# Whether the Pub/Sub API knows.


def _wait_until_served(
    record: ManagedEventSubscription, tooling: Tooling, service: dict[str, str | None]
) -> None:
    name = record.developer_name
    with connected_client(None, tooling.sessions, **service) as client:
        _say(f"waiting until {name} is known to the Pub/Sub API, which takes some minutes")
        wait_until(
            f"{name} is known",
            lambda: _is_served(client, name),
            timeout=PROPAGATION,
            every=CHECK_EVERY,
            progress=lambda seconds: _say(f"not yet after {seconds:.0f} s"),
        )
    _say(f"{name} can be subscribed to")


def _is_served(client: PubSubClient, name: str) -> bool:
    deadline = time.monotonic() + ACCEPTED
    try:
        with client.subscribe_managed(
            name, ack="manual", connection_timeout=ACCEPTED
        ) as subscription:
            while True:
                health, now = subscription.health(), time.monotonic()
                if health.state == "streaming":
                    return True
                # With a reason: held by another, or the network is down. The second one is given
                # up within the connection timeout, which the first one does not count for.
                if now >= (deadline if health.reason is None else deadline + ACCEPTED):
                    return True
                subscription.next_batch(_POLL)
    except (SubscriptionNotFoundError, SubscriptionStoppedError, StreamUnavailableError):
        return False
