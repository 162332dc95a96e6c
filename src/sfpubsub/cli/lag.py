"""``sfpubsub lag``: show the progress of commands on this machine, from their status files."""

from __future__ import annotations

import time
from typing import Any, get_args

import click

from sfpubsub.cli.params import Channel, ManagedName, ReadingCommand, Topic
from sfpubsub.cli.render import json_line
from sfpubsub.cli.status import Kind, Status, read_all
from sfpubsub.config.state import state_dir
from sfpubsub.errors import ConfigurationError
from sfpubsub.monitoring.text import counted, span

# Decimal places of ages in seconds. A status file is written about once a second.
_DECIMALS = 1


@click.command(cls=ReadingCommand)
@click.option(
    "--managed",
    type=ManagedName(),
    metavar="NAME_OR_ID",
    help="Show only runs that read this managed subscription. Use the name or id that the running "
    "command uses.",
)
@click.option("--topic", type=Topic(), metavar="TOPIC", help="Show only runs that read this topic.")
@click.option(
    "--channel", type=Channel(), metavar="CHANNEL", help="Show only runs that read this channel."
)
@click.option("--endpoint", metavar="HOST:PORT", help="Show only runs that use this endpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line per run.")
def lag(
    managed: str | None,
    topic: str | None,
    channel: str | None,
    endpoint: str | None,
    as_json: bool,
) -> None:
    """Show the progress of `subscribe`, `ingest` and `mirror run` on this machine.

    Each run writes a small status file, which remains until a later run that reads the same source
    replaces it. This command reads those files and does not contact the service. It prints the most
    recently updated run first. If there are no matching runs, the exit code is 1.
    """
    given = {"managed": managed, "topic": topic, "channel": channel}
    meant = {kind: name for kind, name in given.items() if name is not None}
    if len(meant) > 1:
        raise click.UsageError("use only one of --managed, --topic and --channel")
    directory = state_dir()
    found, unreadable = read_all(directory)
    for sentence in unreadable:
        click.echo(sentence, err=True)
    chosen = [
        status
        for status in sorted(found, key=lambda status: status.updated_at, reverse=True)
        if _is_meant(status, meant) and endpoint in (None, status.endpoint)
    ]
    if not chosen:
        what = next(iter(meant.values()), "any subscription")
        raise ConfigurationError(
            f"{directory} contains no status file from subscribe, ingest or mirror for {what}: run "
            "sfpubsub lag on the same machine, and as the same user, as the command you want to "
            "check"
        )
    now = time.time()
    records = [_record(status, now) for status in chosen]
    text = "".join(map(json_line, records)) if as_json else "\n".join(map(_page, records))
    click.echo(text, nl=False)


def _is_meant(status: Status, meant: dict[str, str]) -> bool:
    return not meant or meant.get(status.kind) == status.name


def _record(status: Status, now: float) -> dict[str, Any]:
    def age(at: float | None) -> float | None:
        return None if at is None else round(max(0.0, now - at), _DECIMALS)

    delay = None
    if status.acked_at is not None and status.acked_event_at is not None:
        delay = round(max(0.0, status.acked_at - status.acked_event_at), _DECIMALS)
    return {
        status.kind: status.name,
        "endpoint": status.endpoint,
        "org": status.org,
        "command": status.command,
        "into": status.into,
        "run": status.run,
        "pid": status.pid,
        "host": status.host,
        "alive": status.is_alive(),
        "started_s": age(status.started_at),
        "ended_s": age(status.ended_at),
        "updated_s": age(status.updated_at),
        "state": status.state,
        "reason": status.reason,
        "acked_position": status.acked_position,
        "received_position": status.received_position,
        "committed_position": status.committed_position,
        "last_message_s": age(status.last_message_at),
        "last_commit_s": age(status.last_commit_at),
        "last_acked_event_s": age(status.acked_event_at),
        "last_acked_delay_s": delay,
        "delivered": status.delivered,
        "delivered_24h": status.delivered_lately(now),
        "pending": status.pending,
        "unacked": status.unacked,
        "gaps": status.gaps,
        "quarantined": status.quarantined,
        "objects": [
            {
                "object": each["entity"],
                "state": each["state"],
                "waits": each["waits"],
                "records": each["records"],
                "behind_s": age(each["behind_since"]),
                "queued": each["queued"],
                "oldest_entry_s": age(each["oldest_entry"]),
                "last_read_s": age(each["read_at"]),
                "parked_rows": each["parked_rows"],
            }
            for each in status.objects
        ],
    }


def _page(record: dict[str, Any]) -> str:
    kind = next(kind for kind in get_args(Kind) if kind in record)
    command = f"{record['command']} of {record[kind]}"
    if record["into"]:
        command += f" into {record['into']}"
    lines = [
        ("process", _process(record)),
        ("state", record["state"] + (f": {record['reason']}" if record["reason"] else "")),
        ("service", f"{record['endpoint']}, org {record['org']}"),
        ("last message", _ago(record["last_message_s"])),
        ("last acked event", _last_acked(record)),
        ("last commit", _ago(record["last_commit_s"])),
        ("acked position", record["acked_position"] or "none"),
        ("committed position", record["committed_position"] or "none"),
        ("received position", record["received_position"] or "none"),
        ("not acked yet", counted(record["pending"] + record["unacked"], "event")),
        (
            "delivered",
            f"{counted(record['delivered'], 'event')}; {record['delivered_24h']} in the last 24 h",
        ),
    ]
    if kind != "managed":  # plain subscriptions have no commits
        lines = [line for line in lines if "commit" not in line[0]]
    if record["gaps"] or record["quarantined"]:
        lines.append(
            ("check", f"{counted(record['gaps'], 'gap')}, {record['quarantined']} quarantined")
        )
    lines += [(each["object"], _object(each)) for each in record["objects"]]
    return command + "\n" + "".join(f"  {name:<19} {text}\n" for name, text in lines)


def _object(each: dict[str, Any]) -> str:
    waits = "; ".join(each["waits"].values())
    parts = [f"{each['state']}: {waits}" if waits else each["state"]]
    if each["behind_s"] is not None:
        parts.append(f"{span(each['behind_s'])} behind the stream")
    if each["queued"]:
        parts.append(f"{each['queued']} to be reread, since {span(each['oldest_entry_s'] or 0.0)}")
    if each["parked_rows"]:
        parts.append(f"{each['parked_rows']} deletions wait for a confirmation")
    return ", ".join(parts)


def _process(record: dict[str, Any]) -> str:
    who = f"pid {record['pid']}, started {_ago(record['started_s'])}"
    if record["ended_s"] is not None:
        return f"{who}, ended {_ago(record['ended_s'])}"
    if record["alive"] is None:
        return f"{who} on {record['host']}, updated {_ago(record['updated_s'])}"
    if record["alive"]:
        return f"{who}, running, updated {_ago(record['updated_s'])}"
    return f"{who}, ended without a clean exit, {_ago(record['updated_s'])} or later"


def _last_acked(record: dict[str, Any]) -> str:
    if record["acked_position"] is None:
        return "none"
    if record["last_acked_event_s"] is None:
        return "has no event time"
    delay = span(record["last_acked_delay_s"])
    return f"occurred {_ago(record['last_acked_event_s'])}, acked {delay} later"


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{span(seconds)} ago"
