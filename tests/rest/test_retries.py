"""Tests of which requests are retried and when, of the error for each refusal, and of malformed
responses.
"""

from __future__ import annotations

import copy
import json
import pickle
from email.utils import formatdate
from time import time

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.config import RestTimings
from sfpubsub.errors import (
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    RequestRefusedError,
    SessionExpiredError,
    StreamUnavailableError,
)
from sfpubsub.rest import OrgReader
from tests.auth.servers import Reply

SECRET = "00D000000000001!TopSecretToken"

LIMITS = Reply(200, {"DailyApiRequests": {"Max": 10, "Remaining": 9}})


def refused(status, code, message="said the org", **headers):
    """Return a reply whose body is a Salesforce error with this code and message."""
    return Reply(status, [{"errorCode": code, "message": message}], headers)


@pytest.fixture
def after(told):
    """Return a function that starts an org with scripted replies.

    The org sends the given replies, then valid limits responses. The function returns the host, a
    reader, and a list of the delays, in seconds, before retries.
    """

    def make(*replies, **arguments):
        waiting, slept = list(replies), []
        arguments.setdefault("timings", RestTimings())
        host, reader = told(
            lambda request: waiting.pop(0) if waiting else LIMITS, sleep=slept.append, **arguments
        )
        return host, reader, slept

    return make


@pytest.mark.parametrize(
    "reply",
    [
        Reply(429),
        Reply(500),
        Reply(503),
        refused(503, "SERVER_UNAVAILABLE"),
        refused(400, "QUERY_TIMEOUT"),
        refused(400, "UNABLE_TO_LOCK_ROW"),
        refused(
            403,
            "REQUEST_LIMIT_EXCEEDED",
            "ConcurrentRequests (Concurrent API Requests) Limit exceeded.",
        ),
    ],
    ids=lambda reply: f"{reply.status}",
)
def test_transient_refusals_are_retried(after, reply, caplog):
    """The reader retries after growing random delays and logs each attempt.

    After five attempts it raises an error that is marked as retryable.
    """
    caplog.set_level("INFO", "sfpubsub.rest")
    host, reader, slept = after(reply, reply)
    assert reader.limits().remaining == 9
    assert len(host.requests) == reader.calls == 3
    assert 0 <= slept[0] <= 1.0
    assert 0 <= slept[1] <= 2.0
    assert "attempt 3 of 5" in caplog.text
    host, reader, slept = after(*[reply] * 9)
    with pytest.raises((StreamUnavailableError, RequestRefusedError, QuotaExceededError)) as caught:
        reader.limits()
    assert caught.value.retryable
    assert (len(host.requests), len(slept)) == (5, 4)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (refused(400, "MALFORMED_QUERY"), RequestRefusedError, "MALFORMED_QUERY"),
        (refused(404, "NOT_FOUND"), RequestRefusedError, "NOT_FOUND"),
        (refused(403, "API_DISABLED_FOR_ORG"), PermissionDeniedError, "API_DISABLED_FOR_ORG"),
        (
            refused(403, "REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded."),
            QuotaExceededError,
            "REQUEST_LIMIT_EXCEEDED",
        ),
        (refused(414, "URI_TOO_LONG"), RequestRefusedError, "URI_TOO_LONG"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_permanent_refusals_are_not_retried(after, reply, kind, code):
    """The reader sends only one request, and raises a non-retryable error with the error code."""
    host, reader, slept = after(reply)
    with pytest.raises(kind) as caught:
        reader.limits()
    assert caught.value.error_code == code
    assert code in str(caught.value)
    assert not caught.value.retryable
    assert (len(host.requests), slept) == (1, [])


def test_retry_after_is_honored(after):
    """The reader waits as long as the Retry-After header says, whether in seconds or as a date."""
    date = formatdate(time() + 20, usegmt=True)
    _, reader, slept = after(
        Reply(503, "", {"Retry-After": "7"}), Reply(429, "", {"Retry-After": date})
    )
    reader.limits()
    assert slept[0] == 7.0
    assert 15.0 < slept[1] <= 20.0


def test_long_retry_after_is_raised_to_the_caller(after):
    """The reader raises an error with the delay, rather than waiting for an hour.

    The delay survives pickling and copying. An unreadable Retry-After header is ignored.
    """
    host, reader, slept = after(Reply(429, "", {"Retry-After": "3600"}))
    with pytest.raises(StreamUnavailableError) as caught:
        reader.limits()
    assert (caught.value.retry_after, caught.value.retryable) == (3600.0, True)
    assert (len(host.requests), slept) == (1, [])
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.retry_after == copy.copy(caught.value).retry_after == 3600.0
    _, reader, slept = after(Reply(503, "", {"Retry-After": "soon"}))
    reader.limits()
    assert slept[0] <= 1.0  # the default delay


def test_job_creation_is_not_retried(after):
    """The request that creates a Bulk job is sent only once, because the job may exist even if
    the response is an error.
    """
    host, reader, slept = after(Reply(503))
    with pytest.raises(StreamUnavailableError):
        reader.jobs.create("SELECT Id FROM Account")
    assert (len(host.requests), slept) == (1, [])
    assert json.loads(host.requests[0].body) == {
        "operation": "query",
        "query": "SELECT Id FROM Account",
        "contentType": "CSV",
        "columnDelimiter": "COMMA",
        "lineEnding": "LF",
    }


def test_exception_from_sleep_ends_the_call(after):
    """An exception raised by the `sleep` function ends the call, so that stopping a job does not
    wait for its retries.
    """

    class StoppedError(Exception):
        pass

    def stop(_seconds):
        raise StoppedError

    host, _, _ = after(Reply(503))
    reader = OrgReader(Session(SECRET, host.url), sleep=stop)
    with pytest.raises(StoppedError):
        reader.limits()


def test_errors_of_refused_requests_redact_the_token(after):
    """An invalid session raises an error, because a fixed token cannot be renewed.

    The token is redacted in this error, and in others whose message repeats it.
    """
    said = f"{SECRET} is not good"
    _, reader, _ = after(*[refused(401, "INVALID_SESSION_ID", said)] * 2)
    with pytest.raises(SessionExpiredError) as caught:
        reader.limits()
    assert "TopSecret" not in repr(caught.value)
    _, reader, _ = after(refused(400, "INVALID_FIELD", said))
    with pytest.raises(RequestRefusedError) as refusal:
        reader.limits()
    assert "TopSecret" not in str(refusal.value)
    assert "***" in str(refusal.value)


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"", b"null", b"[]", b'{"DailyApiRequests": {"Max": "x"}}', b"[" * 100_000, b"1e"],
)
def test_malformed_limits_are_rejected(told, body):
    """A limits response that does not have the documented form raises a protocol error."""
    _, reader = told(lambda request: Reply(200, body))
    with pytest.raises(RemoteProtocolError):
        reader.limits()


def describe(**changes):
    """Return a describe response for an object with one field.

    Keyword arguments replace properties of the field; those with the prefix `head_` replace
    properties of the object.
    """
    field = {
        "name": "Amount", "label": "Amount", "type": "currency", "length": 0, "precision": 18,
        "scale": 2, "digits": 0, "nillable": True, "createable": True, "updateable": True,
        "calculated": False, "custom": False, "compoundFieldName": None, "relationshipName": None,
        "referenceTo": [], "picklistValues": [],
    }  # fmt: skip
    head = {
        "name": "Opportunity", "label": "Opportunity", "keyPrefix": "006", "custom": False,
        "queryable": True, "replicateable": True, "retrieveable": True,
    }  # fmt: skip
    field.update({name: value for name, value in changes.items() if name in field})
    head.update({name[5:]: value for name, value in changes.items() if name.startswith("head_")})
    return {**head, "fields": [field]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": "2"}, "Opportunity.Amount has no valid scale"),
        ({"scale": True}, "has no valid scale"),
        ({"nillable": None}, "has no valid nillable"),
        ({"name": None}, "a field of Opportunity has no valid name"),
        ({"referenceTo": [None]}, "referenceTo"),
        ({"referenceTo": None}, "referenceTo"),
        ({"picklistValues": [{"value": 1}]}, "has no valid value"),
        ({"head_name": 5}, "an object has no valid name"),
        ({"head_keyPrefix": 6}, "has no valid keyPrefix"),
        ({"head_custom": "no"}, "has no valid custom"),
    ],
)
def test_malformed_describes_are_rejected(told, changes, words):
    """A describe response with an invalid member raises a protocol error that names the member."""
    _, reader = told(lambda request: Reply(200, describe(**changes)))
    with pytest.raises(RemoteProtocolError, match=words):
        reader.describe("Opportunity")


def test_minimal_describe_is_accepted(told):
    """A picklist value without a label is labeled with its value, and an object may have no key
    prefix.
    """
    found = describe(
        picklistValues=[{"value": "a", "label": None, "active": False}], head_keyPrefix=None
    )
    _, reader = told(lambda request: Reply(200, found))
    described = reader.describe("Opportunity")
    (value,) = described.fields[0].picklist_values
    assert (value.value, value.label, value.active) == ("a", "a", False)
    assert described.key_prefix is None


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"records": [], "done": True},
        {"records": [5], "done": True, "totalSize": 1},
        {"records": [], "totalSize": 0},
        {"records": [], "done": False, "totalSize": 0},
        {"records": [], "done": False, "totalSize": 0, "nextRecordsUrl": "https://evil.example/x"},
        {
            "records": [],
            "done": False,
            "totalSize": 0,
            "nextRecordsUrl": "/services/data/v61.0/query/01g-2",
        },
        {
            "records": [],
            "done": False,
            "totalSize": 0,
            "nextRecordsUrl": "/services/data/v60.0/query/../x",
        },
    ],
)
def test_malformed_query_responses_are_rejected(told, answer):
    """A response with inconsistent records, total or next page raises an error.

    A next page outside the query resource is not requested, so the token is sent nowhere else.
    """
    host, reader = told(lambda request: Reply(200, answer))
    with pytest.raises(RemoteProtocolError):
        list(reader.query("SELECT Id FROM Account"))
    assert len(host.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [{}, [], [None, None], [{"Id": "001000000000002AAA"}], [{}], ["x"]],
)
def test_malformed_reads_by_id_are_rejected(told, answer):
    """A malformed response to a read by id raises a protocol error.

    For each requested id, a valid response contains that record or null.
    """
    _, reader = told(lambda request: Reply(200, answer))
    with pytest.raises(RemoteProtocolError):
        reader.retrieve("Account", ["001000000000001AAA"], ["Name"])
