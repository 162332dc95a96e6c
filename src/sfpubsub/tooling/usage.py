"""Read how much of its event allocations an org has used, as reported by the org."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sfpubsub.auth.rest import OrgClient
from sfpubsub.errors import RemoteProtocolError, RequestRefusedError
from sfpubsub.tooling.soql_queries import TO_READ, Queries, explaining

# Limits by name in the limits resource, with their meaning.
_LIMITS = {
    "DailyDeliveredPlatformEvents": "events delivered to clients in 24 hours",
    "HourlyPublishedPlatformEvents": "platform events published in an hour",
    "MonthlyPlatformEventsUsageEntitlement": "events of the monthly entitlement",
}

# Error codes of an org without Enhanced Usage Metrics.
_WITHOUT_EVENTS = frozenset({"INVALID_FIELD", "INVALID_TYPE"})


@dataclass(frozen=True)
class Allocation:
    """One of the org's event limits."""

    name: str
    """Name of the limit in the org's limits resource."""
    meaning: str
    most: int
    used: int
    remaining: int


@dataclass(frozen=True)
class EventUsage:
    """How many events of one type were published and delivered in the last 24 hours."""

    event: str
    published: int
    delivered: int


class Usages:
    """Reads an org's event usage. Thread-safe; raises what `OrgClient` raises.

    Args:
        org: Makes the requests.
        api_version: Version of the REST API, such as ``60.0``.
    """

    def __init__(self, org: OrgClient, api_version: str) -> None:
        self._org = org
        self._queries = Queries(org, api_version)

    def allocations(self) -> list[Allocation]:
        """Return the org's event limits. The figures may be up to five minutes old."""
        with explaining(TO_READ):
            answer = self._org.get(f"{self._queries.data}limits")
        if not isinstance(answer, dict):
            raise RemoteProtocolError("the org returned limits that are not a JSON object")
        return [
            _allocation(name, meaning, answer[name])
            for name, meaning in _LIMITS.items()
            if name in answer
        ]

    def by_event(self) -> list[EventUsage] | None:
        """Return the usage of each event, sorted by name; None if the org does not report usage.

        The report requires Enhanced Usage Metrics in the org and the user permission View All Data.
        """
        soql = (
            "SELECT EventName, UsageType, Value FROM PlatformEventUsageMetric"
            " WHERE TimeSegment = 'Hourly'"
        )
        try:
            rows = self._queries.rows(soql, tooling=False)
        except RequestRefusedError as error:
            if error.error_code in _WITHOUT_EVENTS:
                return None
            raise
        found: dict[str, Counter[str]] = {}
        for row in rows:
            event, usage, count = row.get("EventName"), row.get("UsageType"), row.get("Value")
            if not isinstance(usage, str) or not isinstance(count, (int, float)):
                raise RemoteProtocolError(
                    "the org returned an event usage metric without a valid UsageType or Value"
                )
            found.setdefault(str(event), Counter())[usage] += int(count)
        return [
            EventUsage(event, counts["PUBLISH"], counts["DELIVERY"])
            for event, counts in sorted(found.items())
        ]


def _allocation(name: str, meaning: str, value: Any) -> Allocation:
    try:
        most, remaining = int(value["Max"]), int(value["Remaining"])
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"the org returned the limit {name} without a valid Max or Remaining: {error}"
        ) from error
    return Allocation(name, meaning, most, most - remaining, remaining)
