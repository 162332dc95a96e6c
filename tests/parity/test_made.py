"""Tests of what no source confirms, with things that they make in the org and remove again: a
managed subscription, accounts, jobs of the Bulk API, and a channel.

They run against an org only if PARITY_MAKE is `yes`, for which scripts/parity.sh asks. The
subscription is made once, because it takes minutes until the service accepts one; so the tests of
its end come last.
"""

from __future__ import annotations

import io
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import fastavro
import pytest

from sfpubsub.emulator.faults.refusals import FAILURES
from sfpubsub_grpc import pubsub_api_pb2 as pb

from ..emulator.support import WAIT_S, Stream, commit, until
from .asking import V62, ask, code_of, ended
from .test_pubsub import publish

CHANGE_S = 600.0
"""The longest time until a new subscription is accepted, or a change of one reaches its stream:
some minutes are documented.
"""

RETRY_S = 5.0
"""Time between attempts to open a stream of an org."""

SUBSCRIPTIONS = f"{V62}/tooling/sobjects/ManagedEventSubscription"
ACCOUNTS = f"{V62}/sobjects/Account"
INGEST = f"{V62}/jobs/ingest"
P = "managed.subscription."


@pytest.fixture(autouse=True, scope="module")
def _allowed(org: Any) -> None:
    if org.is_real and os.environ.get("PARITY_MAKE") != "yes":
        pytest.skip("nothing may be made in the org")


def make(org: Any, path: str, body: Any) -> str:
    """Make a record or a job; return its id."""
    status, _, answer = ask(org, "POST", path, body=body)
    assert status in (200, 201), answer
    return str(answer["id"])


def remove(org: Any, path: str) -> None:
    """Delete what was made, unless it is gone already."""
    status, _, answer = ask(org, "DELETE", path)
    assert status in (204, 404), f"remove it yourself: {path}: {answer}"


# Managed subscriptions.


class Subscription:
    """A managed subscription that these tests have made."""

    def __init__(self, org: Any, event: Callable[[], Any]) -> None:
        self._org = org
        self._event = event
        self.name = f"Parity_{uuid.uuid4().hex[:8]}"
        body = {"FullName": self.name, "Metadata": self._metadata(defaultReplay="EARLIEST")}
        self.path = f"{SUBSCRIPTIONS}/{make(org, SUBSCRIPTIONS, body)}"

    def _metadata(self, **members: str) -> dict[str, str]:
        return {"label": "Parity", "topicName": self._org.topic, **members}

    def record(self) -> Any:
        """Return the record."""
        status, _, found = ask(self._org, "GET", self.path)
        assert status == 200, found
        return found

    def change(self, **members: str) -> None:
        """Replace the Metadata: members that are required are added."""
        body = {"Metadata": self._metadata(**members)}
        status, _, found = ask(self._org, "PATCH", self.path, body=body)
        assert status == 204, found

    def request(self, **first: Any) -> Stream:
        """Return a stream with a first request."""
        return self._org.client.managed(developer_name=self.name, **first)

    def open(self) -> tuple[Stream, Any]:
        """Return a stream that has requested 100 events, and its first response with events."""
        deadline = time.monotonic() + CHANGE_S
        while True:
            publish(self._org, self._event())
            stream = self.request(num_requested=100)
            while response := stream.maybe(WAIT_S):
                if response.events:
                    return stream, response
            assert time.monotonic() < deadline, f"no stream of {self.name} was accepted in time"
            stream.close()
            threading.Event().wait(RETRY_S if self._org.is_real else 0.01)


@pytest.fixture(scope="module")
def managed(org: Any, event: Any) -> Iterator[Subscription]:
    """A managed subscription to the org's topic."""
    made = Subscription(org, event)
    yield made
    remove(org, made.path)


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({"label": None}, "REQUIRED_FIELD_MISSING"),
        ({"label": "x" * 81}, "INVALID_INPUT"),
        ({"defaultReplay": "NONSENSE"}, "INVALID_INPUT"),
        ({"nonsense": "x"}, "INVALID_FIELD"),
        ({"label": 1}, "JSON_PARSER_ERROR"),
    ],
)
def test_invalid_creations(org, seen, member, code):
    """A managed subscription with an invalid member is not made."""
    body = {
        "FullName": f"Parity_{uuid.uuid4().hex[:8]}",
        "Metadata": {"label": "Parity", "topicName": org.topic, **member},
    }
    status, _, found = ask(org, "POST", SUBSCRIPTIONS, body=body)
    if status == 201:
        remove(org, f"{SUBSCRIPTIONS}/{found['id']}")
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (400, code)


REFUSED = {
    P + "fetch.request.events.invalid": {"num_requested": -1},
    P + "fetch.request.invalid": {"num_requested": 0},
    P + "fetch.request.auth.request.restricted": {"auth_refresh": "x"},
    P + "fetch.request.commit.request.restricted": {
        "commit_replay_id_request": pb.CommitReplayRequest(replay_id=b"x" * 10)
    },
}
"""First requests that break a rule, by the code of the rule."""


@pytest.mark.parametrize("code", REFUSED)
def test_first_requests(client, managed, seen, code):
    """A first request that breaks a rule is refused with the status and the code of that rule."""
    stream, _ = managed.open()  # once it is accepted
    stream.close()
    found = ended(managed.request(**REFUSED[code]))
    seen(status=found[0], code=found[1])
    assert found == (FAILURES[code].status, code)


def test_another_name_in_a_later_request(client, managed, seen):
    """A stream ends with an error if a later request names another subscription."""
    stream, _ = managed.open()
    stream.send(pb.ManagedFetchRequest(num_requested=1, developer_name="Another"))
    found = ended(stream)
    seen(status=found[0], code=found[1])
    assert found == ("INVALID_ARGUMENT", P + "fetch.request.invalid")


def test_the_answer_to_a_commit(client, managed, seen):
    """A commit is answered without events, with a position and the number of outstanding events."""
    stream, response = managed.open()
    stream.send(commit(response.events[0].replay_id, "one"))
    answers = []
    while not answers:
        response = stream.next()
        answers += [response] if response.HasField("commit_response") else []
    answer = answers[0]
    seen(
        events=len(answer.events),
        position=bool(answer.latest_replay_id),
        outstanding=answer.pending_num_requested,
    )
    assert (len(answer.events), bool(answer.latest_replay_id)) == (0, True)
    assert answer.pending_num_requested > 0


def test_refused_commits(client, managed, seen):
    """A commit without a replay id, or of one that was never assigned, is answered with an error,
    and the stream stays open.
    """
    stream, response = managed.open()
    texts = {}
    for name, replay_id in (("missing", b""), ("never assigned", b"\xff" * 10)):
        stream.send(commit(replay_id, name))
        texts[name] = stream.answer().error.msg
    seen(texts=texts)
    stream.send(commit(response.events[0].replay_id, "valid"))
    assert not stream.answer().HasField("error")
    assert all(texts.values())


def test_a_change_of_the_metadata(managed, seen):
    """A change moves LastModifiedDate; a preset that it leaves out is LATEST."""
    before = managed.record()["LastModifiedDate"]

    def changed() -> Any:
        managed.change(errorRecoveryReplay="EARLIEST")
        record = managed.record()
        return record if record["LastModifiedDate"] != before else None

    metadata = until(changed)["Metadata"]
    seen(default_replay=metadata["defaultReplay"])
    assert metadata["defaultReplay"] == "LATEST"


def test_a_stop_ends_the_stream(client, managed, seen):
    """STOP ends the open stream with an error."""
    stream, _ = managed.open()
    managed.change(state="STOP")
    found = ended(stream, CHANGE_S)
    seen(status=found[0], code=found[1])
    code = P + "config.stopped"
    assert found == (FAILURES[code].status, code)


def test_a_deletion_ends_the_stream(org, client, managed, seen):
    """Deleting the subscription ends the open stream with an error."""
    managed.change(state="RUN", defaultReplay="EARLIEST")
    stream, _ = managed.open()
    remove(org, managed.path)
    found = ended(stream, CHANGE_S)
    seen(status=found[0], code=found[1])
    code = P + "config.deleted"
    assert found == (FAILURES[code].status, code)


def test_the_query_of_a_pushtopic_is_checked(org, seen):
    """A PushTopic whose query has an unknown field is not made."""
    path = f"{V62}/sobjects/PushTopic"
    query = "SELECT Id, No_Field__c FROM Account"
    name = f"Parity_{uuid.uuid4().hex[:8]}"
    body = {"Name": name, "Query": query, "ApiVersion": 62.0}
    status, _, found = ask(org, "POST", path, body=body)
    if status == 201:
        remove(org, f"{path}/{found['id']}")
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (400, "INVALID_FIELD")


# Records.


@pytest.fixture
def account(org: Any) -> Iterator[str]:
    """The id of an account."""
    made = make(org, ACCOUNTS, {"Name": "Parity"})
    yield made
    remove(org, f"{ACCOUNTS}/{made}")


def rows(org: Any, soql: str, resource: str = "query") -> list[Any]:
    """Return the records that a query finds."""
    status, _, found = ask(org, "GET", f"{V62}/{resource}?q={quote(soql)}")
    assert status == 200, found
    return list(found["records"])


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("AnnualRevenue", "1.5", ""),
        ("AnnualRevenue", "1_000", "JSON_PARSER_ERROR"),
        ("AnnualRevenue", " 1", "JSON_PARSER_ERROR"),
        ("AnnualRevenue", "NaN", "JSON_PARSER_ERROR"),
        ("AnnualRevenue", True, "JSON_PARSER_ERROR"),
        ("NumberOfEmployees", "12", ""),
        ("NumberOfEmployees", 12.5, "JSON_PARSER_ERROR"),
        ("Phone", 12, ""),
        ("Phone", ["12"], "JSON_PARSER_ERROR"),
        ("Phone", "1" * 41, "STRING_TOO_LONG"),
        ("Name", None, "REQUIRED_FIELD_MISSING"),
        ("OwnerId", "x", "MALFORMED_ID"),
        ("ParentId", "001000000000000AAA", "INVALID_CROSS_REFERENCE_KEY"),
        ("CreatedDate", "2024-01-01T00:00:00Z", "INVALID_FIELD_FOR_INSERT_UPDATE"),
        ("No_Field__c", "1", "INVALID_FIELD"),
    ],
)
def test_values(org, account, seen, field, value, code):
    """A value is accepted, or refused with the code of the rule that it breaks."""
    status, _, found = ask(org, "PATCH", f"{ACCOUNTS}/{account}", body={field: value})
    seen(value=f"{field}={value!r}", status=status, answer=found)
    assert (status, code_of(found)) == (400 if code else 204, code)


def test_an_empty_text_equals_null(org, account, seen):
    """A condition that compares an empty field with the empty text finds it."""
    found = rows(org, f"SELECT Id FROM Account WHERE Id = '{account}' AND Phone = ''")
    seen(found=len(found))
    assert len(found) == 1


def test_a_deletion(org, account, seen):
    """SystemModstamp is in whole seconds, and a deletion moves it. A deleted record is answered
    with 404 ENTITY_IS_DELETED.
    """
    asked = f"SELECT SystemModstamp FROM Account WHERE Id = '{account}'"
    before = rows(org, asked)[0]["SystemModstamp"]
    made = time.monotonic()
    until(lambda: time.monotonic() > made + 1.1)  # the stamp of the deletion can differ
    remove(org, f"{ACCOUNTS}/{account}")
    after = rows(org, asked, "queryAll")[0]["SystemModstamp"]
    status, _, found = ask(org, "GET", f"{ACCOUNTS}/{account}")
    seen(ends=before[19:], moved=before != after, status=status, answer=found)
    assert (before[19:], before != after) == (".000+0000", True)
    assert (status, code_of(found)) == (404, "ENTITY_IS_DELETED")


# Jobs of the Bulk API.


@pytest.fixture
def job(org: Any) -> Iterator[Callable[..., str]]:
    """Return a function that makes a job and returns its path. The jobs are deleted at the end."""
    made: list[str] = []

    def create(kind: str, **body: Any) -> str:
        path = f"{V62}/jobs/{kind}"
        made.append(f"{path}/{make(org, path, body)}")
        return made[-1]

    yield create
    for path in made:
        remove(org, path)


def finished(org: Any, path: str) -> Any:
    """Wait for the end of a job, and return it."""

    def found() -> Any:
        answer = ask(org, "GET", path)[2]
        return answer if answer["state"] in ("JobComplete", "Failed", "Aborted") else None

    return until(found, CHANGE_S)


def ingested(org: Any, path: str, data: bytes) -> Any:
    """Upload the data of a job, wait for its end, and return it."""
    status, _, answer = ask(org, "PUT", f"{path}/batches", {"Content-Type": "text/csv"}, data)
    assert status == 201, answer
    status, _, answer = ask(org, "PATCH", path, body={"state": "UploadComplete"})
    assert status == 200, answer
    return finished(org, path)


def test_data_with_other_line_ends(org, job, seen):
    """Data whose line ends are not those of the job fail it."""
    path = job("ingest", operation="insert", object="Account", lineEnding="LF")
    found = ingested(org, path, b"Name\r\n\r\n")
    seen(state=found["state"], text=found.get("errorMessage"))
    assert found["state"] == "Failed"


def test_the_error_of_a_row(org, job, seen):
    """The results of rows that failed begin with sf__Id and sf__Error; an error ends with its
    fields and `--`.
    """
    path = job("ingest", operation="insert", object="Account", lineEnding="LF")
    found = ingested(org, path, b"Name,Phone\n,1\n")
    text = ask(org, "GET", f"{path}/failedResults", {"Accept": "text/csv"})[2]
    seen(state=found["state"], results=text)
    head, row = text.splitlines()
    assert head == '"sf__Id","sf__Error","Name","Phone"'
    assert "REQUIRED_FIELD_MISSING" in row
    assert ":Name --" in row


def test_a_job_in_another_state(org, job, seen):
    """A job whose data were never uploaded cannot be aborted twice."""
    path = job("ingest", operation="insert", object="Account", lineEnding="LF")
    for _ in range(2):
        status, _, found = ask(org, "PATCH", path, body={"state": "Aborted"})
    seen(status=status, answer=found)
    assert (status, code_of(found)) == (400, "INVALIDJOBSTATE")


def test_an_unsupported_bulk_query(org, job, seen):
    """A query job with COUNT() fails, and has no results."""
    path = job("query", operation="query", query="SELECT COUNT() FROM Account")
    found = finished(org, path)
    status = ask(org, "GET", f"{path}/results", {"Accept": "text/csv"})[0]
    seen(state=found["state"], text=found.get("errorMessage"), results=status)
    assert (found["state"], status) == ("Failed", 204)


# Change events, on a channel.

CHANNELS = f"{V62}/tooling/sobjects/PlatformEventChannel"


class Channel:
    """A channel with the change events of accounts, that these tests have made."""

    def __init__(self, org: Any) -> None:
        self._org = org
        name = f"Parity_{uuid.uuid4().hex[:8]}"
        metadata = {"channelType": "data", "label": "Parity"}
        self.topic = f"/data/{name}__chn"
        self.paths = [
            f"{CHANNELS}/{make(org, CHANNELS, {'FullName': f'{name}__chn', 'Metadata': metadata})}"
        ]
        self.name = name
        member = make(org, f"{CHANNELS}Member", self.member("AccountChangeEvent"))
        self.paths.insert(0, f"{CHANNELS}Member/{member}")

    def member(self, event: str) -> dict[str, Any]:
        """Return the record of a member."""
        metadata = {"eventChannel": f"{self.name}__chn", "selectedEntity": event}
        return {"FullName": f"{self.name}_{event}".replace("__", "_"), "Metadata": metadata}

    def remove(self) -> None:
        """Remove the member, and then the channel."""
        for path in self.paths:
            remove(self._org, path)

    def open(self, account: str) -> Stream:
        """Return a stream that has delivered an event of an account, and has no more of them."""
        deadline = time.monotonic() + CHANGE_S
        while time.monotonic() < deadline:
            stream = self._org.client.subscribe(
                topic_name=self.topic, replay_preset=pb.LATEST, num_requested=100
            )
            for number in range(3):  # changes that come before the stream is open have no event
                body = {"Phone": f"{number}"}
                assert ask(self._org, "PATCH", f"{ACCOUNTS}/{account}", body=body)[0] == 204
                if self.header(stream, account, RETRY_S if self._org.is_real else 0.5):
                    while self.header(stream, account, 1.0):
                        pass
                    return stream
            stream.close()
        raise AssertionError(f"no change event of {self.topic} has come")

    def header(self, stream: Stream, account: str, seconds: float) -> Any:
        """Return the header of the next change event of an account; None if there is none."""
        while response := stream.maybe(seconds):
            for item in response.events:
                asked = pb.SchemaRequest(schema_id=item.event.schema_id)
                schema = json.loads(self._org.client.call("GetSchema", asked).schema_json)
                payload = io.BytesIO(item.event.payload)
                value = fastavro.schemaless_reader(payload, fastavro.parse_schema(schema), None)
                if account in value["ChangeEventHeader"]["recordIds"]:
                    return value["ChangeEventHeader"]
        return None


@pytest.fixture(scope="module")
def channel(org: Any) -> Iterator[Channel]:
    """A channel with the change events of accounts."""
    made = Channel(org)
    yield made
    made.remove()


def test_a_channel_has_members_of_its_kind(org, channel, seen):
    """A platform event is not added to a channel of change events, and a channel with members is
    not deleted.
    """
    path = f"{CHANNELS}Member"
    status, _, found = ask(org, "POST", path, body=channel.member(org.topic.rpartition("/")[2]))
    if status == 201:
        remove(org, f"{path}/{found['id']}")
    refused = ask(org, "DELETE", channel.paths[-1])
    seen(member=[status, found], deletion=[refused[0], refused[2]])
    assert (status, code_of(found)) == (400, "INVALID_INPUT")
    assert (refused[0], code_of(refused[2])) == (400, "DEPENDENCY_EXISTS")


def test_an_update_that_changes_nothing(org, client, account, channel, seen):
    """An update that changes nothing has an event."""
    stream = channel.open(account)
    assert ask(org, "PATCH", f"{ACCOUNTS}/{account}", body={"Name": "Parity"})[0] == 204
    header = channel.header(stream, account, 15.0)
    seen(event=header is not None)
    assert header is not None


def test_the_origin_of_a_bulk_change(org, client, account, channel, job, seen):
    """A change that a Bulk API job makes has com/salesforce/api/rest in its origin."""
    stream = channel.open(account)
    path = job("ingest", operation="update", object="Account", lineEnding="LF")
    done = ingested(org, path, f"Id,Fax\n{account},1\n".encode())
    header = channel.header(stream, account, 15.0) or {}
    seen(state=done["state"], origin=header.get("changeOrigin"))
    assert header.get("changeOrigin", "").startswith("com/salesforce/api/rest/")


def test_the_end_of_a_channel(org, client, account, channel, seen):
    """A stream of a channel ends with an error when the channel is deleted."""
    stream = channel.open(account)
    channel.remove()
    found = ended(stream, CHANGE_S)
    seen(status=found[0], code=found[1])
    assert found == ("NOT_FOUND", "topic.not.found")
