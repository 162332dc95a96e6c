"""Query jobs: made, waited for, fetched in pages whatever breaks, closed."""

from __future__ import annotations

import csv
import io
import json
import random
import tempfile
import time

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.config import RestTimings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import (
    LocalProtocolError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
    StreamUnavailableError,
)
from sfpubsub.rest import OrgReader, next_poll
from sfpubsub.rest.results import LineCounter
from tests.auth.servers import Reply
from tests.conftest import PATIENCE
from tests.emulator.records.support import fill_orders, forget_peak, peak_mb

from .conftest import ORDERS
from .support import QUICK, Sessions, reader_of, way_to

COLUMNS = ("Id", "Name", "Notes__c")
SOQL = f"SELECT {', '.join(COLUMNS)} FROM Order__c"
JOB = "750000000000001AAA"
RESULTS = b"/results?"

# What a page may take beside its file: pieces, a row, and what the emulator in this process does;
# the page itself has 20 MB.
GROWTH_MB = 10.0


def complete(reader, soql=SOQL, **options):
    """Make a job, and wait until it is complete."""
    made = reader.jobs.create(soql, **options)
    return reader.jobs.wait(made.id, deadline=time.monotonic() + PATIENCE)


def names(page):
    return [row[1] for row in page.rows()]


@pytest.fixture
def file():
    with tempfile.TemporaryFile() as made:
        yield made


@pytest.fixture(scope="module")
def job(org):
    """A complete job of all orders, which no test may delete."""
    return complete(reader_of(org))


def test_twenty_thousand_rows_in_flat_memory(org, file):
    """A page of any size goes to its file, and its rows come from there one by one."""
    reader = reader_of(org)
    job = complete(reader)
    assert (job.object, job.state, job.records_processed) == ("Order__c", "JobComplete", ORDERS)
    forget_peak()
    before = peak_mb()
    page = reader.jobs.results(job.id, file, columns=COLUMNS)
    assert (page.columns, page.has_header) == (COLUMNS, True)
    assert (page.records, page.next_locator) == (ORDERS, None)
    for number, row in enumerate(page.rows(), 1):
        assert row == [f"a00SB{number:010d}AAA", f"order {number}", "x" * 1000]
    assert number == ORDERS
    assert peak_mb() - before < GROWTH_MB
    reader.jobs.delete(job.id)


def test_pages_follow_each_other_by_locator(org, job, file):
    """Every row once; a new process goes on with the job's id and the locator that it noted."""
    noted, found = None, []
    while True:
        reader = reader_of(org)  # knows nothing of the pages before
        page = reader.jobs.results(job.id, file, columns=COLUMNS, locator=noted, max_records=8000)
        found += names(page)
        assert names(page) == found[-page.records :]  # the file can be read again
        noted = page.next_locator
        if noted is None:
            break
    assert found == [f"order {number}" for number in range(1, ORDERS + 1)]


@pytest.mark.parametrize("passing", [20, 100, 1_000, 1_000_000])
def test_a_page_whose_connection_breaks_is_fetched_again(org, job, file, passing):
    """The page is asked for again from its locator: no row is missing, none is there twice."""
    with way_to(org.http_url) as way:
        reader = OrgReader(Sessions(org, way.url), timings=QUICK)
        first = reader.jobs.results(job.id, file, columns=COLUMNS, max_records=5000)
        way.cuts = [(RESULTS, passing), (RESULTS, 2 * passing)]
        page = reader.jobs.results(
            job.id, file, columns=COLUMNS, locator=first.next_locator, max_records=5000
        )
        assert names(page) == [f"order {number}" for number in range(5001, 10_001)]
        assert not way.cuts
        asked = [line for line in way.passed if "/results?" in line]
        assert len(asked) == 4
        assert asked[1] == asked[2] == asked[3]
        assert reader.calls == 4


def test_a_page_that_breaks_each_time_is_given_up(org, job, file):
    """Retries have a bound, and what is raised says that the same call may work later."""
    with way_to(org.http_url) as way:
        reader = OrgReader(Sessions(org, way.url), timings=QUICK)
        way.cuts = [(RESULTS, 5000)] * 10
        with pytest.raises(StreamUnavailableError) as caught:
            reader.jobs.results(job.id, file, columns=COLUMNS)
        assert caught.value.retryable
        assert len(way.passed) == QUICK.attempts


def test_a_session_that_expires_between_pages_of_results(org, job, file):
    """The next page comes with a new session."""
    sessions = Sessions(org)
    reader = OrgReader(sessions, timings=QUICK)
    first = reader.jobs.results(job.id, file, columns=COLUMNS, max_records=10_000)
    sessions.end()
    page = reader.jobs.results(job.id, file, columns=COLUMNS, locator=first.next_locator)
    assert names(page)[0] == "order 10001"
    assert sessions.renewals == 1


def test_texts_come_as_they_are(org, file):
    """Quotes, commas, line ends and other scripts survive; empty fields are empty texts."""
    reader, user = reader_of(org), org.accounts.holder("")
    texts = ['say "no"', "a,b", "two\nlines", "two\r\nlines", '"', '""\n"",', "żółw 🐢", " x "]
    for text in texts:
        org.records.create("Contact", {"LastName": "Texts", "Description": text}, user)
    where = "WHERE LastName = 'Texts'"
    job = complete(reader, f"SELECT Id, Email, Description FROM Contact {where}")
    page = reader.jobs.results(job.id, file, columns=["Id", "Email", "Description"])
    rows = list(page.rows())
    assert [row[2].strip() for row in rows] == [text.strip() for text in texts]
    assert {row[1] for row in rows} == {""}
    assert page.records == len(texts)
    empty = complete(reader, f"SELECT Id FROM Contact {where} AND Email = 'x@y.z'")
    none = reader.jobs.results(empty.id, file, columns=["Id"])
    assert (list(none.rows()), none.records, none.next_locator) == ([], 0, None)


def test_deleted_records_are_in_a_job_of_all_rows(org, file):
    """The first read of an object can tell what is in the Recycle Bin."""
    reader, user = reader_of(org), org.accounts.holder("")
    gone = org.records.create("Opportunity", {"Name": "gone", "StageName": "Prospecting",
        "CloseDate": "2026-01-01"}, user)  # fmt: skip
    org.records.delete("Opportunity", gone, user)
    soql = "SELECT Id, IsDeleted FROM Opportunity WHERE Name = 'gone'"
    for every, rows in ((False, []), (True, [[gone, "true"]])):
        job = complete(reader, soql, all_rows=every)
        page = reader.jobs.results(job.id, file, columns=["Id", "IsDeleted"])
        assert list(page.rows()) == rows


def test_a_job_that_is_gone_is_a_typed_error(org, file):
    """Whoever resumes a job that has expired learns that the read must begin again."""
    reader = reader_of(org)
    job = complete(reader, "SELECT Id FROM Contact LIMIT 1")
    reader.jobs.delete(job.id)
    for use in (
        lambda: reader.jobs.get(job.id),
        lambda: reader.jobs.wait(job.id, deadline=0.0),
        lambda: reader.jobs.results(job.id, file, columns=COLUMNS),
        lambda: reader.jobs.abort(job.id),
    ):
        with pytest.raises(ReadExpiredError, match="start the read again") as caught:
            use()
        assert caught.value.status == 404
    reader.jobs.delete(job.id)  # closing twice is fine


def test_jobs_that_cannot_be(org, reader, file):
    """Refusals say what is wrong; what is malformed here is not sent."""
    with pytest.raises(RequestRefusedError):
        reader.jobs.create("SELECT FROM")
    with pytest.raises(RequestRefusedError) as caught:  # accepted by the org, and failed then
        complete(reader, "SELECT BillingAddress FROM Account")
    assert "ended as Failed" in str(caught.value) or caught.value.status == 400
    before = reader.calls
    with pytest.raises(LocalProtocolError, match="not a valid id for a job"):
        reader.jobs.results("../750", file, columns=["Id"])
    with pytest.raises(LocalProtocolError, match="max_records must be at least 1"):
        reader.jobs.results(JOB, file, columns=["Id"], max_records=0)
    assert reader.calls == before


def test_a_job_can_be_ended(told):
    """What is no longer wanted is aborted, and then deleted: jobs do not pile up in the org."""
    host, reader = told(lambda request: answer_job("Aborted"))
    assert reader.jobs.abort(JOB).has_ended
    (request,) = host.requests
    assert (request.method, request.body) == ("PATCH", b'{"state": "Aborted"}')
    with pytest.raises(RequestRefusedError, match="ended as Aborted"):
        reader.jobs.wait(JOB, deadline=0.0)


def answer_job(state, **more):
    found = {"id": JOB, "object": "Account", "state": state, "createdDate": "2026-01-01T00:00:00"}
    return Reply(200, {**found, **more})


def test_a_job_is_looked_at_less_and_less_often(told):
    """Each look takes a call of the day's; the last one is at the deadline."""
    now, slept, seen = [100.0], [], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    states = iter(["UploadComplete", *["InProgress"] * 20])
    timings = RestTimings(poll_initial=1.0, poll_max=8.0)
    _, reader = told(
        lambda request: answer_job(next(states), numberRecordsProcessed=7),
        timings=timings,
        sleep=sleep,
    )
    with pytest.raises(StreamUnavailableError, match="InProgress after 7 records") as caught:
        reader.jobs.wait(JOB, deadline=130.0, clock=lambda: now[0], progress=seen.append)
    assert caught.value.retryable
    assert slept == [1.0, 2.0, 4.0, 8.0, 8.0, 7.0]
    assert [job.state for job in seen] == ["UploadComplete", *["InProgress"] * 5]
    assert next_poll(10_000, 0.0, 1e9, timings) == 8.0
    assert next_poll(1, 5.0, 5.0, timings) is None


# Pages that are not what they should be.


def page_of(body, records, locator="null", **headers):
    return Reply(
        200, body, {"Sforce-NumberOfRecords": str(records), "Sforce-Locator": locator, **headers}
    )


def test_a_page_without_names_of_columns_is_read_too(told, file):
    """Whether later pages repeat them is reported in two ways: both are read."""
    pages = iter(
        [page_of('"Id"\n"1"\n"2"\n', 2, "Mg"), page_of('"3"\n', 1, "Mw"), page_of('"ID"\n"4"\n', 1)]
    )
    host, reader = told(lambda request: next(pages))
    found, locator = [], None
    for has_header in (True, False, True):
        page = reader.jobs.results(JOB, file, columns=["Id"], locator=locator)
        assert page.has_header is has_header
        found += page.rows()
        locator = page.next_locator
    assert (found, locator) == ([["1"], ["2"], ["3"], ["4"]], None)
    assert ["locator=" in request.path for request in host.requests] == [False, True, True]
    assert "locator=Mw" in host.requests[2].path


def test_other_columns_than_asked_for_are_refused(told, file):
    """A value never gets into another column: what the page says it has must be the query's."""
    _, reader = told(lambda request: page_of('"Name","Id"\n"x","1"\n', 1))
    with pytest.raises(RemoteProtocolError, match="do not match the requested columns Id, Name"):
        reader.jobs.results(JOB, file, columns=["Id", "Name"])


@pytest.mark.parametrize("cut", ['"Id"\n"1"\n', '"Id"\n"1"\n"', '"Id"\n"1"\n"2', '"1"\n"2', ""])
def test_a_page_that_was_cut_without_a_word_is_fetched_again(told, file, cut):
    """Fewer rows than announced, or an open quote, are no page, however the answer ended."""
    pages = iter([page_of(cut, 2), page_of('"Id"\n"1"\n"2"\n', 2)])
    host, reader = told(lambda request: next(pages))
    assert list(reader.jobs.results(JOB, file, columns=["Id"]).rows()) == [["1"], ["2"]]
    assert len(host.requests) == 2


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply(200, '"Id"\n"1"\n'), RemoteProtocolError, "removes headers"),
        (page_of("<html>", "many"), RemoteProtocolError, "removes headers"),
        (Reply(204), LocalProtocolError, "wait until it is complete"),
        (
            Reply(302, "", {"Location": "https://elsewhere.example"}),
            RemoteProtocolError,
            "redirect",
        ),
        (Reply(409, [{"errorCode": "X", "message": "other version"}]), RequestRefusedError, "409"),
    ],
)
def test_answers_that_are_no_page(told, file, reply, error, words):
    """Nothing else is taken for an empty or a last page; none of it is asked for again."""
    host, reader = told(lambda request: reply)
    with pytest.raises(error, match=words):
        reader.jobs.results(JOB, file, columns=["Id"])
    assert len(host.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'"Id"\n"1","2"\n',
        b'"Id"\n"1\xff"\n',
        b'"Id"\n"1"x\n',
    ],
    ids=["too many values", "no UTF-8", "text behind quotes"],
)
def test_rows_that_are_no_csv(told, file, body):
    """A page that cannot be read is an error, and never a shorter row."""
    _, reader = told(lambda request: page_of(body, 1))
    with pytest.raises(RemoteProtocolError):
        list(reader.jobs.results(JOB, file, columns=["Id"]).rows())


@pytest.mark.parametrize(
    "body",
    [{}, [], None, 5, {"id": JOB}, {"id": JOB, "object": "A", "state": "Odd", "createdDate": "x"}],
)
def test_answers_that_are_no_job(told, body):
    """A job without id and state is not waited for."""
    _, reader = told(lambda request: Reply(200, json.dumps(body)))
    with pytest.raises(RemoteProtocolError):
        reader.jobs.get(JOB)


def test_a_file_that_cannot_be_written_is_told(org, job, tmp_path):
    """A full disk is the file's error and not the network's: nothing is tried again."""
    reader = reader_of(org)
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(OSError, match="No space"):
        reader.jobs.results(job.id, NoSeek(full), columns=COLUMNS)
    assert reader.calls == 1


class NoSeek(io.RawIOBase):
    """A file on a full disk, which itself could be emptied."""

    def __init__(self, full):
        self._full = full

    def seek(self, *_arguments):
        return 0

    def truncate(self, *_arguments):
        return 0

    def write(self, data):
        return self._full.write(data)


def test_lines_are_counted_however_they_are_cut():
    """Line ends within quotes are none, and the pieces of a page change nothing. Seed printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        rows = [
            ["".join(rng.choices('ab",\n\r', k=rng.randrange(6))) for _ in range(3)]
            for _ in range(rng.randrange(8))
        ]
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        data = text.getvalue().encode()
        if rows and rng.random() < 0.5:
            data = data[:-1]  # without the last line end
        counter, at = LineCounter(), 0
        while at < len(data):
            size = rng.randrange(1, 7)
            counter.add(data[at : at + size])
            at += size
        assert counter.lines == len(rows), data


@pytest.mark.slow
def test_a_million_rows_in_flat_memory(tmp_path):
    """Neither pages nor rows pile up: a million rows take what one page takes."""
    with EmulatorServer(tmp_path / "org") as emulator:
        fill_orders(emulator, 1_000_000)
        session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
        reader = OrgReader(session)
        columns = ["Id", "Name", "Quantity__c", "CreatedDate"]
        made = reader.jobs.create(f"SELECT {', '.join(columns)} FROM Order__c")
        job = reader.jobs.wait(made.id, deadline=time.monotonic() + 10 * PATIENCE)
        forget_peak()
        before, began, read = peak_mb(), time.monotonic(), 0
        with tempfile.TemporaryFile() as file:
            locator, ended = None, False
            while not ended:
                page = reader.jobs.results(job.id, file, columns=columns, locator=locator)
                locator, ended = page.next_locator, page.next_locator is None
                for row in page.rows():
                    read += 1
                    assert row[1] == f"order {read}"
        took, growth = time.monotonic() - began, peak_mb() - before
        print(f"{read} rows in {took:.1f} s, {growth:.1f} MB more at most, {reader.calls} calls")
        assert read == 1_000_000
        assert growth < 30.0  # the emulator's part in this process, as of its own test
