"""What is measured: each metric with its type, its unit, its meaning, and what to do about it.

The names are OpenTelemetry's: those of its messaging conventions (1.44) where there is one, and our
own under ``messaging.salesforce``. Prometheus gets the same name by OpenTelemetry's rules, so that
a dashboard works with either. docs/reference/metrics.md is made from this file, by
scripts/metrics_page.sh.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

# Attributes of every metric about a subscription: the first one, and one of the others.
SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
SUBSCRIPTION = "messaging.destination.subscription.name"
OPERATION = "messaging.operation.name"
SOURCE = (SYSTEM, DESTINATION, SUBSCRIPTION)

# Of the conventions, for OpenTelemetry.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# What `SYSTEM` is; the conventions list no name for this service, and allow others.
SYSTEM_NAME = "salesforce_pubsub"

# Upper bounds of a histogram's buckets, in seconds: from a write into Parquet (0.1 s) to one that
# /health takes for stuck (600 s).
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# Of units as OpenTelemetry writes them, what Prometheus appends to a name.
_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


class Metric(Enum):
    """Everything that is measured."""

    CONSUMED = (
        "messaging.client.consumed.messages",
        "counter",
        "{message}",
        "Events delivered to the command or to your program. Repeated events are not counted.",
        "It does not rise although events are published: look at the stream's state, then at the "
        "user's permission to read the event, or the objects of the change events.",
        (*SOURCE, OPERATION),
    )
    REDELIVERED = (
        "messaging.salesforce.redelivered.messages",
        "counter",
        "{message}",
        "Events that the service sent again and that were not delivered again.",
        "Some after each reconnect are normal. If it grows all the time, commits do not get "
        "through: look at messaging.salesforce.last_commit.time.",
        SOURCE,
    )
    RESPONSES = (
        "messaging.salesforce.responses",
        "counter",
        "{response}",
        "Messages of the service: events, keepalives and answers to commits.",
        "At least one comes every 270 s while events are wanted. None for longer: /health says so.",
        SOURCE,
    )
    RECONNECTS = (
        "messaging.salesforce.reconnects",
        "counter",
        "{reconnect}",
        "Streams opened after the first one.",
        "One in some hours is normal. Many in an hour: the network, a proxy that ends long "
        "connections, or two processes that take a managed subscription from each other.",
        SOURCE,
    )
    STREAM_OPEN = (
        "messaging.salesforce.stream.open",
        "gauge",
        "{stream}",
        "1 while the stream is open and events can come, else 0.",
        "0 for longer than a minute: the page and `sfpubsub lag` show the reason.",
        SOURCE,
    )
    LAST_MESSAGE = (
        "messaging.salesforce.last_message.time",
        "gauge",
        "s",
        "When the service last sent something, keepalives included, in seconds since 1970 UTC.",
        "More than 300 s ago: the client opens a new stream by itself. More than 330 s ago: the "
        "service cannot be reached, or does not accept the session.",
        SOURCE,
    )
    OUTSTANDING = (
        "messaging.salesforce.outstanding.messages",
        "gauge",
        "{message}",
        "Events asked for and not yet received.",
        "0 for minutes: this side does not keep up, so nothing more is asked for.",
        SOURCE,
    )
    PENDING = (
        "messaging.salesforce.pending.messages",
        "gauge",
        "{message}",
        "Events received and not yet taken by the command or your program.",
        "It stays at its limit (1,000): events come faster than they are handled.",
        SOURCE,
    )
    PENDING_SIZE = (
        "messaging.salesforce.pending.size",
        "gauge",
        "By",
        "Bytes of the payloads of those events.",
        "It stays at its limit (32 MiB): large events come faster than they are handled.",
        SOURCE,
    )
    UNACKED = (
        "messaging.salesforce.unacked.messages",
        "gauge",
        "{message}",
        "Events received and not yet acked: after a crash they come again.",
        "It grows without an end: a write is stuck, or a handler never acks.",
        SOURCE,
    )
    LAG = (
        "messaging.salesforce.lag",
        "gauge",
        "s",
        "How far behind the events we are: the age of the last acked event while others wait; how "
        "old it was when it was acked, for a minute; 0 when there is nothing more.",
        "It grows: events come faster than they are handled. Larger batches, fewer sources in one "
        "process, or a second process; docs/large-orgs.md has the arithmetic.",
        SOURCE,
    )
    ACKED_EVENT = (
        "messaging.salesforce.acked_event.time",
        "gauge",
        "s",
        "When the last acked event happened, by its own time, in seconds since 1970 UTC.",
        "The service keeps events for 72 h. Nearly as long ago while there are newer events: they "
        "will be gone for good; get the command to run, or make it faster.",
        SOURCE,
    )
    SETTLED = (
        "messaging.salesforce.settled.messages",
        "counter",
        "{message}",
        "Acked events whose position is known to be committed, or was given to the store.",
        "It does not rise while events are consumed: commits are refused, or nothing is acked.",
        SOURCE,
    )
    LAST_COMMIT = (
        "messaging.salesforce.last_commit.time",
        "gauge",
        "s",
        "When the service last confirmed a commit, in seconds since 1970 UTC. Managed "
        "subscriptions only.",
        "More than 1,200 s ago: commits are not answered; after 1,800 s the service ends the "
        "stream.",
        SOURCE,
    )
    GAPS = (
        "messaging.salesforce.gaps",
        "counter",
        "{gap}",
        "Positions that were given up, by reason: events may be missing there.",
        "Any is worth an alert. The log, the page and the sidecar _gaps of a raw table say which "
        "positions; a mirror reads what is missing from the org by itself.",
        (*SOURCE, "messaging.salesforce.gap.reason"),
    )
    QUARANTINED = (
        "messaging.salesforce.quarantined.messages",
        "counter",
        "{message}",
        "Events that could not be decoded, or handled, and were put into the quarantine.",
        "Look at them with `sfpubsub quarantine list`, and redrive them once the cause is gone.",
        SOURCE,
    )
    SKIPPED = (
        "messaging.salesforce.skipped.messages",
        "counter",
        "{message}",
        "Events that could not be decoded and were passed over, as was asked for.",
        "They are lost to you. Use a quarantine instead of `skip` if that is not meant.",
        SOURCE,
    )
    PROCESS_DURATION = (
        "messaging.process.duration",
        "histogram",
        "s",
        "How long a step took: `write` of a batch into a raw table, `table step` of a raw table's "
        "rows into tables.",
        "Writes that become slower and slower: small files (compact the table), a store that is "
        "slow, or a Spark short of memory.",
        (*SOURCE, OPERATION),
    )
    STEP_RUNNING = (
        "messaging.salesforce.step.running",
        "gauge",
        "s",
        "How long the step under way has taken so far; 0 when none is.",
        "Above 600 s /health fails and the log has the stacks of all threads: they show what it "
        "waits for.",
        (*SOURCE, OPERATION),
    )
    WRITTEN = (
        "messaging.salesforce.written.rows",
        "counter",
        "{row}",
        "Rows written to the raw table.",
        "It does not rise while events are consumed: a write is stuck, or all are duplicates.",
        SOURCE,
    )
    WRITES = (
        "messaging.salesforce.written.batches",
        "counter",
        "{batch}",
        "Batches written to the raw table.",
        "Many small ones: raise --batch-seconds or --batch-events.",
        SOURCE,
    )
    DUPLICATES = (
        "messaging.salesforce.duplicate.messages",
        "counter",
        "{message}",
        "Events that the raw table had already, and that were not written again.",
        "Some after a restart are normal. All the time: two jobs read the same, or an application "
        "publishes twice under one id.",
        SOURCE,
    )
    CONFLICTS = (
        "messaging.salesforce.conflicting.messages",
        "counter",
        "{message}",
        "Events with the id of another event and another payload, kept in the sidecar _conflicts.",
        "Investigate any: a publisher uses an id twice.",
        SOURCE,
    )
    UNDECODABLE = (
        "messaging.salesforce.undecodable.messages",
        "counter",
        "{message}",
        "Events of the raw table that could not be decoded: in the quarantine, or rows without "
        "JSON.",
        "Look at them with `sfpubsub quarantine list`; docs/quarantine.md has the causes.",
        SOURCE,
    )
    TABLE_BATCHES = (
        "messaging.salesforce.tables.batches",
        "counter",
        "{batch}",
        "Batches of the raw table that were taken into tables.",
        "It does not rise while the raw table grows: rows wait for their schemas, or a step is "
        "stuck.",
        (SYSTEM,),
    )
    TABLE_ROWS = (
        "messaging.salesforce.tables.rows",
        "counter",
        "{row}",
        "Rows added to typed tables.",
        "As for the batches.",
        (SYSTEM,),
    )
    TABLE_UNDECODABLE = (
        "messaging.salesforce.tables.undecodable.rows",
        "counter",
        "{row}",
        "Rows that could not be decoded; the table _undecodable has them with the reason.",
        "Most often a schema is missing beside the raw table: see its reason.",
        (SYSTEM,),
    )
    MIRROR_EVENTS = (
        "messaging.salesforce.mirror.events",
        "counter",
        "{event}",
        "Events laid over the records of a mirror.",
        "It does not rise while the stream has events: a step is stuck, or the mirror is paused.",
        (SYSTEM,),
    )
    MIRROR_RECORDS = (
        "messaging.salesforce.mirror.records",
        "counter",
        "{record}",
        "Records read from the org and merged.",
        "It does not rise while the re-read queue is not empty: the org refuses reads, or the "
        "budget of API calls is used up.",
        (SYSTEM,),
    )
    MIRROR_READS = (
        "messaging.salesforce.mirror.reads",
        "counter",
        "{read}",
        "Reads of whole objects that were merged to their end.",
        "Many in a day: gaps, or fields that are added, or --refresh-formulas is short.",
        (SYSTEM,),
    )
    MIRROR_CALLS = (
        "messaging.salesforce.mirror.api_calls",
        "counter",
        "{request}",
        "Requests made of the org by this run.",
        "Near the org's daily allowance: set --api-calls-per-day, and see `sfpubsub usage`.",
        (SYSTEM,),
    )
    MIRROR_QUEUE = (
        "messaging.salesforce.mirror.queue",
        "gauge",
        "{entry}",
        "Entries of the re-read queue, by object: records or objects to read from the org again.",
        "It is not empty for hours: reads wait for the budget, or the org refuses them; the log "
        "says which.",
        (SYSTEM, "messaging.salesforce.entity"),
    )
    LOG_RECORDS = (
        "messaging.salesforce.log.records",
        "counter",
        "{record}",
        "Warnings and errors in our log, by level; those left out as repetitions are counted.",
        "Read them: the page shows the last ones.",
        (SYSTEM, "level"),
    )
    FAILING = (
        "messaging.salesforce.failing",
        "gauge",
        "{situation}",
        "1 for each situation in which /health fails, else 0.",
        "docs/operations.md has a row for each situation.",
        (SYSTEM, "situation"),
    )

    def __init__(
        self, otel: str, kind: Kind, unit: str, meaning: str, cure: str, labels: tuple[str, ...]
    ) -> None:
        self.otel = otel
        """Its name in OpenTelemetry."""
        self.kind: Kind = kind
        self.unit = unit
        """As OpenTelemetry writes units (UCUM)."""
        self.meaning = meaning
        self.cure = cure
        """What looks wrong, and what to do then."""
        self.labels = labels
        """Attributes that it may have."""

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, made as OpenTelemetry's exporter makes it."""
        ending = "_total" if self.kind == "counter" else ""
        return self.otel.replace(".", "_") + _SUFFIXES.get(self.unit, "") + ending


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    return _HEAD + "".join(map(_section, Metric))


def _section(metric: Metric) -> str:
    return (
        f"\n### {metric.otel}\n\n"
        f"{metric.meaning}\n\n"
        f"- Prometheus: `{metric.prometheus}`\n"
        f"- Type and unit: {metric.kind}, `{metric.unit}`\n"
        f"- Attributes: {', '.join(f'`{label}`' for label in metric.labels)}\n"
        f"- When it looks wrong: {metric.cure}\n"
    )


_HEAD = f"""# Metrics

<!-- Made from src/sfpubsub/monitoring/metrics.py by scripts/metrics_page.sh -->

`subscribe`, `ingest`, `tables` and `mirror run` tell these with `--http PORT` under `/metrics`, in the text format of Prometheus, and through OpenTelemetry ([operations.md](../how-to/operations.md#opentelemetry)).
A program of your own tells them with `sfpubsub.monitoring.Monitor`.

The names follow OpenTelemetry's conventions for messaging, version 1.44; what these do not know is under `messaging.salesforce`.
In Prometheus dots are underscores, in attributes as well.
`messaging.system` is always `{SYSTEM_NAME}`; a topic or channel is in `messaging.destination.name`, a managed subscription in `messaging.destination.subscription.name`.
Counters begin at 0 with the process.

## What to alert on

| alert | expression in Prometheus |
|---|---|
| anything that `/health` fails for | `messaging_salesforce_failing == 1` |
| events may be missing | `increase(messaging_salesforce_gaps_total[1h]) > 0` |
| falling behind | `messaging_salesforce_lag_seconds > 3600` |
| events set aside | `increase(messaging_salesforce_quarantined_messages_total[1h]) > 0` |
| nobody is there | `up == 0`, as Prometheus itself tells |

## All of them
"""  # noqa: E501  # a sentence a line
