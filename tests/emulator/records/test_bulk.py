"""Tests of Bulk API 2.0 query and ingest jobs over HTTP, as data loaders use them."""

from __future__ import annotations

import csv
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from urllib.parse import quote

import pytest

from sfpubsub.emulator.org.records.job_store import Job
from sfpubsub.emulator.server import EmulatorServer
from tests.conftest import PATIENCE, until
from tests.emulator.records.support import events, select
from tests.emulator.web import ask, token

BASE = "/services/data/v67.0/jobs"
ORDERS = "/data/Order__ChangeEvent"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An emulator with change events for Order__c, shared by the tests of this module."""
    with EmulatorServer(tmp_path_factory.mktemp("org")) as emulator:
        select(emulator, "Order__c")
        yield emulator


def call(emulator, method, path, body=None, kind="application/json"):
    """Send a request with the emulator's token; return the reply.

    *path* is relative to ``/jobs`` unless it begins with ``/services``.
    """
    headers = {"Authorization": f"Bearer {emulator.access_token}"}
    if body is not None:
        headers["Content-Type"] = kind
        body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return ask(
        emulator, method, path if path.startswith("/services") else BASE + path, body, headers
    )


def wait_for_job(emulator, kind, job_id):
    """Wait until a job has ended, and return its JSON record."""

    def state():
        found = call(emulator, "GET", f"/{kind}/{job_id}").json
        return found if found["state"] in ("JobComplete", "Failed", "Aborted") else None

    return until(state)


def ingest(emulator, facts, text):
    """Run an ingest job with the CSV data *text*, wait until it ends, and return its state."""
    made = call(emulator, "POST", "/ingest", {"object": "Order__c", **facts})
    assert made.json["state"] == "Open", made.text
    path = made.json["contentUrl"]
    assert call(emulator, "PUT", f"/{path}", text, "text/csv").status == 201
    job_id = made.json["id"]
    closed = call(emulator, "PATCH", f"/ingest/{job_id}", {"state": "UploadComplete"})
    assert closed.json["state"] == "UploadComplete"
    return wait_for_job(emulator, "ingest", job_id)


def rows(reply):
    """Return the rows of a CSV response as dicts."""
    return list(csv.DictReader(io.StringIO(reply.text)))


def test_an_ingest_job_and_a_query_job(shared):
    """An ingest job creates records and change events, and lists each rejected row with an error.

    A query job then returns all of these records in several parts, each with a header line.
    """
    lines = "".join(f"n{n},{n},\n" for n in range(450))
    text = f'Name,Quantity__c,Notes__c\n{lines},1,\nbad,many,\nquoted,1,"a ""b""\nc"\n'
    before = len(events(shared, ORDERS))
    job = ingest(shared, {"operation": "insert"}, text)
    assert (job["state"], job["jobType"]) == ("JobComplete", "V2Ingest")
    assert (job["numberRecordsProcessed"], job["numberRecordsFailed"]) == (453, 2)
    good = rows(call(shared, "GET", f"/ingest/{job['id']}/successfulResults"))
    assert [row["sf__Created"] for row in good] == ["true"] * 451
    assert good[7]["Name"] == "n7"
    bad = rows(call(shared, "GET", f"/ingest/{job['id']}/failedResults/"))
    assert [row["sf__Error"].partition(":")[0] for row in bad] == [
        "REQUIRED_FIELD_MISSING",
        "JSON_PARSER_ERROR",
    ]
    assert rows(call(shared, "GET", f"/ingest/{job['id']}/unprocessedrecords")) == []
    changes = events(shared, ORDERS)[before:]
    assert sum(len(change["ChangeEventHeader"]["recordIds"]) for change in changes) == 451
    assert len({change["ChangeEventHeader"]["transactionKey"] for change in changes}) == 3
    origins = {change["ChangeEventHeader"]["changeOrigin"] for change in changes}
    assert [origin.startswith("com/salesforce/api/rest/") for origin in origins] == [True]

    soql = "SELECT Id, Name, Quantity__c, Notes__c, Gift__c FROM Order__c"
    made = call(shared, "POST", "/query", {"operation": "query", "query": soql}).json
    assert (made["state"], made["object"]) == ("UploadComplete", "Order__c")
    assert "numberRecordsProcessed" not in made
    job = wait_for_job(shared, "query", made["id"])
    assert (job["state"], job["numberRecordsProcessed"]) == ("JobComplete", 451)
    found, locator = [], ""
    while locator != "null":
        query = f"?maxRecords=200&locator={quote(locator)}"
        reply = call(shared, "GET", f"/query/{job['id']}/results{query}")
        assert reply.headers.get_content_type() == "text/csv"
        locator = reply.headers["Sforce-Locator"]
        assert int(reply.headers["Sforce-NumberOfRecords"]) == len(rows(reply))
        found += rows(reply)
    assert [row["Id"] for row in found] == [row["sf__Id"] for row in good]
    assert found[3] == {**found[3], "Name": "n3", "Quantity__c": "3.0", "Gift__c": "false"}
    assert found[-1]["Notes__c"] == 'a "b"\nc'
    other = f"/services/data/v60.0/jobs/query/{job['id']}/results"
    assert call(shared, "GET", other).status == 409
    refused = call(shared, "GET", f"/query/{job['id']}/results?locator=nonsense")
    assert refused.code == (400, "INVALID_QUERY_LOCATOR")
    assert call(shared, "DELETE", f"/query/{job['id']}").status == 204
    assert call(shared, "GET", f"/query/{job['id']}").code == (404, "NOT_FOUND")
    assert not list((shared.data_dir / "bulk").glob(f"{job['id']}*"))


def test_an_ingest_job_updates_upserts_and_deletes(shared):
    """Ingest jobs upsert, update and delete records.

    `#N/A` clears a field, and an empty value leaves it unchanged.
    """
    facts = {"operation": "upsert", "externalIdFieldName": "External_Id__c"}
    job = ingest(shared, facts, "External_Id__c,Name,Quantity__c\nu1,one,1\nu2,two,2\n")
    assert job["numberRecordsFailed"] == 0
    job = ingest(shared, facts, "External_Id__c,Name,Quantity__c\nu2,zwei,\nu3,three,#N/A\n")
    good = rows(call(shared, "GET", f"/ingest/{job['id']}/successfulResults"))
    assert [row["sf__Created"] for row in good] == ["false", "true"]
    second = good[0]["sf__Id"]
    user = shared.accounts.user("user@example.com")
    read = shared.records.get("Order__c", second, ["Name", "Quantity__c"])
    assert read == {"Name": "zwei", "Quantity__c": 2.0}
    facts = {"operation": "update", "lineEnding": "CRLF", "columnDelimiter": "SEMICOLON"}
    ingest(shared, facts, f"Id;Quantity__c\r\n{second};#N/A\r\n")
    assert shared.records.get("Order__c", second, ["Quantity__c"])["Quantity__c"] is None
    assert ingest(shared, {"operation": "delete"}, f"Id\n{second}\n")["numberRecordsFailed"] == 0
    soql = f"SELECT Id FROM Order__c WHERE Id = '{second}'"
    assert shared.records.query(soql, user).total == 0
    assert shared.records.query(soql, user, deleted=True).total == 1
    job = ingest(shared, {"operation": "delete"}, f"Id\n{second}\nnonsense\n")
    errors = [
        row["sf__Error"] for row in rows(call(shared, "GET", f"/ingest/{job['id']}/failedResults"))
    ]
    assert [error.partition(":")[0] for error in errors] == ["ENTITY_IS_DELETED", "NOT_FOUND"]


@pytest.mark.parametrize(
    ("ending", "text"), [("LF", "Name\r\na\r\n"), ("CRLF", "Name\na\n"), ("LF", "Name\r\n")]
)
def test_data_with_other_line_ends_fails_the_job(shared, ending, text):
    """A job whose data does not have the line ends that it names fails, in the words of an org, and
    no row is processed. Python's csv module writes CRLF, and jobs name LF by default.
    """
    job = ingest(shared, {"operation": "insert", "lineEnding": ending}, text)
    assert (job["state"], job["numberRecordsProcessed"]) == ("Failed", 0)
    assert job["errorMessage"] == (
        "ClientInputError : LineEnding is invalid on user data."
        f" Current LineEnding setting is {ending}"
    )


def test_the_error_of_a_row_ends_as_in_an_org(shared):
    """sf__Error has the code, the text and the fields, and ends with two dashes: directly after the
    colon if no field is named.
    """
    text = "Name,Quantity__c\n,1\n"
    job = ingest(shared, {"operation": "insert"}, text)
    (bad,) = rows(call(shared, "GET", f"/ingest/{job['id']}/failedResults"))
    told = "REQUIRED_FIELD_MISSING:Required fields are missing: [Name]:Name --"
    assert bad["sf__Error"] == told
    job = ingest(shared, {"operation": "delete"}, "Id\na00SB0000009999YAA\n")
    (bad,) = rows(call(shared, "GET", f"/ingest/{job['id']}/failedResults"))
    assert bad["sf__Error"].endswith(":--")


def test_a_query_job_selects_fields_of_parents(shared):
    """A column of a query job may be a field of a parent; its header is the path. Aggregates and
    FIELDS(ALL) are refused.
    """
    user = shared.accounts.user("user@example.com")
    account = shared.records.create("Account", {"Name": "Acme"}, user)
    shared.records.create("Contact", {"LastName": "A", "AccountId": account}, user)
    shared.records.create("Contact", {"LastName": "B"}, user)

    def run(text):
        made = call(shared, "POST", "/query", {"operation": "query", "query": text}).json
        return wait_for_job(shared, "query", made["id"])

    job = run("SELECT LastName, Account.Name FROM Contact ORDER BY LastName")
    found = rows(call(shared, "GET", f"/query/{job['id']}/results"))
    assert found == [
        {"LastName": "A", "Account.Name": "Acme"},
        {"LastName": "B", "Account.Name": ""},
    ]
    for text in ("SELECT COUNT(Id) FROM Contact", "SELECT FIELDS(ALL) FROM Contact LIMIT 1"):
        assert run(text)["errorMessage"].startswith("FUNCTIONALITY_NOT_ENABLED")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Colour__c\nred\n", "Field name not found : Colour__c"),
        ("", "no header line"),
        (b"Name\n\x00bad\n".decode() + "\udcff", "cannot be read"),
    ],
)
def test_an_unreadable_file_fails_the_job(shared, text, said):
    """A file without a header line, with an unknown field, or with invalid text fails its job.

    The error message gives the reason.
    """
    made = call(shared, "POST", "/ingest", {"object": "Order__c", "operation": "insert"}).json
    headers = {"Authorization": f"Bearer {shared.access_token}", "Content-Type": "text/csv"}
    data = text.encode(errors="surrogateescape")
    ask(shared, "PUT", f"{BASE}/ingest/{made['id']}/batches", data, headers)
    call(shared, "PATCH", f"/ingest/{made['id']}", {"state": "UploadComplete"})
    job = wait_for_job(shared, "ingest", made["id"])
    assert job["state"] == "Failed"
    assert said in job["errorMessage"]


def test_invalid_jobs_and_state_changes_are_rejected(shared):
    """Creating an invalid job is rejected, and so is an invalid change of a job's state."""
    for kind, body in (
        ("query", {"operation": "query"}),
        ("query", {"operation": "insert", "query": "SELECT Id FROM Account"}),
        ("ingest", {"operation": "insert"}),
        ("ingest", {"operation": "upsert", "object": "Order__c"}),
        ("ingest", {"operation": "insert", "object": "Order__c", "columnDelimiter": "DOT"}),
        ("ingest", {"operation": "insert", "object": "Order__c", "colour": "red"}),
    ):
        assert call(shared, "POST", f"/{kind}", body).code == (400, "INVALIDJOB")
    body = {"operation": "query", "query": "SELECT Nothing FROM Account"}
    assert call(shared, "POST", "/query", body).code == (400, "INVALID_FIELD")
    body = {"operation": "query", "query": "SELECT COUNT() FROM Account"}
    made = call(shared, "POST", "/query", body).json
    assert wait_for_job(shared, "query", made["id"])["state"] == "Failed"
    assert call(shared, "GET", f"/query/{made['id']}/results").status == 204
    assert call(shared, "PATCH", f"/query/{made['id']}", {"state": "Aborted"}).status == 400
    made = call(shared, "POST", "/ingest", {"operation": "insert", "object": "Account"}).json
    assert call(shared, "DELETE", f"/ingest/{made['id']}").code == (400, "INVALIDJOBSTATE")
    aborted = call(shared, "PATCH", f"/ingest/{made['id']}", {"state": "Aborted"})
    assert aborted.json["state"] == "Aborted"
    listed = call(shared, "GET", "/ingest").json["records"]
    assert listed[-1]["id"] == made["id"]


def test_an_aborted_job_keeps_its_processed_rows(shared):
    """An aborted job keeps the records that it has created and lists all other rows as unprocessed.

    Its state stays Aborted.
    """
    made = call(shared, "POST", "/ingest", {"object": "Order__c", "operation": "insert"}).json
    path = f"/ingest/{made['id']}"
    text = "Name\n" + "".join(f"aborted {n}\n" for n in range(20_000))
    call(shared, "PUT", f"{path}/batches", text, "text/csv")
    call(shared, "PATCH", path, {"state": "UploadComplete"})
    assert call(shared, "PATCH", path, {"state": "Aborted"}).json["state"] == "Aborted"
    job = shared.jobs.job(made["id"], queries=False)
    # The next job begins only after this one has stopped.
    following = ingest(shared, {"operation": "insert"}, "Name\nnext\n")
    assert following["numberRecordsProcessed"] == 1
    assert call(shared, "GET", path).json["state"] == "Aborted"
    done = job.facts["numberRecordsProcessed"]
    assert done < 20_000
    left = rows(call(shared, "GET", f"{path}/unprocessedrecords"))
    assert [row["Name"] for row in left] == [f"aborted {n}" for n in range(done, 20_000)]
    soql = "SELECT COUNT() FROM Order__c WHERE Name LIKE 'aborted%'"
    assert shared.records.query(soql, shared.accounts.holder("")).total == done


def test_concurrent_requests_return_all_unprocessed_rows(shared):
    """Concurrent requests right after an abort each return every unprocessed row exactly once."""
    made = call(shared, "POST", "/ingest", {"object": "Order__c", "operation": "insert"}).json
    path = f"/ingest/{made['id']}"
    names = [f"at once {n}" for n in range(20_000)]
    call(shared, "PUT", f"{path}/batches", "Name\n" + "\n".join(names) + "\n", "text/csv")
    call(shared, "PATCH", path, {"state": "UploadComplete"})
    job = shared.jobs.job(made["id"], queries=False)
    until(lambda: job.facts["numberRecordsProcessed"] > 0, "the first rows")
    with ThreadPoolExecutor(4) as pool:
        with shared.records.transaction(shared.accounts.holder("")):  # the job has to wait
            shared.jobs.abort(job)
            asked = [
                pool.submit(call, shared, "GET", f"{path}/unprocessedrecords") for _ in range(4)
            ]
            wait(asked, timeout=0.5)  # responses must not arrive before the job has stopped
        found = [[row["Name"] for row in rows(one.result())] for one in asked]
    assert found == [names[job.facts["numberRecordsProcessed"] :]] * 4
    soql = "SELECT COUNT() FROM Order__c WHERE Name LIKE 'at once%'"
    taken = shared.records.query(soql, shared.accounts.holder("")).total
    assert taken == job.facts["numberRecordsProcessed"] < 20_000


def test_a_job_is_visible_only_to_its_user(shared):
    """A user without View All sees neither the jobs of other users nor their results."""
    shared.accounts.put_user("clerk@example.com", "word", view_all=False)
    fields = {"username": "clerk@example.com", "password": "word"}
    clerk = token(shared, "password", **fields).json["access_token"]
    headers = {"Authorization": f"Bearer {clerk}", "Content-Type": "application/json"}
    body = {"operation": "query", "query": "SELECT Id, Name FROM Order__c"}
    theirs = call(shared, "POST", "/query", body).json["id"]
    wait_for_job(shared, "query", theirs)
    for path in (f"/query/{theirs}", f"/query/{theirs}/results"):
        assert ask(shared, "GET", BASE + path, None, headers).code == (404, "NOT_FOUND")
    own = ask(shared, "POST", f"{BASE}/query", json.dumps(body).encode(), headers).json["id"]
    listed = ask(shared, "GET", f"{BASE}/query", None, headers).json["records"]
    assert [row["id"] for row in listed] == [own]
    assert wait_for_job(shared, "query", own)["state"] == "JobComplete"


def test_an_aborted_query_lets_the_next_job_begin(org, user):
    """A query job that is aborted halfway releases its snapshot, so that the next job runs."""
    for _ in range(20):
        org.records.create("Account", {"Name": "A", "Description": "x" * 30_000}, user)
    facts = {"operation": "query", "columnDelimiter": "COMMA", "lineEnding": "LF"}
    text = "SELECT Id, Description FROM Account"
    job = Job("750SB0000009999AAA", {**facts, "query": text, "user": user.username})
    job.stopped.set()
    thread = threading.Thread(target=org.jobs._do, args=(job,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert 0 < job.facts["numberRecordsProcessed"] < 20
    following = org.jobs.create({**facts, "query": text}, user)
    until(lambda: following.state == "JobComplete", "the end of the next job")


def test_an_ingest_job_resumes_after_a_restart(tmp_path):
    """An interrupted ingest job resumes after a restart and processes each row once.

    Result rows beyond the job's stored count of processed rows are discarded.
    """
    with EmulatorServer(tmp_path) as emulator:
        select(emulator, "Order__c")
        made = call(emulator, "POST", "/ingest", {"object": "Order__c", "operation": "insert"}).json
        path = f"/ingest/{made['id']}"
        lines = "".join(f"n{n}\n" for n in range(600))
        call(emulator, "PUT", f"{path}/batches", f"Name\n{lines}", "text/csv")
        job = emulator.jobs.job(made["id"], queries=False)
        user = emulator.accounts.user("user@example.com")
        # The state that a kill after the second of three transactions leaves.
        for n in range(400):
            emulator.records.create("Order__c", {"Name": f"n{n}"}, user)
        file = emulator.jobs.stored.result(job, "successful", ["sf__Id", "sf__Created", "Name"])
        list(file.append(iter([["x", "true", f"n{n}"] for n in range(450)])))
        emulator.jobs.stored.change(job, state="InProgress", numberRecordsProcessed=400)
    with EmulatorServer(tmp_path) as emulator:
        done = wait_for_job(emulator, "ingest", made["id"])
        assert (done["state"], done["numberRecordsProcessed"]) == ("JobComplete", 600)
        user = emulator.accounts.user("user@example.com")
        names = [
            row["Name"] for row in emulator.records.query("SELECT Name FROM Order__c", user).rows
        ]
        assert names == [f"n{n}" for n in range(600)]
        good = rows(call(emulator, "GET", f"{path}/successfulResults"))
        assert [row["Name"] for row in good] == names
