"""An org read over HTTP: its objects described, its records queried, by id and in bulk.

It changes nothing in the org but the query jobs that it makes, opens no stream, and decides
nothing about what a row means for a table. Built from Salesforce's documentation
(docs/reference/emulator-evidence.md has the sources).
"""

from sfpubsub.rest.describing import (
    FieldDescription,
    ObjectDescription,
    ObjectSummary,
    PicklistValue,
)
from sfpubsub.rest.jobs import QueryJob, QueryJobs, next_poll
from sfpubsub.rest.reader import ApiLimit, OrgReader, QueryPage
from sfpubsub.rest.results import ResultPage

__all__ = [
    "ApiLimit",
    "FieldDescription",
    "ObjectDescription",
    "ObjectSummary",
    "OrgReader",
    "PicklistValue",
    "QueryJob",
    "QueryJobs",
    "QueryPage",
    "ResultPage",
    "next_poll",
]
