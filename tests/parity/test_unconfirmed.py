"""Tests of what no source confirms: each shows what an org does, and fails if the emulator differs.

What a test saw is in the report, whether it passes or not. These tests publish some events to the
org's topic, and change nothing else; test_made.py has those that make something.
"""

from __future__ import annotations

import gzip
import threading
from urllib.parse import quote

import pytest

from sfpubsub.emulator.faults.refusals import FAILURES
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .asking import IDLE_S, V62, ask, code_of, ended, outcome
from .test_pubsub import publish

EVENT = pb.ProducerEvent(id="1", schema_id="A" * 22)

REFUSED = {
    "topic.validation.empty": ("GetTopic", pb.TopicRequest()),
    "schema.not.found": ("GetSchema", pb.SchemaRequest(schema_id="A" * 22)),
    "publish.event.count.invalid": ("Publish", pb.PublishRequest(topic_name="TOPIC")),
    "publish.topic.validation.empty": ("Publish", pb.PublishRequest(events=[EVENT])),
    "publish.topic.cannot.publish": (
        "Publish",
        pb.PublishRequest(topic_name="/data/ChangeEvents", events=[EVENT]),
    ),
    "subscription.fetch.request.invalid": (
        "Subscribe",
        pb.FetchRequest(topic_name="TOPIC", replay_preset=7, num_requested=1),
    ),
    "managed.subscription.subscription.id.invalid": (
        "ManagedSubscribe",
        pb.ManagedFetchRequest(subscription_id="18x", num_requested=1),
    ),
    "managed.subscription.id.or.developer.name.empty": (
        "ManagedSubscribe",
        pb.ManagedFetchRequest(num_requested=1),
    ),
}
"""Calls that break a rule, by the code of the rule; TOPIC stands for the org's topic."""


@pytest.mark.parametrize("code", REFUSED)
def test_refusals(org, client, seen, code):
    """A call that breaks a rule is refused with the status and the code of that rule."""
    rpc, request = REFUSED[code]
    asked = type(request)()
    asked.CopyFrom(request)
    if getattr(asked, "topic_name", "") == "TOPIC":
        asked.topic_name = org.topic
    found = outcome(client, rpc, asked)
    seen(status=found[0], code=found[1])
    assert found == (FAILURES[code].status, code)


def test_credit_beyond_the_maximum_is_clamped(org, client, event, seen):
    """Of 100 requested events and 100 more, 99 are outstanding after the first event."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.LATEST)
    stream.send(pb.FetchRequest(topic_name=org.topic, num_requested=100))
    pending: list[int] = []
    while not pending:  # events that come before the stream is open are not delivered
        publish(org, event())
        if response := stream.maybe(5.0):
            pending += [response.pending_num_requested] if response.events else []
    seen(pending=pending)
    assert pending[0] < 100


def test_an_idle_stream_is_closed(org, client, event, seen):
    """A stream without outstanding requests is closed with OK, about a minute after its last
    response.
    """
    start = publish(org, event(), event()).results[0].replay_id
    stream = client.subscribe(
        topic_name=org.topic, replay_preset=pb.CUSTOM, replay_id=start, num_requested=1
    )
    stream.events(1)
    found = ended(stream, IDLE_S)
    seen(status=found[0], code=found[1])
    assert found == ("OK", "")


def test_a_stream_without_a_request_is_closed(client, seen):
    """A stream on which the client sends nothing is closed with OK, about a minute later."""
    found = ended(client.stream("Subscribe"), IDLE_S)
    seen(status=found[0], code=found[1])
    assert found == ("OK", "")


def test_an_idle_publish_stream_is_closed(org, client, event, seen):
    """A PublishStream without a request is closed with an error, about 70 s after the last one."""
    stream = client.stream("PublishStream")
    stream.send(pb.PublishRequest(topic_name=org.topic, events=[event()]))
    stream.next()
    found = ended(stream, IDLE_S)
    seen(status=found[0], code=found[1])
    assert found == ("DEADLINE_EXCEEDED", "publish.stream.sweeper.timeout")


def test_headers_come_with_the_first_message(org, client, seen):
    """The response headers of a stream do not come before its first message."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.LATEST)
    there = threading.Event()
    threading.Thread(
        target=lambda: (stream.call.initial_metadata(), there.set()), daemon=True
    ).start()
    early = there.wait(2.0)
    seen(headers_at_once=early)
    assert not early


def test_a_publish_stream_ends_with_ok_after_a_half_close(org, client, event, seen):
    """After a half-close by the client, a PublishStream ends with OK."""
    stream = client.stream("PublishStream")
    stream.send(pb.PublishRequest(topic_name=org.topic, events=[event()]))
    stream.half_close()
    stream.next()
    found = ended(stream)
    seen(status=found[0], code=found[1])
    assert found[0] == "OK"


def test_an_event_that_is_published_twice_is_delivered_twice(org, client, event, seen):
    """Two events with one id get two replay ids, and both are delivered."""
    first, twice = event(), event()
    start = publish(org, first).results[0].replay_id
    positions = {publish(org, twice).results[0].replay_id for _ in range(2)}
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.CUSTOM, replay_id=start)
    got = [item.event.id for item in stream.events(1)]
    while len(got) < 2 and (response := stream.maybe(5.0)):
        got += [item.event.id for item in response.events]
    seen(replay_ids=len(positions), delivered=got.count(twice.id))
    assert (len(positions), got.count(twice.id)) == (2, 2)


# Over HTTP.


def test_a_retired_version_is_gone(org, seen):
    """API version 25.0 is answered with 410 UNSUPPORTED_API_VERSION."""
    status, _, found = ask(org, "GET", "/services/data/v25.0/limits")
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (410, "UNSUPPORTED_API_VERSION")


def test_a_call_without_a_session_has_no_limit_info(org, seen):
    """The answer to a call without a valid session has no Sforce-Limit-Info."""
    status, headers, _ = ask(org, "GET", f"{V62}/limits", {"Authorization": "Bearer no"})
    seen(status=status, limit_info="Sforce-Limit-Info" in headers)
    assert (status, "Sforce-Limit-Info" in headers) == (401, False)


def test_a_session_id_without_a_scheme_is_refused(org, seen):
    """The REST API refuses a session id without a scheme."""
    status, _, _ = ask(org, "GET", f"{V62}/limits", {"Authorization": org.access_token})
    seen(status=status)
    assert status == 401


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [("br", b"{}", 415), ("gzip", gzip.compress(b"{}", mtime=0)[:-9], 400)],
)
def test_a_body_that_cannot_be_decompressed_is_refused(org, seen, coding, body, status):
    """A body with an unknown content coding, or a damaged one, is refused."""
    headers = {"Content-Encoding": coding}
    found, _, answer = ask(org, "POST", f"{V62}/sobjects/Account", headers, body)
    seen(status=found, answer=answer)
    assert found == status


@pytest.mark.parametrize("name", ["jobs", "tooling", "composite"])
def test_a_resource_that_is_named_answers(org, seen, name):
    """The resource answers a GET with an object."""
    status, _, found = ask(org, "GET", f"{V62}/{name}")
    seen(status=status, members=sorted(found))
    assert (status, type(found)) == (200, dict)


def test_more_than_200_records_are_refused(org, seen):
    """A collection of 201 records without their required fields is refused as too large."""
    body = {"allOrNone": True, "records": [{"attributes": {"type": "Account"}}] * 201}
    status, _, found = ask(org, "POST", f"{V62}/composite/sobjects", body=body)
    seen(status=status, answer=found if status >= 400 else "accepted")
    assert (status, code_of(found)) == (400, "INVALID_INPUT")


def test_fields_all_needs_a_limit(org, seen):
    """FIELDS(ALL) without a LIMIT is refused."""
    status, _, found = ask(org, "GET", f"{V62}/query?q=" + quote("SELECT FIELDS(ALL) FROM User"))
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (400, "MALFORMED_QUERY")


def test_the_columns_of_a_query(org, seen):
    """`columns=true` describes the columns of a query."""
    text = quote("SELECT Id, Name FROM User")
    status, _, found = ask(org, "GET", f"{V62}/query?columns=true&q={text}")
    members = sorted(found["columnMetadata"][0]) if status == 200 else found
    seen(status=status, members=members)
    assert status == 200
    assert {"aggregate", "columnName", "joinColumns"} <= set(members)


def test_userinfo_without_a_valid_token(org, seen):
    """userinfo answers an invalid token with 403 in plain text."""
    headers = {"Authorization": "Bearer no"}
    status, _, found = ask(org, "GET", "/services/oauth2/userinfo", headers)
    seen(status=status, answer=found)
    assert (status, type(found)) == (403, str)


SIGN_INS = {
    "grant_type=nonsense": "unsupported_grant_type",
    "grant_type=client_credentials&client_id=nobody&client_secret=no": "invalid_client_id",
    "grant_type=refresh_token&client_id=nobody&refresh_token=no": "invalid_client_id",
}


@pytest.mark.parametrize("form", SIGN_INS)
def test_a_sign_in_is_refused(org, seen, form):
    """A request for a token that cannot be granted is refused with an OAuth error."""
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
    path = "/services/oauth2/token"
    status, _, found = ask(org, "POST", path, headers, form.encode())
    seen(status=status, answer=found)
    assert (status, found["error"]) == (400, SIGN_INS[form])


def test_an_invalid_event_is_refused_over_rest(org, seen):
    """An event with an unknown field is refused with an array of errors."""
    name = org.topic.rpartition("/")[2]
    status, _, found = ask(org, "POST", f"{V62}/sobjects/{name}", body={"No_Field__c": "1"})
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (400, "INVALID_FIELD")


def test_a_bulk_job_is_refused(org, seen):
    """A job with an unknown operation is refused."""
    body = {"operation": "nonsense", "object": "Account"}
    status, _, found = ask(org, "POST", f"{V62}/jobs/ingest", body=body)
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (400, "INVALIDJOB")


def test_events_of_a_collection_are_published_though_it_is_rolled_back(org, client, event, seen):
    """An event in a collection with allOrNone is published even if a record in it is refused."""
    start = publish(org, event()).results[0].replay_id
    name = org.topic.rpartition("/")[2]
    body = {
        "allOrNone": True,
        "records": [{"attributes": {"type": name}}, {"attributes": {"type": "Account"}}],
    }
    status, _, found = ask(org, "POST", f"{V62}/composite/sobjects", body=body)
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.CUSTOM, replay_id=start)
    published = len(response.events) if (response := stream.maybe(10.0)) else 0
    seen(status=status, answer=found, published=published)
    assert (status, published) == (200, 1)
