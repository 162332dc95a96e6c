"""``sfpubsub managed``: administer managed subscriptions, and wait until a change takes effect.

Only subscribing shows whether a change has reached the Pub/Sub API. `create` and `start` therefore
subscribe briefly, without acking events.
"""

from __future__ import annotations

import time

import click

from sfpubsub.cli.params import Topic, confirm, yes_option
from sfpubsub.cli.results import print_record, print_records
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

# Seconds without a rejection after which a subscription counts as accepted. Rejections arrive
# within a second or two; the first event or keepalive, which confirms acceptance, may take minutes.
ACCEPTED = 4.0

_POLL = 0.1

_preset = click.Choice(PRESETS, case_sensitive=False)
_shown = "|".join(PRESETS)
_wait_option = click.option(
    "--wait/--no-wait",
    default=True,
    help="Wait until the service accepts the subscription. The command checks this by subscribing "
    "briefly.  [default: wait]",
)


@click.group()
def managed() -> None:
    """Administer the org's managed subscriptions.

    Changing managed subscriptions requires the Customize Application permission; viewing them
    requires View Setup and Configuration.
    """


@managed.command("list")
@service_options
def list_(**service: str | None) -> None:
    """List the org's managed subscriptions.

    Prints a JSON line per subscription.
    """
    tooling = Tooling.from_env(service)
    print_records(tooling.list(), "no managed subscriptions")


@managed.command()
@click.argument("name_or_id")
@service_options
def show(name_or_id: str, **service: str | None) -> None:
    """Show one managed subscription.

    Prints a JSON line. The position is not included, because the API does not expose it; `sfpubsub
    lag` shows the position on the machine that reads the subscription.
    """
    tooling = Tooling.from_env(service)
    print_record(tooling.show(name_or_id))


@managed.command()
@click.argument("name")
@click.option(
    "--topic",
    type=Topic(),
    metavar="TOPIC",
    required=True,
    help="Topic to read; cannot be changed later.",
)
@click.option("--label", metavar="TEXT", help="Human-readable label.  [default: NAME]")
@click.option(
    "--default-replay",
    type=_preset,
    metavar=_shown,
    default="EARLIEST",
    show_default=True,
    help="Where to start if no position is committed.",
)
@click.option(
    "--error-recovery-replay",
    type=_preset,
    metavar=_shown,
    default="EARLIEST",
    show_default=True,
    help="Where to continue if the committed position has expired.",
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

    Sets the state to RUN, and prints the record as a JSON line. NAME and TOPIC cannot be changed
    later. With EARLIEST, the subscription starts with the oldest event that the service still
    retains, at most 72 hours back; these deliveries count against the org's allocation. With
    LATEST, the service stores no position before the first confirmed commit, so a crash before that
    commit loses events.
    """
    tooling = Tooling.from_env(service)
    record = tooling.create(
        name,
        topic,
        label=label,
        default_replay=default_replay,
        error_recovery_replay=error_recovery_replay,
    )
    print_record(record)
    if default_replay == "LATEST":
        _say("with LATEST, a crash before the first confirmed commit loses events")
    else:
        _say(
            "starting with the oldest retained event (EARLIEST), so that a crash before the first "
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
    help="Where to start if no position is committed.",
)
@click.option(
    "--error-recovery-replay",
    type=_preset,
    metavar=_shown,
    help="Where to continue if the committed position has expired.",
)
@service_options
def update(
    name_or_id: str,
    label: str | None,
    default_replay: str | None,
    error_recovery_replay: str | None,
    **service: str | None,
) -> None:
    """Change the label or a replay preset.

    Prints the record as a JSON line. The name and the topic cannot be changed: create another
    subscription instead. A preset matters only when a stream starts without a valid position. The
    change may take several minutes to take effect.
    """
    if label is None and default_replay is None and error_recovery_replay is None:
        raise click.UsageError(
            "nothing to change: use --label, --default-replay or --error-recovery-replay"
        )
    tooling = Tooling.from_env(service)
    record = tooling.update(
        name_or_id,
        label=label,
        default_replay=default_replay,
        error_recovery_replay=error_recovery_replay,
    )
    print_record(record)


@managed.command()
@click.argument("name_or_id")
@_wait_option
@service_options
def start(name_or_id: str, wait: bool, **service: str | None) -> None:
    """Start a stopped managed subscription.

    Sets the state to RUN, and prints the record as a JSON line. The subscription begins at its
    default replay preset, because stopping it deleted its position.
    """
    tooling = Tooling.from_env(service)
    record = tooling.start(name_or_id)
    print_record(record)
    if wait:
        _wait_until_served(record, tooling, service)


@managed.command()
@click.argument("name_or_id")
@yes_option
@service_options
def stop(name_or_id: str, yes: bool, **service: str | None) -> None:
    """Stop a managed subscription and delete its committed position.

    Sets the state to STOP, and prints the record as a JSON line. The client that reads the
    subscription is disconnected. To keep the position, stop the client instead.
    """
    tooling = Tooling.from_env(service)
    record = tooling.show(name_or_id)
    confirm(f"{_forgets(record)}. Stop the subscription?", yes)
    record = tooling.stop(record.id)
    print_record(record)
    _say(
        "the client that reads the subscription receives an error within minutes; the committed "
        "position is deleted"
    )


@managed.command()
@click.argument("name_or_id")
@yes_option
@service_options
def delete(name_or_id: str, yes: bool, **service: str | None) -> None:
    """Delete a managed subscription and its committed position.

    Prints the deleted record as a JSON line. The client that reads the subscription is
    disconnected. Do not reuse the name for several minutes.
    """
    tooling = Tooling.from_env(service)
    record = tooling.show(name_or_id)
    confirm(
        f"this also deletes the committed position of {_what(record)}. Delete the subscription?",
        yes,
    )
    record = tooling.delete(record.id)
    print_record(record)
    _say(
        f"do not reuse the name {record.developer_name} soon: for several minutes the service may "
        f"still associate it with the old record"
    )


def _say(text: str) -> None:
    click.echo(text, err=True)


def _what(record: ManagedEventSubscription) -> str:
    return f"{record.developer_name} ({record.id}, {record.topic_name})"


def _forgets(record: ManagedEventSubscription) -> str:
    begins = (
        "with new events, so that events published before the restart are lost"
        if record.default_replay == "LATEST"
        else "with the oldest retained event, so that up to 72 hours of events are redelivered"
    )
    return (
        f"this deletes the committed position of {_what(record)}: after a restart, the "
        f"subscription begins "
        f"{begins}"
    )


# Waiting for the Pub/Sub API.


def _wait_until_served(
    record: ManagedEventSubscription, tooling: Tooling, service: dict[str, str | None]
) -> None:
    name = record.developer_name
    with connected_client(None, tooling.sessions, **service) as client:
        _say(
            f"waiting until {name} is available in the Pub/Sub API, which can take several minutes"
        )
        wait_until(
            f"{name} is available",
            lambda: _is_served(client, name),
            timeout=PROPAGATION,
            every=CHECK_EVERY,
            progress=lambda seconds: _say(f"still waiting after {seconds:.0f} s"),
        )
    _say(f"{name} is available")


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
                # A reason is set if another client reads the subscription or the network is down. A
                # network failure ends within the connection timeout, so wait a little longer than
                # that.
                if now >= (deadline if health.reason is None else deadline + ACCEPTED):
                    return True
                subscription.next_batch(_POLL)
    except (SubscriptionNotFoundError, SubscriptionStoppedError, StreamUnavailableError):
        return False
