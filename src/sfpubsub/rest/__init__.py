"""Read an org over HTTP: describe objects, query records, fetch them by id or in bulk.

This package changes nothing in the org except for its own query jobs, and opens no stream. It
follows Salesforce's documentation; docs/reference/emulator-evidence.md lists the sources.
"""

from sfpubsub.rest.describing import (
    FieldDescription,
    ObjectDescription,
    ObjectSummary,
    PicklistValue,
)
from sfpubsub.rest.grants import Grant
from sfpubsub.rest.jobs import QueryJob, QueryJobs
from sfpubsub.rest.reader import ApiLimit, OrgReader, QueryPage
from sfpubsub.rest.results import ResultPage

__all__ = [
    "ApiLimit",
    "FieldDescription",
    "Grant",
    "ObjectDescription",
    "ObjectSummary",
    "OrgReader",
    "PicklistValue",
    "QueryJob",
    "QueryJobs",
    "QueryPage",
    "ResultPage",
]
