"""Resources that describe the org's event types and the usage of its allocations:
EntityDefinition, PlatformEventUsageMetric, and the limits resource.
"""

from __future__ import annotations

from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import authorised
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.records.values import moment
from sfpubsub.emulator.org.usage import DAY_S, HOUR_S, SEGMENT_S
from sfpubsub.emulator.org.usage_report import used

_SEGMENTS = {"FifteenMinutes": SEGMENT_S, "Hourly": HOUR_S, "Daily": DAY_S}
"""Length of each TimeSegment in seconds. "Hourly" is documented; the other names are assumed."""


def limits(call: Call) -> Answer:
    """GET …/limits: return the limits for API calls, event deliveries and event publications, and
    how much of each remains.
    """
    authorised(call)
    settings, now = call.world.settings, call.world.clock.now()
    recent = used(call.world.store, call.world.bus, now, since=now - DAY_S, every=SEGMENT_S)
    delivered = sum(item.count for item in recent if item.usage == "DELIVERY")
    published = sum(
        item.count
        for item in recent
        if item.usage == "PUBLISH" and item.end > now - HOUR_S and _is_platform_event(item.event)
    )
    return json_answer(
        {
            "DailyApiRequests": {
                "Max": call.world.api_calls.most,
                "Remaining": call.world.api_calls.remaining(now),
            },
            "DailyDeliveredPlatformEvents": _limit(settings.daily_deliveries, delivered),
            "HourlyPublishedPlatformEvents": _limit(settings.hourly_publications, published),
        }
    )


def _limit(most: int, count: int) -> dict[str, int]:
    return {"Max": most, "Remaining": max(0, most - count)}


def _definitions(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    """Return an EntityDefinition row for each object and event type in the org."""
    events = [
        (name, name.removesuffix("__e"), name.removesuffix("__e").replace("_", " "), None)
        for topic in call.world.bus.topics()
        if topic.schema_id and (name := topic.name.rpartition("/")[2])
    ]
    objects = [
        (of.name, of.name.removesuffix("__c"), of.label, of.key_prefix)
        for of in map(call.world.records.describe, call.world.records.objects())
    ]
    return [
        {
            "QualifiedApiName": name,
            "DeveloperName": developer_name,
            "DurableId": name,
            "Label": label,
            "MasterLabel": label,
            "NamespacePrefix": None,
            "PublisherId": "<local>" if name.endswith(("__e", "__c")) else "System",
            "KeyPrefix": prefix,
        }
        for name, developer_name, label, prefix in [*objects, *events]
    ]


def _metrics(call: Call, asked: soql.Select) -> list[dict[str, Any]]:
    """Return the rows of PlatformEventUsageMetric for the last 24 hours: one for each event name,
    usage type and time segment, as with Enhanced Usage Metrics.
    """
    wanted = [] if asked.where is None else _segments(asked.where)
    segment = next((name for name in _SEGMENTS if [name.lower()] == wanted), "")
    now = call.world.clock.now()
    every = _SEGMENTS.get(segment, HOUR_S)
    rows = used(call.world.store, call.world.bus, now, since=now - DAY_S, every=every)
    return [
        {
            "Name": _metric(item.event, item.usage),
            "EventName": item.event,
            "EventType": "CUSTOM_PLATFORM_EVENT" if _is_platform_event(item.event) else _CHANGE,
            "UsageType": item.usage,
            "Value": item.count,
            "StartDate": moment(item.start),
            "EndDate": moment(item.end),
            "TimeSegment": segment or "Hourly",
            "Client": "PUB_SUB_API" if item.usage == "DELIVERY" else None,
        }
        for item in rows
    ]


def _segments(asked: soql.Condition) -> list[str]:
    """Return the values with which a condition compares TimeSegment, in lower case."""
    if isinstance(asked, soql.Joined):
        return [text for item in asked.conditions for text in _segments(item)]
    of_segment = asked.field.lower() == "timesegment"
    return [item.text.lower() for item in asked.values] if of_segment else []


_CHANGE = "CHANGE_EVENT"


def _is_platform_event(name: str) -> bool:
    return not name.endswith("ChangeEvent")


def _metric(event: str, usage: str) -> str:
    kind = "PLATFORM" if _is_platform_event(event) else "CHANGE"
    return f"{kind}_EVENTS_{'DELIVERED' if usage == 'DELIVERY' else 'PUBLISHED'}"


_DEFINITION = dict.fromkeys(
    (
        "QualifiedApiName",
        "DeveloperName",
        "DurableId",
        "Label",
        "MasterLabel",
        "NamespacePrefix",
        "PublisherId",
        "KeyPrefix",
    ),
    "string",
)
_METRIC = {
    **dict.fromkeys(
        ("Name", "EventName", "EventType", "UsageType", "Client", "TimeSegment"), "string"
    ),
    "Value": "int",
    "StartDate": "datetime",
    "EndDate": "datetime",
}

ENTITIES = Table("EntityDefinition", _DEFINITION, _definitions)
METRICS = Table("PlatformEventUsageMetric", _METRIC, _metrics, first_version=50)
TABLES = (ENTITIES,)
"""Tables of the Tooling API; queries of the REST API can also use `METRICS`."""
