"""``sfpubsub subscribe --channel``: print events from the Streaming API as JSON lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import click

from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.render import json_line
from sfpubsub.cli.service import StopRequest
from sfpubsub.errors import ConfigurationError, StreamUnavailableError
from sfpubsub.monitoring.text import counted
from sfpubsub.stores.file_replay_store import FileReplayStore
from sfpubsub.streaming import StreamingClient, StreamingMessage, as_replay_id
from sfpubsub.streaming.positions import as_number
from sfpubsub.types import Gap, Replay

# Seconds between checks for a stop requested by a signal; too short to be noticed by a user.
_POLL = 0.2


def run(
    ctx: click.Context,
    channel: str,
    *,
    replay: str | None,
    store_file: str | None,
    fallback: str | None,
    max_events: int | None,
    idle_timeout: float | None,
    service: Mapping[str, str | None],
) -> None:
    """Print a channel's events as JSON lines, then unsubscribe and disconnect.

    The function returns when a signal requests a stop, after *max_events* events, or after
    *idle_timeout* seconds without an event. With *store_file*, an event's position is stored once
    its line has been flushed.
    """
    start = _start(replay)
    count, silent_since = 0, time.monotonic()
    with ExitStack() as opened:
        source: Replay | FileReplayStore = start
        if store_file is not None:
            source = opened.enter_context(FileReplayStore(store_file, default=start))
        client = StreamingClient.from_env(
            service,
            replay=source,
            replay_fallback=None if fallback in (None, "stop") else fallback,
            replay_policy="manual",
            on_gap=_tell,
        )
        stop = opened.enter_context(StopRequest().installed())
        opened.enter_context(client)
        client.subscribe(channel)
        while not stop.requested and (max_events is None or count < max_events):
            message = _next(client)
            now = time.monotonic()
            if message is not None:
                sys.stdout.write(json_line(line_of(message)))
                sys.stdout.flush()
                if message.replay_id is not None:
                    client.ack(message)
                count, silent_since = count + 1, now
            elif idle_timeout is not None and now - silent_since >= idle_timeout:
                break
        client.unsubscribe(channel)
    click.echo(counted(count, "event"), err=True)
    if stop.interrupted:
        ctx.exit(INTERRUPTED)


def line_of(message: StreamingMessage) -> dict[str, Any]:
    """Convert a message to the dict that is printed as a JSON line.

    The keys are those that ``subscribe --topic`` prints, plus ``type`` and ``created_date``.
    """
    data = message.data if isinstance(message.data, dict) else {"payload": message.data}
    about = data.get("event")
    return {
        "topic": message.channel,
        "subscription": message.subscription,
        "event_id": about.get("EventUuid") if isinstance(about, dict) else None,
        "replay_id": message.replay_id,
        "schema_id": data.get("schema"),
        "event_name": message.channel.rpartition("/")[2],
        "type": message.type,
        "created_date": message.created_date,
        "payload": data.get("sobject", data.get("payload")),
    }


def _next(client: StreamingClient) -> StreamingMessage | None:
    try:
        return client.receive(_POLL)
    except StreamUnavailableError as error:
        if client.closed:
            raise
        click.echo(f"waiting: {error}", err=True)  # the client keeps trying
        return None


def _start(replay: str | None) -> Replay:
    try:
        number = -1 if replay is None else as_number(int(replay))
    except (ValueError, ConfigurationError) as error:
        raise click.BadParameter(
            f"{replay!r} is not valid: use -1 (new events), -2 (all stored events) or a replay id",
            param_hint="--replay",
        ) from error
    return {-1: "latest", -2: "earliest"}.get(number) or as_replay_id(number)


def _tell(gap: Gap) -> None:
    click.echo(f"warning: {gap}", err=True)
