"""The metrics: type, unit, meaning, and what to do if a metric looks wrong.

Names follow OpenTelemetry's messaging conventions (1.44) where one applies; the others begin with
``messaging.salesforce``. The names under ``/metrics`` are derived by OpenTelemetry's rules for
Prometheus, so that a dashboard also works with metrics that reach Prometheus through OpenTelemetry.
scripts/metrics_page.sh generates docs/reference/metrics.md from this file.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

# Attributes of every subscription metric: SYSTEM, and either DESTINATION or SUBSCRIPTION.
SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
SUBSCRIPTION = "messaging.destination.subscription.name"
OPERATION = "messaging.operation.name"
ENTITY = "messaging.salesforce.entity"
SOURCE = (SYSTEM, DESTINATION, SUBSCRIPTION)

# Schema of the conventions, for OpenTelemetry.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# Value of `SYSTEM`. The conventions define no name for this service, but allow custom ones.
SYSTEM_NAME = "salesforce_pubsub"

# Upper bounds of a histogram's buckets, in seconds: from a write to Parquet (0.1 s) to one that
# /health considers stuck (600 s).
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# Suffix that Prometheus appends to a name, by OpenTelemetry unit.
_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


class Metric(Enum):
    """All metrics, each with its name, type, unit, meaning, advice and attributes."""

    CONSUMED = (
        "messaging.client.consumed.messages",
        "counter",
        "{message}",
        "Events delivered to the command or to your program. Redelivered events are not counted.",
        "If it does not rise although events are published, check the stream's state, then the "
        "user's permission to read the event or the objects of the change events.",
        (*SOURCE, OPERATION),
    )
    REDELIVERED = (
        "messaging.salesforce.redelivered.messages",
        "counter",
        "{message}",
        "Events that the service sent again and that were dropped as duplicates.",
        "Some after each reconnect are normal. If the number grows constantly, commits are "
        "failing: check messaging.salesforce.last_commit.time.",
        SOURCE,
    )
    RESPONSES = (
        "messaging.salesforce.responses",
        "counter",
        "{response}",
        "Messages received from the service: events, keepalives and commit responses.",
        "At least one arrives every 270 s while events are requested. If none arrives for longer, "
        "/health fails.",
        SOURCE,
    )
    RECONNECTS = (
        "messaging.salesforce.reconnects",
        "counter",
        "{reconnect}",
        "Streams opened after the first one.",
        "One every few hours is normal. Many per hour point to the network, a proxy that ends "
        "long connections, or two processes that compete for a managed subscription.",
        SOURCE,
    )
    STREAM_OPEN = (
        "messaging.salesforce.stream.open",
        "gauge",
        "{stream}",
        "1 while the stream is open and can receive events, else 0.",
        "If it is 0 for more than a minute, the page and `sfpubsub lag` show the reason.",
        SOURCE,
    )
    LAST_MESSAGE = (
        "messaging.salesforce.last_message.time",
        "gauge",
        "s",
        "When the service last sent a message, including keepalives, in seconds since the epoch.",
        "After 300 s without a message, the client opens a new stream. After 330 s, the service "
        "cannot be reached, or does not accept the session.",
        SOURCE,
    )
    OUTSTANDING = (
        "messaging.salesforce.outstanding.messages",
        "gauge",
        "{message}",
        "Events requested and not yet received.",
        "If it is 0 for minutes, the consumer does not keep up, so no more events are requested.",
        SOURCE,
    )
    PENDING = (
        "messaging.salesforce.pending.messages",
        "gauge",
        "{message}",
        "Events received and not yet consumed by the command or your program.",
        "If it stays at its limit (1,000), events arrive faster than they are processed.",
        SOURCE,
    )
    PENDING_SIZE = (
        "messaging.salesforce.pending.size",
        "gauge",
        "By",
        "Payload bytes of the pending events.",
        "If it stays at its limit (32 MiB), large events arrive faster than they are processed.",
        SOURCE,
    )
    UNACKED = (
        "messaging.salesforce.unacked.messages",
        "gauge",
        "{message}",
        "Events received and not yet acked. They are redelivered after a crash.",
        "If it keeps growing, a write is stuck, or a handler never acks.",
        SOURCE,
    )
    LAG = (
        "messaging.salesforce.lag",
        "gauge",
        "s",
        "How far processing is behind the events. While events wait, it is the age of the last "
        "acked event. While none wait, it is the age that the last acked event had when it was "
        "acked, and 0 from a minute after that ack on.",
        "If it grows, events arrive faster than they are processed. Use larger batches, fewer "
        "sources per process, or a second process; docs/how-to/large-orgs.md shows how to "
        "calculate this.",
        SOURCE,
    )
    ACKED_EVENT = (
        "messaging.salesforce.acked_event.time",
        "gauge",
        "s",
        "When the last acked event occurred, by its own timestamp, in seconds since the epoch.",
        "The service retains events for 72 h. If this time is almost 72 h ago and newer events "
        "exist, those events will soon be lost: start the command, or make it faster.",
        SOURCE,
    )
    SETTLED = (
        "messaging.salesforce.settled.messages",
        "counter",
        "{message}",
        "Acked events whose position was committed, or passed to the store.",
        "If it does not rise while events are consumed, commits are refused, or nothing is acked.",
        SOURCE,
    )
    LAST_COMMIT = (
        "messaging.salesforce.last_commit.time",
        "gauge",
        "s",
        "When the service last confirmed a commit, in seconds since the epoch. Managed "
        "subscriptions only.",
        "After 1,200 s, the service is not answering commits. After 1,800 s, it ends the stream.",
        SOURCE,
    )
    GAPS = (
        "messaging.salesforce.gaps",
        "counter",
        "{gap}",
        "Lost positions, by reason. Events may be missing at each of them.",
        "Alert on any gap. The log, the page and the sidecar _gaps of a raw table name the "
        "positions; a mirror reads the missing data from the org automatically.",
        (*SOURCE, "messaging.salesforce.gap.reason"),
    )
    QUARANTINED = (
        "messaging.salesforce.quarantined.messages",
        "counter",
        "{message}",
        "Events that were quarantined because they could not be decoded or handled.",
        "List them with `sfpubsub quarantine list`, and redrive them once the cause is fixed.",
        SOURCE,
    )
    SKIPPED = (
        "messaging.salesforce.skipped.messages",
        "counter",
        "{message}",
        "Events that could not be decoded and were skipped, as configured.",
        "These events are lost. If that is not intended, use a quarantine instead of `skip`.",
        SOURCE,
    )
    PROCESS_DURATION = (
        "messaging.process.duration",
        "histogram",
        "s",
        "How long an operation took: a `write` writes one batch to a raw table, a `table step` "
        "processes some batches of a raw table into other tables.",
        "If writes keep getting slower, look for many small files (compact the table), slow "
        "storage, or Spark running short of memory.",
        (*SOURCE, OPERATION),
    )
    STEP_RUNNING = (
        "messaging.salesforce.step.running",
        "gauge",
        "s",
        "How long the `write` or `table step` that is running has taken so far; 0 if none is "
        "running.",
        "Above 600 s, /health fails and the stacks of all threads are logged; they show what the "
        "operation is waiting for.",
        (*SOURCE, OPERATION),
    )
    WRITTEN = (
        "messaging.salesforce.written.rows",
        "counter",
        "{row}",
        "Rows written to the raw table.",
        "If it does not rise while events are consumed, a write is stuck, or all events are "
        "duplicates.",
        SOURCE,
    )
    WRITES = (
        "messaging.salesforce.written.batches",
        "counter",
        "{batch}",
        "Batches written to the raw table.",
        "If there are many small batches, raise --batch-seconds or --batch-events.",
        SOURCE,
    )
    DUPLICATES = (
        "messaging.salesforce.duplicate.messages",
        "counter",
        "{message}",
        "Events that were already in the raw table and were not written again.",
        "Some after a restart are normal. If the number grows constantly, two jobs read the same "
        "source, or an application publishes each event twice with the same id.",
        SOURCE,
    )
    CONFLICTS = (
        "messaging.salesforce.conflicting.messages",
        "counter",
        "{message}",
        "Events that have the id of an earlier event but a different payload; they are kept in "
        "the sidecar _conflicts.",
        "Investigate each one: a publisher reuses ids.",
        SOURCE,
    )
    UNDECODABLE = (
        "messaging.salesforce.undecodable.messages",
        "counter",
        "{message}",
        "Events of the raw table that could not be decoded: quarantined, or stored as rows "
        "without JSON.",
        "List them with `sfpubsub quarantine list`; docs/how-to/quarantine.md lists the causes.",
        SOURCE,
    )
    TABLE_BATCHES = (
        "messaging.salesforce.tables.batches",
        "counter",
        "{batch}",
        "Batches of the raw table that were processed into tables.",
        "If it does not rise while the raw table grows, rows are waiting for their schemas, or a "
        "step is stuck.",
        (SYSTEM,),
    )
    TABLE_ROWS = (
        "messaging.salesforce.tables.rows",
        "counter",
        "{row}",
        "Rows added to typed tables.",
        "See messaging.salesforce.tables.batches.",
        (SYSTEM,),
    )
    TABLE_UNDECODABLE = (
        "messaging.salesforce.tables.undecodable.rows",
        "counter",
        "{row}",
        "Rows that could not be decoded; they are in the table _undecodable, with the reason.",
        "In most cases, a schema is missing from the raw table's schema store; the reason names "
        "it.",
        (SYSTEM,),
    )
    MIRROR_EVENTS = (
        "messaging.salesforce.mirror.events",
        "counter",
        "{event}",
        "Events applied to the records of a mirror.",
        "If it does not rise while the stream has events, a step is stuck, or the mirror is "
        "paused.",
        (SYSTEM,),
    )
    MIRROR_RECORDS = (
        "messaging.salesforce.mirror.records",
        "counter",
        "{record}",
        "Records read from the org and merged.",
        "If it does not rise while the re-read queue is not empty, the org refuses reads, or the "
        "API call budget is used up.",
        (SYSTEM,),
    )
    MIRROR_READS = (
        "messaging.salesforce.mirror.reads",
        "counter",
        "{read}",
        "Full reads of an object that were merged completely.",
        "Many per day point to gaps, newly added fields, or a short --refresh-formulas interval.",
        (SYSTEM,),
    )
    MIRROR_CALLS = (
        "messaging.salesforce.mirror.api_calls",
        "counter",
        "{request}",
        "API requests made to the org by this run.",
        "If it approaches the org's daily limit, set --api-calls-per-day, and see `sfpubsub "
        "usage`.",
        (SYSTEM,),
    )
    MIRROR_QUEUE = (
        "messaging.salesforce.mirror.queue",
        "gauge",
        "{entry}",
        "Entries of the re-read queue, by object: records or objects to read from the org again.",
        "If it does not become 0 for hours, the API call budget is used up, or the org refuses "
        "reads; the log shows which.",
        (SYSTEM, ENTITY),
    )
    MIRROR_BEHIND = (
        "messaging.salesforce.mirror.behind",
        "gauge",
        "s",
        "For how long the oldest event that is in the raw table and not in the mirror's table has "
        "been waiting, by object; 0 if all are applied.",
        "If it grows for minutes, steps are slow or stuck, or the mirror is paused; the page shows "
        "which.",
        (SYSTEM, ENTITY),
    )
    MIRROR_WAITING = (
        "messaging.salesforce.mirror.waiting",
        "gauge",
        "{reason}",
        "1 while an object waits, by object and reason: rights, gone, deselected, read (a failed "
        "read or the limit of API calls), or paused; else 0.",
        "The page says what happened and what to do.",
        (SYSTEM, ENTITY, "messaging.salesforce.wait.reason"),
    )
    MIRROR_PARKED = (
        "messaging.salesforce.mirror.parked.rows",
        "gauge",
        "{row}",
        "Rows that wait until somebody confirms that their records were deleted, by object.",
        "Check some of them in the org, then run `sfpubsub mirror signal --confirm-deletes`.",
        (SYSTEM, ENTITY),
    )
    MIRROR_REPAIRED = (
        "messaging.salesforce.mirror.repaired.rows",
        "counter",
        "{row}",
        "Rows that differed from the org although no event said so, by object and cause: missing "
        "(there was no row), existence (deleted or restored), changed, derived (only fields that "
        "no event reports).",
        "Changes without an event are usual for derived fields. Many others point to picklist "
        "values that were renamed, or to lost events; --drift says how soon they are found.",
        (SYSTEM, ENTITY, "messaging.salesforce.repair.cause"),
    )
    MIRROR_OLDEST_ENTRY = (
        "messaging.salesforce.mirror.oldest_entry.time",
        "gauge",
        "s",
        "When the oldest open entry of the re-read queue was added, by object, in seconds since "
        "the epoch.",
        "See messaging.salesforce.mirror.queue.",
        (SYSTEM, ENTITY),
    )
    MIRROR_READ_AT = (
        "messaging.salesforce.mirror.last_read.time",
        "gauge",
        "s",
        "When the last read of the whole object was merged, by object, in seconds since the epoch.",
        "If it is missing for hours after the start, the first read waits; the page says why.",
        (SYSTEM, ENTITY),
    )
    LOG_RECORDS = (
        "messaging.salesforce.log.records",
        "counter",
        "{record}",
        "Warnings and errors logged by sfpubsub, by level, including suppressed repetitions.",
        "Read the messages: the page shows the latest ones.",
        (SYSTEM, "level"),
    )
    FAILING = (
        "messaging.salesforce.failing",
        "gauge",
        "{situation}",
        "1 for each situation that currently makes /health fail, else 0.",
        "docs/how-to/operations.md explains each situation.",
        (SYSTEM, "situation"),
    )

    def __init__(
        self, otel: str, kind: Kind, unit: str, meaning: str, cure: str, labels: tuple[str, ...]
    ) -> None:
        self.otel = otel
        """Name in OpenTelemetry."""
        self.kind: Kind = kind
        self.unit = unit
        """Unit in OpenTelemetry's notation (UCUM)."""
        self.meaning = meaning
        self.cure = cure
        """What looks wrong, and what to do about it."""
        self.labels = labels
        """Attributes that samples may have."""

    @property
    def prometheus(self) -> str:
        """Name in Prometheus, derived by the rules of OpenTelemetry's exporter."""
        ending = "_total" if self.kind == "counter" else ""
        return self.otel.replace(".", "_") + _SUFFIXES.get(self.unit, "") + ending


def metrics_page() -> str:
    """Return the content of docs/reference/metrics.md."""
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

`subscribe`, `ingest`, `tables` and `mirror run` expose these metrics with `--http PORT` under `/metrics`, in Prometheus text format, and through [OpenTelemetry](../how-to/operations.md#opentelemetry).
Your own program can expose them with `sfpubsub.monitoring.Monitor`.

The names follow OpenTelemetry's conventions for messaging, version 1.44; names that the conventions do not define are under `messaging.salesforce`.
In Prometheus, dots become underscores, in attributes as well.
`messaging.system` is always `{SYSTEM_NAME}`; a topic or channel is in `messaging.destination.name`, a managed subscription in `messaging.destination.subscription.name`.
Counters start at 0 when the process starts.
"The page" is the one that `--http` serves under `/`, and "the log" is what the command prints on stderr.

## What to alert on

| alert | expression in Prometheus |
|---|---|
| `/health` fails, for whatever reason | `messaging_salesforce_failing == 1` |
| events may be missing | `increase(messaging_salesforce_gaps_total[1h]) > 0` |
| falling behind | `messaging_salesforce_lag_seconds > 3600` |
| the tables of a mirror fall behind | `messaging_salesforce_mirror_behind_seconds > 600` |
| an object of a mirror waits | `min_over_time(messaging_salesforce_mirror_waiting[15m]) == 1` |
| deletions wait for a confirmation | `messaging_salesforce_mirror_parked_rows > 0` |
| re-reads wait | `time() - messaging_salesforce_mirror_oldest_entry_time_seconds > 6 * 3600` |
| events quarantined | `increase(messaging_salesforce_quarantined_messages_total[1h]) > 0` |
| the process is down | `up == 0`, a metric of Prometheus itself |

## All metrics
"""  # noqa: E501  # one sentence per line
