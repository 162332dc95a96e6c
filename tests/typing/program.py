"""A typical user program; only read by type checkers, never executed."""

from __future__ import annotations

from collections.abc import Iterator

from sfpubsub import (
    CommitError,
    Event,
    FieldState,
    FileQuarantine,
    FileReplayStore,
    Gap,
    PubSubClient,
    ReplayIdRejectedError,
)


def print_gap(gap: Gap) -> None:
    """Print why and after which position events were lost."""
    print(gap.reason == "rejected", gap.after.hex() if gap.after else "the start")


def phones(event: Event) -> Iterator[tuple[str, str]]:
    """Yield a record id and phone number for each record whose phone has changed."""
    change = event.change_event
    if change is not None and not change.is_gap:
        field = change.change("Phone")
        if field.state is FieldState.CHANGED:
            yield from ((record_id, str(field.value)) for record_id in change.record_ids)


def follow(topic: str) -> dict[str, str]:
    """Read a topic's events indefinitely, and collect the phone number of each record."""
    found: dict[str, str] = {}
    with (
        PubSubClient.from_env(datetimes=True) as client,
        FileReplayStore("positions") as store,
        client.subscribe(
            topic,
            replay="earliest",
            replay_store=store,
            on_gap=print_gap,
            on_undecodable="quarantine",
            quarantine=FileQuarantine("kept"),
        ) as subscription,
    ):
        for event in subscription.events():
            found.update(phones(event))
    return found


def commit(name: str, timeout: float) -> bytes | None:
    """Read and commit a batch; return the committed position, or None if nothing was committed."""
    with PubSubClient.from_env() as client, client.subscribe_managed(name) as subscription:
        batch = subscription.next_batch(timeout)
        if batch is None or subscription.health().state == "waiting":
            return None
        try:
            return bytes(subscription.commit().replay_id)
        except (CommitError, ReplayIdRejectedError) as error:
            print(error.rpc_id, error.retryable)
            return None
